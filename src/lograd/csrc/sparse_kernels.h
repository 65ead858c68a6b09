// Kernels of the sparse products, compiled once per instruction set.  They may fuse multiplication and addition: their
// results depend on the instruction set in the last bits, never on the number of threads.

#pragma once

#include "pruning.h"
#include "sparse_lists.h"
#include "vector.h"

namespace lograd {
namespace LOGRAD_ISA {

inline F multiply_add(F a, F b, F c) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
#elif defined(__FMA__)
    return bits<F>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
#else
    return a * b + c;
#endif
}

inline F broadcast(const float* p) {
#if defined(__AVX512F__)
    return bits<F>(_mm512_set1_ps(*p));
#elif defined(__AVX2__)
    return bits<F>(_mm256_broadcast_ss(p));
#else
    return F{} + *p;
#endif
}

template <int Vectors> void multiply(const Lists& block, const char* panel, float* tile) {
    const Entry* entry = block.entries;
    for (const List *list = block.lists, *last = list + block.count; list != last; ++list) {
        F sums[Vectors];
        for (std::size_t v = 0; v < Vectors * W; v += 16) __builtin_prefetch(tile + list[2].where + v);
        const float* row = reinterpret_cast<const float*>(panel + entry->offset);
        F value = broadcast(&entry->value);
        LOGRAD_UNROLL
        for (int v = 0; v < Vectors; ++v) sums[v] = value * load<F>(row + v * W);
        for (const Entry* end = entry++ + list->length; entry != end; ++entry) {
            row = reinterpret_cast<const float*>(panel + entry->offset);
            value = broadcast(&entry->value);
            LOGRAD_UNROLL
            for (int v = 0; v < Vectors; ++v) sums[v] = multiply_add(value, load<F>(row + v * W), sums[v]);
        }
        float* to = tile + list->where;
        LOGRAD_UNROLL
        for (int v = 0; v < Vectors; ++v) store(to + v * W, load<F>(to + v * W) + sums[v]);
    }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Row m: the places of the bits of m, lowest first.
struct Places {
    std::uint8_t of[256][8];
    constexpr Places() : of() {
        for (int mask = 0; mask < 256; ++mask)
            for (int bit = 0, n = 0; bit < 8; ++bit)
                if (mask >> bit & 1) of[mask][n++] = static_cast<std::uint8_t>(bit);
    }
};
alignas(64) inline constexpr Places kPlaces;
#endif

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

inline void add(const float* x, std::size_t n, float* sums) {
    std::size_t i = 0;
    for (; i + W <= n; i += W) store(sums + i, load<F>(sums + i) + load<F>(x + i));
    for (; i < n; ++i) sums[i] += x[i];
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

// Whether all bits of the exponent are set.
inline U not_finite(F x) { return bits<U>((bits<U>(x) & 0x7f800000u) == 0x7f800000u); }
inline bool not_finite(float x) {
    std::uint32_t word;
    std::memcpy(&word, &x, 4);
    return (word & 0x7f800000u) == 0x7f800000u;
}

#if defined(__AVX2__)
// Eight rows of eight floats, `from` apart, to eight columns, `to` apart; the bits of all of them with a full exponent.
inline __m256i transpose(const float* x, std::size_t from, float* y, std::size_t to, bool sum) {
    __m256 r[8], t[8];
    __m256i bad = _mm256_setzero_si256();
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    LOGRAD_UNROLL
    for (int i = 0; i < 8; ++i) {
        r[i] = _mm256_loadu_ps(x + i * from);
        const __m256i masked = _mm256_and_si256(_mm256_castps_si256(r[i]), exponent);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(masked, exponent));
    }
    LOGRAD_UNROLL
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    LOGRAD_UNROLL
    for (int i = 0; i < 2; ++i) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    LOGRAD_UNROLL
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    LOGRAD_UNROLL
    for (int i = 0; i < 8; ++i) {
        if (sum) t[i] = _mm256_add_ps(t[i], _mm256_loadu_ps(y + i * to));
        _mm256_storeu_ps(y + i * to, t[i]);
    }
    return bad;
}
#endif

// Rows of an image with many channels lie on pages of their own, where the hardware does not look ahead.  No more than
// this many: their lines may share a set of the cache.
constexpr std::size_t kRowsAhead = 6;

inline bool pack(const float* data, const Pixels& p, std::size_t width, float* rows) {
    const std::size_t pixel_stride = p.pixel_stride * p.step;
    U bad{};
    bool scalar_bad = false;
    if (p.channel_stride == 1) {
        for (std::size_t i = 0; i < p.count; ++i) {
            const float* from = data + i * pixel_stride;
            float* to = rows + i * width;
            for (std::size_t c = 0; c < p.channels; c += 16) __builtin_prefetch(from + kRowsAhead * pixel_stride + c);
            std::size_t c = 0;
            for (; c + W <= p.channels; c += W) {
                const F x = load<F>(from + c);
                bad |= not_finite(x);
                store(to + c, x);
            }
            for (; c < p.channels; ++c) scalar_bad |= not_finite(from[c]), to[c] = from[c];
            for (; c < width; ++c) to[c] = 0.0f;
        }
        return scalar_bad | any(bits<I>(bad));
    }
    std::size_t i = 0;
#if defined(__AVX2__)
    if (pixel_stride == 1 && p.count >= 8) {
        __m256i found = _mm256_setzero_si256();
        while (i < p.count) {
            const std::size_t first = i + 8 <= p.count ? i : p.count - 8;  // the last eight may have been there before
            std::size_t c = 0;
            for (; c + 8 <= p.channels; c += 8) {
                const float* from = data + first + c * p.channel_stride;
                found = _mm256_or_si256(found, transpose(from, p.channel_stride, rows + first * width + c, width, false));
            }
            for (std::size_t k = first; k < first + 8; ++k) {
                for (std::size_t rest = c; rest < p.channels; ++rest) {
                    const float x = data[k + rest * p.channel_stride];
                    scalar_bad |= not_finite(x), rows[k * width + rest] = x;
                }
                for (std::size_t rest = p.channels; rest < width; ++rest) rows[k * width + rest] = 0.0f;
            }
            i = first + 8;
        }
        scalar_bad |= !_mm256_testz_si256(found, found);
    }
#endif
    for (; i < p.count; ++i) {
        for (std::size_t c = 0; c < p.channels; ++c) {
            const float x = data[i * pixel_stride + c * p.channel_stride];
            scalar_bad |= not_finite(x), rows[i * width + c] = x;
        }
        for (std::size_t c = p.channels; c < width; ++c) rows[i * width + c] = 0.0f;
    }
    return scalar_bad;
}

inline void unpack(const float* rows, std::size_t width, const Pixels& p, bool sum, float* data) {
    const std::size_t pixel_stride = p.pixel_stride * p.step;
    std::size_t i = 0;
    if (p.channel_stride == 1) {
        for (; i < p.count; ++i) {
            const float* from = rows + i * width;
            float* to = data + i * pixel_stride;
            for (std::size_t c = 0; c < p.channels; c += 16) __builtin_prefetch(to + kRowsAhead * pixel_stride + c, 1);
            if (sum) add(from, p.channels, to);
            else std::memcpy(to, from, p.channels * sizeof(float));
        }
        return;
    }
#if defined(__AVX2__)
    if (pixel_stride == 1) {
        const auto eight = [&](std::size_t first) {
            std::size_t c = 0;
            for (; c + 8 <= p.channels; c += 8)
                transpose(rows + first * width + c, width, data + first + c * p.channel_stride, p.channel_stride, sum);
            for (; c < p.channels; ++c)
                for (std::size_t k = first; k < first + 8; ++k) {
                    float& to = data[k + c * p.channel_stride];
                    to = (sum ? to : 0.0f) + rows[k * width + c];
                }
        };
        for (; i + 8 <= p.count; i += 8) eight(i);
        if (i < p.count && p.count >= 8 && !sum) eight(p.count - 8), i = p.count;  // some of them once more
    }
#endif
    for (; i < p.count; ++i)
        for (std::size_t c = 0; c < p.channels; ++c) {
            float& to = data[i * pixel_stride + c * p.channel_stride];
            to = (sum ? to : 0.0f) + rows[i * width + c];
        }
}

inline const SparseKernels& sparse_table() {
    static const SparseKernels kernels{
        W,
        {nullptr, multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>, multiply<7>, multiply<8>,
         multiply<9>, multiply<10>, multiply<11>, multiply<12>, multiply<13>, multiply<14>},
        draw, compress, scatter, pack, unpack, count};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
