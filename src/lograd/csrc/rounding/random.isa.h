// Counter-based randomness: Philox4x32-10 of (seed, element index), and nothing else.
//
// Every element owns a 48-bit uniform number U.  Its upper 16 bits come from stream 0, eight elements to a block; they
// alone decide almost always, which halves the cost.  The lower 32 bits come from stream 1, four elements to a block,
// and are drawn only where the upper ones tie: for one element in 65536.  The outcome is that of all 48 bits.

#pragma once

#include "base/vector.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

struct Words {
    std::uint32_t w[4];
};

inline Words philox(std::uint64_t block, std::uint32_t stream, std::uint64_t seed) {
    std::uint32_t a = static_cast<std::uint32_t>(block), b = static_cast<std::uint32_t>(block >> 32), c = stream, d = 0;
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p = std::uint64_t{0xD2511F53u} * a, q = std::uint64_t{0xCD9E8D57u} * c;
        const std::uint32_t a1 = static_cast<std::uint32_t>(q >> 32) ^ b ^ k0;
        const std::uint32_t c1 = static_cast<std::uint32_t>(p >> 32) ^ d ^ k1;
        b = static_cast<std::uint32_t>(q);
        d = static_cast<std::uint32_t>(p);
        a = a1;
        c = c1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

// The lower 32 bits of the uniform number of one element.
inline std::uint32_t lower32(std::uint64_t index, std::uint64_t seed) {
    return philox(index >> 2, 1, seed).w[index & 3];
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
    const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                  last = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
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
