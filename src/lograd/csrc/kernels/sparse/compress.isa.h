// From elements of G to lists for one instruction set: drawing random numbers, pruning, compressing, scattering, counting.

#pragma once

#include "base/places.isa.h"
#include "kernels/sparse/lists.h"
#include "rounding/pruning.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// Appends the lanes of a vector that are kept; `first` is the place of the first lane.
inline std::size_t append(F lanes, I kept, const std::uint32_t* offsets, std::size_t first, Entry* out,
                          std::uint16_t* places) {
#if defined(__AVX512F__)
    const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __mmask16 mask = _mm512_movepi32_mask(bits<__m512i>(kept));
    const __m512i value = _mm512_maskz_compress_epi32(mask, bits<__m512i>(lanes));
    const __m512i offset = _mm512_maskz_compress_epi32(mask, _mm512_loadu_si512(offsets));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi32(value, low, offset));
    _mm512_storeu_si512(out + 8, _mm512_permutex2var_epi32(value, high, offset));
    const __m512i start = _mm512_set1_epi32(static_cast<int>(first));
    const __m512i place = _mm512_add_epi32(_mm512_maskz_compress_epi32(mask, numbers), start);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places), _mm512_cvtepi32_epi16(place));
    return static_cast<std::size_t>(__builtin_popcount(mask));
#elif defined(__AVX2__)
    const int mask = _mm256_movemask_ps(bits<__m256>(kept));
    const __m128i which = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces.of[mask]));
    const __m256i order = _mm256_cvtepu8_epi32(which);
    const __m256i value = _mm256_permutevar8x32_epi32(bits<__m256i>(lanes), order);
    const __m256i offset = _mm256_permutevar8x32_epi32(load<__m256i>(offsets), order);
    const __m256i low = _mm256_unpacklo_epi32(value, offset), high = _mm256_unpackhi_epi32(value, offset);
    store(out, _mm256_permute2x128_si256(low, high, 0x20));
    store(out + 4, _mm256_permute2x128_si256(low, high, 0x31));
    store(places, _mm_add_epi16(_mm_cvtepu8_epi16(which), _mm_set1_epi16(static_cast<short>(first))));
    return static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(mask)));
#else
    std::size_t found = 0;
    for (std::size_t lane = 0; lane < W; ++lane) {
        out[found] = {lanes[lane], offsets[lane]};
        places[found] = static_cast<std::uint16_t>(first + lane);
        found += kept[lane] != 0;
    }
    return found;
#endif
}

template <bool Prunes>
std::size_t compress_row(const Row& row, const std::uint32_t* offsets, Entry* out, std::uint16_t* places) {
    const Pruning pruning(row.threshold);
    std::size_t found = 0, i = 0;
    U nearest = U{} - 1u;
    for (; i + W <= row.count; i += W) {
        const F x = load<F>(row.x + i);
        if constexpr (Prunes) {
            const I above = pruning.above(x, row.random + i);
            nearest = smaller(nearest, bits<U>(above));
            found += append(pruning.kept(x), above > 1, offsets + i, i, out + found, places + found);
        } else {
            found += append(x, x != 0.0f, offsets + i, i, out + found, places + found);
        }
    }
    if (Prunes && pruning.undecided(nearest)) found = i = 0;  // once more, with all bits
    for (; i < row.count; ++i) {
        const float x = row.x[i];
        const float value = Prunes ? pruning.exactly(x, row.random[i], row.index + i, row.seed) : x;
        out[found] = {value, offsets[i]};
        places[found] = static_cast<std::uint16_t>(i);
        found += value != 0.0f;
    }
    return found;
}

inline std::size_t compress(const Row& row, const std::uint32_t* offsets, Entry* out, std::uint16_t* places) {
    return row.random == nullptr ? compress_row<false>(row, offsets, out, places)
                                 : compress_row<true>(row, offsets, out, places);
}

inline const std::uint16_t* draw(std::uint64_t seed, std::uint64_t index, const float* x, std::size_t n,
                                 std::uint16_t* random) {
    constexpr std::size_t kBlock = 8, kAtOnce = Upper16::kBlocks * kBlock;
    static_assert(kDrawnBesides >= kAtOnce + kBlock);
    const Upper16 upper16(seed);
    const std::size_t lead = index % kBlock;
    for (std::size_t done = 0; done < lead + n; done += kAtOnce) {
        for (std::size_t i = 0; i < kAtOnce; i += 16) __builtin_prefetch(x + done + i);
        upper16(index / kBlock + done / kBlock, random + done);
    }
    return random + lead;
}

inline void scatter(const Entry* from, const std::uint16_t* places, std::size_t n, std::uint32_t offset, Entry* slots,
                    std::size_t pitch, std::uint32_t* lengths) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t place = places[i];
        slots[place * pitch + lengths[place]++] = {from[i].value, offset};
    }
}

inline void count(const float* x, std::size_t n, Found& found) {
    std::size_t i = 0;
    I zeros{}, nans{};
    for (; i + W <= n; i += W) {
        const F v = load<F>(x + i);
        zeros -= v == 0.0f, nans -= v != v;
    }
    for (std::size_t lane = 0; lane < W; ++lane)
        found.zeros_before += static_cast<std::size_t>(zeros[lane]), found.nans += static_cast<std::size_t>(nans[lane]);
    for (; i < n; ++i) found.zeros_before += x[i] == 0.0f, found.nans += x[i] != x[i];
    found.elements += n;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
