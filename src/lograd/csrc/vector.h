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

// Loops of a known, small number of turns whose vectors are to stay in registers.
#define LOGRAD_UNROLL _Pragma("GCC unroll 16")

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

// Upper 16 random bits of W elements.
inline I random_ints(const std::uint16_t* random) {
#if defined(__AVX512F__)
    return bits<I>(_mm512_cvtepu16_epi32(load<__m256i>(random)));
#elif defined(__AVX2__)
    return bits<I>(_mm256_cvtepu16_epi32(load<__m128i>(random)));
#else
    return __builtin_convertvector(load<H>(random), I);
#endif
}

// Sums of a fraction's upper 16 bits and random_ints: where the lower half of one is full, the remaining bits decide.
class Ties {
    U fullest_{};

public:
    void add(I sum) { fullest_ = larger_halves(fullest_, bits<U>(sum)); }
    explicit operator bool() const { return any((fullest_ & 0xffffu) == 0xffffu); }
};

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

// The words a, b, c, d of each 64-bit lane, which are its low half, lane after lane.
inline void store_words(L a, L b, L c, L d, std::uint16_t* out) {
#if defined(__AVX512F__)
    const __m512i ab = bits<__m512i>((a & 0xffffffffu) | (b << 32)), cd = bits<__m512i>((c & 0xffffffffu) | (d << 32));
    const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), last = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    store(out, _mm512_permutex2var_epi64(ab, first, cd));
    store(out + 2 * W, _mm512_permutex2var_epi64(ab, last, cd));
#elif defined(__AVX2__)
    const __m256i ab = _mm256_blend_epi32(bits<__m256i>(a), bits<__m256i>(b << 32), 0xaa);
    const __m256i cd = _mm256_blend_epi32(bits<__m256i>(c), bits<__m256i>(d << 32), 0xaa);
    const __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    store(out, _mm256_permute2x128_si256(even, odd, 0x20));
    store(out + 2 * W, _mm256_permute2x128_si256(even, odd, 0x31));
#else
    const L ab = (a & 0xffffffffu) | (b << 32), cd = (c & 0xffffffffu) | (d << 32);
    std::uint64_t words[W];
    for (std::size_t i = 0; i < W / 2; ++i) words[2 * i] = ab[i], words[2 * i + 1] = cd[i];
    std::memcpy(out, words, sizeof words);
#endif
}

// Upper 16 bits of the uniform numbers of whole blocks of eight elements, for one seed.
class Upper16 {
    // Vectors in flight: a round waits for its multiplications, so that several are needed to keep the multipliers busy.
    static constexpr std::size_t kVectors = 32 / W;
    // Element indices have 64 bits and wrap, so block numbers have 61.
    static constexpr std::uint64_t kLastBlock = (std::uint64_t{1} << 61) - 1;
    alignas(64) L keys_[20];
    std::uint64_t seed_;

public:
    static constexpr std::size_t kBlocks = kVectors * (W / 2);  // 16

    explicit Upper16(std::uint64_t seed) : seed_(seed) {
        // One loop per key: GCC 12 without AVX2 mixes them up in a common one.
        std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u) keys_[2 * round] = L{} + k0;
        for (int round = 0; round < 10; ++round, k1 += 0xBB67AE85u) keys_[2 * round + 1] = L{} + k1;
    }

    // Writes those of `kBlocks` blocks.
    void operator()(std::uint64_t block, std::uint16_t* out) const {
        block &= kLastBlock;
        const std::uint32_t low = static_cast<std::uint32_t>(block), high = static_cast<std::uint32_t>(block >> 32);
        if (__builtin_expect(low > 0xffffffffu - kBlocks, 0)) return across(block, out);
        L lanes;
        for (std::size_t i = 0; i < W / 2; ++i) lanes[i] = i;
        L a[kVectors], b[kVectors], c[kVectors], d[kVectors];
        // The stream is 0 and the upper word of the counter the same in all lanes, which spares half of two rounds.
        const std::uint32_t same = high ^ static_cast<std::uint32_t>(seed_);
        const std::uint64_t product = std::uint64_t{0xD2511F53u} * same;
        const L product_high = (L{} + (product >> 32)) ^ keys_[3];
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) {
            const L p = multiply_low(lanes + (low + v * (W / 2)), 0xD2511F53u);
            const L q = multiply_low((p >> 32) ^ keys_[1], 0xCD9E8D57u);
            a[v] = (q >> 32) ^ keys_[2], b[v] = q, c[v] = product_high ^ p, d[v] = L{} + product;
        }
        LOGRAD_UNROLL
        for (int round = 2; round < 10; ++round) {
            LOGRAD_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) {
                const L p = multiply_low(a[v], 0xD2511F53u), q = multiply_low(c[v], 0xCD9E8D57u);
                a[v] = (q >> 32) ^ b[v] ^ keys_[2 * round], c[v] = (p >> 32) ^ d[v] ^ keys_[2 * round + 1];
                b[v] = q, d[v] = p;
            }
        }
        LOGRAD_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) store_words(a[v], b[v], c[v], d[v], out + 4 * W * v);
    }

private:
    // The lower word of the counter overflows on the way.
    __attribute__((noinline)) void across(std::uint64_t block, std::uint16_t* out) const {
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const Words words = philox((block + i) & kLastBlock, 0, seed_);
            std::memcpy(out + 8 * i, words.w, sizeof words.w);
        }
    }
};

}  // namespace LOGRAD_ISA
}  // namespace lograd
