// Fuzzes the native decoder of packets: any bytes, on the kernels of two instruction sets, under sanitizers.
//
// A run fails if the decoder reads outside of its input or writes outside of the tensor (AddressSanitizer sees both),
// if the instruction sets disagree, or if what was decoded does not survive being encoded and decoded again.
// `./dev fuzz` builds and runs it.  An input is a type, a number of elements, alpha and cut bits, and then a table of
// blocks with its blocks, as wire/header.py hands them to the decoder.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "kernels/packets/packets.h"

namespace lograd {
namespace generic {
extern const PacketKernels& packets;
}
namespace avx2 {
extern const PacketKernels& packets;
}
}  // namespace lograd

using namespace lograd;

namespace {

constexpr std::size_t kHead = 8;
constexpr std::size_t kMost = 9001;  // elements: two whole blocks and a part

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

// Memory of exactly so many bytes, so that one more is seen.
struct Exact {
    std::size_t size;
    std::unique_ptr<std::uint8_t[]> data;
    explicit Exact(std::size_t n) : size(n), data(new std::uint8_t[n]) { std::memset(data.get(), 0xa5, n); }
};

PacketFault decode(const PacketKernels& kernels, const PacketCoding& coding, const Exact& body, std::size_t count,
                   Exact& out) {
    return decode_packet(kernels, coding, body.data.get(), body.size, out.data.get(), count, 1);
}

std::vector<std::uint8_t> encode(const PacketKernels& kernels, const PacketCoding& coding, const Exact& x,
                                 std::size_t count) {
    std::vector<std::uint8_t> out(most_packet_bytes(count, coding.type));
    Counts counts{false};
    out.resize(encode_packet(kernels, coding, {false, 0.0f, {0, 0}}, x.data.get(), count, out.data(), 1, counts));
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < kHead) return 0;
    const Type type = static_cast<Type>(data[0] % 3);
    const int mantissa = type == Type::kFloat32 ? 23 : type == Type::kFloat16 ? 10 : 7;
    const bool entropy = data[0] & 128;
    const std::size_t count = (data[1] | data[2] << 8) % kMost;
    std::uint32_t alpha = data[3] | data[4] << 8 | data[5] << 16 | std::uint32_t{data[6]} << 24;
    alpha &= type == Type::kFloat32 ? 0x7fffffffu : 0x7fffu;
    const PacketCoding coding{type, alpha, data[7] % (mantissa + 1), entropy};
    Exact body(size - kHead);
    if (body.size) std::memcpy(body.data.get(), data + kHead, body.size);

    Exact first(count * bytes(type)), second(count * bytes(type)), again(count * bytes(type));
    const PacketFault fault = decode(generic::packets, coding, body, count, first);
    const PacketFault other = decode(avx2::packets, coding, body, count, second);
    require((fault == PacketFault::kNone) == (other == PacketFault::kNone), "one instruction set refuses a packet");
    if (fault != PacketFault::kNone) return 0;
    require(!std::memcmp(first.data.get(), second.data.get(), first.size), "instruction sets decode different bits");

    // Elements as they are may have bits that the cut takes away, so only what is exact must come back.
    const PacketCoding exact{type, alpha, 0, entropy};
    const std::vector<std::uint8_t> packet = encode(generic::packets, exact, first, count);
    require(packet == encode(avx2::packets, exact, first, count), "instruction sets encode different bytes");
    Exact copy(packet.size());
    if (copy.size) std::memcpy(copy.data.get(), packet.data(), copy.size);
    require(decode(avx2::packets, exact, copy, count, again) == PacketFault::kNone, "an own packet is refused");
    require(!std::memcmp(first.data.get(), again.data.get(), first.size), "an own packet decodes to other bits");
    encode(avx2::packets, coding, first, count);
    return 0;
}
