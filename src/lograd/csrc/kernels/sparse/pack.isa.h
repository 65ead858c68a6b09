// Pixels of an image to rows of channels and back, for one instruction set.

#pragma once

#include "base/vector.isa.h"
#include "kernels/sparse/lists.h"

namespace lograd {
namespace LOGRAD_ISA {

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
                found =
                    _mm256_or_si256(found, transpose(from, p.channel_stride, rows + first * width + c, width, false));
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

inline void add(const float* x, std::size_t n, float* sums) {
    std::size_t i = 0;
    for (; i + W <= n; i += W) store(sums + i, load<F>(sums + i) + load<F>(x + i));
    for (; i < n; ++i) sums[i] += x[i];
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

}  // namespace LOGRAD_ISA
}  // namespace lograd
