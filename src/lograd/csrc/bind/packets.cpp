// Packets: their blocks, their checksum, and codes of few bits.

#include "kernels/packets/packets.h"
#include "bind/bind.h"
#include "isa/table.h"

namespace lograd {

void bind_packets(Functions& functions) {
    functions.kernel("encode_packet", [](int type, Address x, Size count, std::uint32_t alpha, int cut, bool entropy,
                                         Address out, int threads) {
        Counts counts{false};
        const PacketCoding coding{type_of(type), alpha, cut, entropy};
        return encode_packet(kernels().packets, coding, {false, 0.0f, {0, 0}}, at<const void>(x), count,
                             at<std::uint8_t>(out), threads, counts);
    });
    functions.kernel("prune_packet",
                     [](int type, Address x, Size count, Address threshold, Address key, std::uint32_t alpha, int cut,
                        bool entropy, Address out, int threads, Address counted) {
        Counts counts{counted != 0};
        const PacketCoding coding{type_of(type), alpha, cut, entropy};
        const PacketPruning pruning{true, *at<const float>(threshold), key_at(key)};
        const Size size = encode_packet(kernels().packets, coding, pruning, at<const void>(x), count,
                                        at<std::uint8_t>(out), threads, counts);
        if (counted) {
            write(counts, counted);
            at<std::int64_t>(counted)[3] = counts.zeros_before;
        }
        return size;
    });
    functions.kernel("decode_packet", [](Address data, Size size, int type, std::uint32_t alpha, int cut, Address y,
                                         Size count, int threads) {
        const PacketCoding coding{type_of(type), alpha, cut, false};
        return static_cast<int>(
            decode_packet(kernels().packets, coding, at<const std::uint8_t>(data), size, at<void>(y), count, threads));
    });
    functions.kernel("smallest_magnitude", [](int type, Address x, Size count, int threads) {
        return smallest_magnitude(kernels().packets, type_of(type), at<const void>(x), count, threads);
    });
    functions.kernel("crc32", [](Address data, Size size, std::uint32_t crc) {
        return crc32(at<const std::uint8_t>(data), size, crc);
    });
    functions.kernel("pack_bits", [](Address codes, Size count, int bits, Address packed, int threads) {
        pack_bits(kernels().packets, at<const std::uint8_t>(codes), count, bits, at<std::uint8_t>(packed), threads);
    });
    functions.kernel("unpack_bits", [](Address packed, Size count, int bits, Address codes, int threads) {
        unpack_bits(kernels().packets, at<const std::uint8_t>(packed), count, bits, at<std::uint8_t>(codes), threads);
    });
}

}  // namespace lograd
