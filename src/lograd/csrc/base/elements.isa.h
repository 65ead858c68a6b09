// Elements of the types that tensors have, to float32 and back.

#pragma once

#include "base/types.h"
#include "base/vector.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

inline void widen(const float* from, float* to, std::size_t n) { std::memcpy(to, from, n * sizeof(float)); }
inline void widen(const Bfloat16* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t word = std::uint32_t{from[i].bits} << 16;
        std::memcpy(to + i, &word, 4);
    }
}
inline float widen_half(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16, rest = half & 0x7fffu;
    std::uint32_t word;
    if (rest >= 0x7c00u) word = 0x7f800000u | (rest & 0x3ffu) << 13;
    else if (rest >= 0x400u) word = (rest << 13) + 0x38000000u;
    else {  // subnormal: exact as an integer times 2^-24
        const float value = static_cast<float>(rest) * 0x1p-24f;
        std::memcpy(&word, &value, 4);
    }
    word |= sign;
    float out;
    std::memcpy(&out, &word, 4);
    return out;
}
inline void widen(const Float16* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = widen_half(from[i].bits);
}

inline void narrow(const float* from, float* to, std::size_t n) { std::memcpy(to, from, n * sizeof(float)); }
inline void narrow(const float* from, Bfloat16* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t word;
        std::memcpy(&word, from + i, 4);
        const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
        // Ties to even; one NaN for all.  A finite number stays finite.
        const bool infinite = (word & 0x7fffffffu) == 0x7f800000u;
        std::uint32_t rounded = (word + 0x7fffu + (word >> 16 & 1)) >> 16;
        rounded -= (rounded & 0x7fffu) == 0x7f80u && !infinite;
        to[i].bits = nan ? 0x7fc0u : static_cast<std::uint16_t>(rounded);
    }
}
inline std::uint16_t narrow_half(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    const std::uint16_t sign = static_cast<std::uint16_t>(word >> 16 & 0x8000u);
    const std::uint32_t m = word & 0x7fffffffu;
    if (m > 0x7f800000u) return 0x7e00u;  // one NaN for all
    if (m == 0x7f800000u) return sign | 0x7c00u;
    if (m >= 0x477fe000u) return sign | 0x7bffu;  // 65504 and beyond: a finite number stays finite
    if (m < 0x38800000u) {                        // below 2^-14: round to a multiple of 2^-24
        float magnitude;
        std::memcpy(&magnitude, &m, 4);
        const float shifted = magnitude + 0.5f;  // 0.5 has a last place of 2^-24
        std::uint32_t steps;
        std::memcpy(&steps, &shifted, 4);
        return sign | static_cast<std::uint16_t>(steps - 0x3f000000u);
    }
    return sign | static_cast<std::uint16_t>((m - 0x38000000u + 0xfffu + (m >> 13 & 1)) >> 13);
}
inline void narrow(const float* from, Float16* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i].bits = narrow_half(from[i]);
}

inline void widen(const Code* from, float* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i].value;
}
inline void narrow(const float* from, Code* to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i].value = static_cast<std::uint8_t>(static_cast<std::int32_t>(from[i]));
}

// Calls go(null pointer of the element type).
template <class Go> void with_type(Type type, Go go) {
    switch (type) {
        case Type::kFloat32: return go(static_cast<float*>(nullptr));
        case Type::kBfloat16: return go(static_cast<Bfloat16*>(nullptr));
        case Type::kFloat16: return go(static_cast<Float16*>(nullptr));
    }
}

// Four vectors of whole numbers from 0 to 255 as bytes.
inline void store_bytes(const I* v, Code* out) {
#if defined(__AVX512F__)
    for (std::size_t k = 0; k < 4; ++k)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + W * k), _mm512_cvtepi32_epi8(bits<__m512i>(v[k])));
#elif defined(__AVX2__)
    const __m256i low = _mm256_packus_epi32(bits<__m256i>(v[0]), bits<__m256i>(v[1]));
    const __m256i high = _mm256_packus_epi32(bits<__m256i>(v[2]), bits<__m256i>(v[3]));
    // The instructions pack within halves: the order of the groups of four is 0 2 4 6 1 3 5 7.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store(out, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
#else
    for (std::size_t k = 0; k < 4 * W; ++k) out[k].value = static_cast<std::uint8_t>(v[k / W][k % W]);
#endif
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
