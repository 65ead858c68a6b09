// Vectors of W lanes in the compiler's own notation (GCC and Clang).  The same source is compiled once per instruction
// set; what a lane computes does not depend on W, so all of them give the same bits.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

#include "random.h"

namespace lograd {
namespace LOGRAD_ISA {

#ifdef __AVX512F__
constexpr std::size_t W = 16;
#else
constexpr std::size_t W = 8;
#endif

typedef float F __attribute__((vector_size(W * 4)));
typedef std::int32_t I __attribute__((vector_size(W * 4)));
typedef std::uint32_t U __attribute__((vector_size(W * 4)));
typedef std::uint64_t L __attribute__((vector_size(W * 4)));  // W / 2 lanes
typedef std::uint16_t H __attribute__((vector_size(W * 2)));

template <class V, class T> inline V load(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class V, class T> inline void store(T* p, V v) { std::memcpy(p, &v, sizeof v); }
template <class To, class From> inline To bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &v, sizeof to);
    return to;
}
inline F magnitude(F x) { return bits<F>(bits<U>(x) & 0x7fffffffu); }
inline U sign(F x) { return bits<U>(x) & 0x80000000u; }
inline bool any(I mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(bits<__m512i>(mask), bits<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256(bits<__m256i>(mask), bits<__m256i>(mask));
#else
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < W / 2; ++i) all |= bits<L>(mask)[i];
    return all != 0;
#endif
}
inline F select(I mask, F yes, F no) { return mask ? yes : no; }
// a > b ? a : b, so b where either is NaN.
inline F larger(F a, F b) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_max_ps(bits<__m512>(a), bits<__m512>(b)));
#elif defined(__AVX2__)
    return bits<F>(_mm256_max_ps(bits<__m256>(a), bits<__m256>(b)));
#else
    return a > b ? a : b;
#endif
}
inline F smaller(F a, F b) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_min_ps(bits<__m512>(a), bits<__m512>(b)));
#elif defined(__AVX2__)
    return bits<F>(_mm256_min_ps(bits<__m256>(a), bits<__m256>(b)));
#else
    return a < b ? a : b;
#endif
}
// Written past the cache: a large output is not read back soon, and this saves fetching its lines first.
inline void stream(float* p, F v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, bits<__m512>(v));
#elif defined(__AVX2__)
    _mm256_stream_ps(p, bits<__m256>(v));
#else
    store(p, v);
#endif
}

// The low halves of 64-bit lanes, multiplied; what stands in the high halves does not matter.
inline L multiply_low(L v, std::uint32_t factor) {
#if defined(__AVX512F__)
    return bits<L>(_mm512_mul_epu32(bits<__m512i>(v), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
    return bits<L>(_mm256_mul_epu32(bits<__m256i>(v), _mm256_set1_epi64x(factor)));
#else
    return (v & 0xffffffffu) * factor;
#endif
}

// Upper 16 bits of the uniform numbers of elements 8 block, 8 block + 1, ...  `blocks` is rounded up to a multiple of W.
constexpr std::size_t kBlocksAtOnce = W;
inline void upper16(std::uint64_t block, std::uint64_t seed, std::uint16_t* out, std::size_t blocks) {
    L lanes;
    for (std::size_t i = 0; i < W / 2; ++i) lanes[i] = i;
    for (std::size_t done = 0; done < blocks; done += kBlocksAtOnce) {
        // Two independent halves, so that the multipliers always have something to do.
        L a0 = lanes + (block + done), a1 = a0 + W / 2, b0 = a0 >> 32, b1 = a1 >> 32;
        L c0 = lanes ^ lanes, c1 = c0, d0 = c0, d1 = c0;
        std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const L p0 = multiply_low(a0, 0xD2511F53u), q0 = multiply_low(c0, 0xCD9E8D57u);
            const L p1 = multiply_low(a1, 0xD2511F53u), q1 = multiply_low(c1, 0xCD9E8D57u);
            a0 = (q0 >> 32) ^ b0 ^ k0;
            a1 = (q1 >> 32) ^ b1 ^ k0;
            c0 = (p0 >> 32) ^ d0 ^ k1;
            c1 = (p1 >> 32) ^ d1 ^ k1;
            b0 = q0, b1 = q1, d0 = p0, d1 = p1;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        std::uint64_t* to = reinterpret_cast<std::uint64_t*>(out + 8 * done);
        const L ab0 = (a0 & 0xffffffffu) | (b0 << 32), cd0 = (c0 & 0xffffffffu) | (d0 << 32);
        const L ab1 = (a1 & 0xffffffffu) | (b1 << 32), cd1 = (c1 & 0xffffffffu) | (d1 << 32);
        for (std::size_t i = 0; i < W / 2; ++i) {
            to[2 * i] = ab0[i], to[2 * i + 1] = cd0[i];
            to[W + 2 * i] = ab1[i], to[W + 2 * i + 1] = cd1[i];
        }
    }
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
