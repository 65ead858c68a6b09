// Vectors of W lanes in the compiler's own notation (GCC and Clang).  What a lane computes does not depend on W, so all
// instruction sets give the same bits.
//
// Every header `*.isa.h` is compiled once per instruction set, with that set's flags, into the namespace LOGRAD_ISA.
// Nothing compiled so may have external linkage outside of it: the linker keeps one copy of an inline function, and that
// could be one which an older CPU cannot run.  So kernels use compiler builtins in place of the standard library, and
// tests/project/test_build.py looks at the symbols.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

// Loops of a known, small number of turns whose vectors are to stay in registers.
#define LOGRAD_UNROLL _Pragma("GCC unroll 16")
// Small functions of innermost loops, whose constants are to stay in registers, too.
#define LOGRAD_INLINE __attribute__((always_inline)) inline

#ifndef LOGRAD_ISA
#error "include *.isa.h from the sources in isa/ only"
#endif

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
inline U larger(U a, U b) {
#if defined(__AVX512F__)
    return bits<U>(_mm512_max_epu32(bits<__m512i>(a), bits<__m512i>(b)));
#elif defined(__AVX2__)
    return bits<U>(_mm256_max_epu32(bits<__m256i>(a), bits<__m256i>(b)));
#else
    return a > b ? a : b;
#endif
}
// Of both halves of each lane, by themselves.
inline U larger_halves(U a, U b) {
#if defined(__AVX512F__)
    return bits<U>(_mm512_max_epu16(bits<__m512i>(a), bits<__m512i>(b)));
#elif defined(__AVX2__)
    return bits<U>(_mm256_max_epu16(bits<__m256i>(a), bits<__m256i>(b)));
#else
    const U low = larger(a & 0xffffu, b & 0xffffu);
    return larger(a & 0xffff0000u, b & 0xffff0000u) | low;
#endif
}
inline U smaller(U a, U b) {
#if defined(__AVX512F__)
    return bits<U>(_mm512_min_epu32(bits<__m512i>(a), bits<__m512i>(b)));
#elif defined(__AVX2__)
    return bits<U>(_mm256_min_epu32(bits<__m256i>(a), bits<__m256i>(b)));
#else
    return a < b ? a : b;
#endif
}
// Lanes where a or b is NaN.
inline I either_nan(F a, F b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return bits<I>(_mm256_cmp_ps(bits<__m256>(a), bits<__m256>(b), _CMP_UNORD_Q));
#else
    return (a != a) | (b != b);
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

}  // namespace LOGRAD_ISA
}  // namespace lograd
