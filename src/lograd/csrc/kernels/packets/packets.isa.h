// The kernels of packets for one instruction set.

#pragma once

#include "kernels/packets/decode.isa.h"
#include "kernels/packets/encode.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// Eight codes at a time, of which words of 64 bits are written and read; so the last ones go by way of a buffer.
constexpr std::size_t kLastCodes = 72;

inline void pack_codes(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* packed) {
    std::size_t i = 0;
    for (; i + kLastCodes <= count; i += 8, packed += bits) store64(packed, narrowed_bytes(load64(codes + i), bits));
    std::uint8_t from[kLastCodes + 8] = {}, to[kLastCodes + 8];
    std::memcpy(from, codes + i, count - i);
    pack_bytes(from, count - i, bits, to);
    std::memcpy(packed, to, bytes_for((count - i) * static_cast<std::size_t>(bits)));
}
inline void unpack_codes(const std::uint8_t* packed, std::size_t count, int bits, std::uint8_t* codes) {
    std::size_t i = 0;
    for (; i + kLastCodes <= count; i += 8, packed += bits) store64(codes + i, widened_bytes(load64(packed), bits));
    std::uint8_t from[kLastCodes + 8] = {}, to[kLastCodes + 8];
    std::memcpy(from, packed, bytes_for((count - i) * static_cast<std::size_t>(bits)));
    unpack_bytes(from, count - i, bits, to);
    std::memcpy(codes + i, to, count - i);
}

inline constexpr PacketKernels kPackets{encode_blocks, decode_blocks, smallest_word, pack_codes, unpack_codes};

}  // namespace LOGRAD_ISA
}  // namespace lograd
