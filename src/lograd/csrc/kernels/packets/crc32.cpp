// CRC-32 (polynomial 0x04c11db7, bits reflected): by tables, and 64 bytes at a time where the CPU multiplies polynomials.
//
// @techreport{gopal2009,
//   title       = {Fast {CRC} Computation for Generic Polynomials Using {PCLMULQDQ} Instruction},
//   author      = {Gopal, Vinodh and Ozturk, Erdinc and Guilford, Jim and Wolrich, Gil and Feghali, Wajdi and others},
//   institution = {Intel},
//   year        = {2009}
// }

#include <cstring>

#include "kernels/packets/packets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lograd {
namespace {

// Row k: what a byte does to the remainder with k more bytes behind it.
struct Tables {
    std::uint32_t of[8][256];
    constexpr Tables() : of() {
        for (std::uint32_t byte = 0; byte < 256; ++byte) {
            std::uint32_t rest = byte;
            for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0xedb88320u : 0);
            of[0][byte] = rest;
        }
        for (int k = 1; k < 8; ++k)
            for (int byte = 0; byte < 256; ++byte) of[k][byte] = of[k - 1][byte] >> 8 ^ of[0][of[k - 1][byte] & 255];
    }
};
constexpr Tables kTables;

std::uint32_t by_tables(const std::uint8_t* data, std::size_t size, std::uint32_t rest) {
    const auto& t = kTables.of;
    for (; size >= 8; data += 8, size -= 8) {
        const std::uint32_t a = rest ^ (data[0] | data[1] << 8 | data[2] << 16 | std::uint32_t{data[3]} << 24);
        rest = t[7][a & 255] ^ t[6][a >> 8 & 255] ^ t[5][a >> 16 & 255] ^ t[4][a >> 24] ^ t[3][data[4]] ^
               t[2][data[5]] ^ t[1][data[6]] ^ t[0][data[7]];
    }
    for (; size; ++data, --size) rest = rest >> 8 ^ t[0][(rest ^ *data) & 255];
    return rest;
}

#if defined(__x86_64__)
// A remainder of 128 bits moves on by as many bits as the two factors say: x^(n+32) and x^(n-32) modulo the polynomial.
__attribute__((target("pclmul,sse4.1"))) inline __m128i moved(__m128i rest, __m128i factors, __m128i data) {
    const __m128i low = _mm_clmulepi64_si128(rest, factors, 0x00), high = _mm_clmulepi64_si128(rest, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

__attribute__((target("pclmul,sse4.1"))) std::uint32_t by_products(const std::uint8_t* data, std::size_t size,
                                                                   std::uint32_t rest) {
    const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const auto at = [&](std::size_t k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + k); };
    __m128i a = _mm_xor_si128(at(0), _mm_cvtsi32_si128(static_cast<int>(rest))), b = at(1), c = at(2), d = at(3);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64)
        a = moved(a, by512, at(0)), b = moved(b, by512, at(1)), c = moved(c, by512, at(2)), d = moved(d, by512, at(3));
    a = moved(moved(moved(a, by128, b), by128, c), by128, d);
    for (; size >= 16; data += 16, size -= 16) a = moved(a, by128, at(0));
    std::uint8_t last[16];
    std::memcpy(last, &a, 16);
    return by_tables(data, size, by_tables(last, 16, 0));
}
#endif

}  // namespace

std::uint32_t crc32(const std::uint8_t* data, std::size_t size, std::uint32_t crc) {
#if defined(__x86_64__)
    static const bool multiplies = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    if (multiplies && size >= 64) return ~by_products(data, size, ~crc);
#endif
    return ~by_tables(data, size, ~crc);
}

}  // namespace lograd
