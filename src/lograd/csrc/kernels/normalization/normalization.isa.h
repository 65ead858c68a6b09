// Passes over images for BatchNorm, in vectors of channels or of places.

#pragma once

#include "base/vector.isa.h"
#include "kernels/normalization/normalization.h"

namespace lograd {
namespace LOGRAD_ISA {

// Half as many lanes, and as many of double the width.
constexpr std::size_t kDoubles = W / 2;
typedef float Fh __attribute__((vector_size(kDoubles * 4)));
typedef std::int32_t Ih __attribute__((vector_size(kDoubles * 4)));
typedef double D __attribute__((vector_size(kDoubles * 8)));
typedef float F4 __attribute__((vector_size(16)));
typedef std::int32_t I4 __attribute__((vector_size(16)));
typedef double D4 __attribute__((vector_size(32)));

// Rows r with equal r % 4 have a sum of their own, of each channel.
constexpr std::size_t kSums = 4;
// Rows of about so many elements stay in the L1 cache while all their channels are summed, a few at a time.
constexpr std::size_t kElementsTogether = 1024;

// The bits of a mask from this one on; the lowest 25 are right.
LOGRAD_INLINE std::uint32_t bits_at(const std::uint8_t* mask, std::size_t bit) {
    return load<std::uint32_t>(mask + bit / 8) >> bit % 8;
}
// All bits of a lane that has its bit in the word.
template <class V> LOGRAD_INLINE V lanes_of(std::uint32_t word) {
    V lane;
    LOGRAD_UNROLL
    for (std::size_t i = 0; i < sizeof(V) / 4; ++i) lane[i] = 1 << i;
    return (lane & static_cast<std::int32_t>(word)) != 0;
}
LOGRAD_INLINE std::uint32_t word_of(I mask) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask(bits<__m512i>(mask));
#elif defined(__AVX2__)
    return static_cast<std::uint32_t>(_mm256_movemask_ps(bits<__m256>(mask)));
#else
    std::uint32_t word = 0;
    LOGRAD_UNROLL
    for (std::size_t i = 0; i < W; ++i) word |= (static_cast<std::uint32_t>(mask[i]) & 1u) << i;
    return word;
#endif
}
LOGRAD_INLINE void put(BitWriter& out, std::uint32_t word, std::size_t count) {
    if (out.held == 0 && count == W) {  // whole bytes
        std::memcpy(out.to, &word, W / 8);
        out.to += W / 8;
        return;
    }
    out.word |= std::uint64_t{word} << out.held;
    for (out.held += static_cast<unsigned>(count); out.held >= 8; out.held -= 8, out.word >>= 8)
        *out.to++ = static_cast<std::uint8_t>(out.word);
}

// The elements of a that count, as V; they are written where somebody wants them.
template <class V, class M, bool Masked, bool Keeps> LOGRAD_INLINE V counted(const ProductSums& p, std::size_t at) {
    V a = load<V>(p.a + at);
    if (Masked) a = bits<V>(bits<M>(a) & lanes_of<M>(bits_at(p.mask, p.bit + at)));
    if (Keeps) store(p.masked + at, a);
    return a;
}
template <bool Masked, bool Keeps> LOGRAD_INLINE float counted_one(const ProductSums& p, std::size_t at) {
    float a = p.a[at];
    if (Masked && !(bits_at(p.mask, p.bit + at) & 1u)) a = 0.0f;
    if (Keeps) p.masked[at] = a;
    return a;
}

// Adds rows from `row` on to the lanes, of a few channels, and asks for the elements `ahead`.
template <bool Masked, bool Keeps, bool Squares>
LOGRAD_INLINE void add_rows(const ProductSums& p, std::size_t row, std::size_t rows, std::size_t channels,
                            std::size_t channel, std::size_t ahead, double* lanes) {
    D first[kSums], second[kSums];
    LOGRAD_UNROLL
    for (std::size_t j = 0; j < kSums; ++j) {
        first[j] = load<D>(lanes + 2 * j * channels + channel);
        second[j] = load<D>(lanes + (2 * j + 1) * channels + channel);
    }
    const auto add = [&](std::size_t at, D& one, D& two) __attribute__((always_inline)) {
        __builtin_prefetch(p.a + at + ahead);
        if (!Squares) __builtin_prefetch(p.b + at + ahead);
        const D a = __builtin_convertvector((counted<Fh, Ih, Masked, Keeps>(p, at)), D);
        one += a, two += a * (Squares ? a : __builtin_convertvector(load<Fh>(p.b + at), D));
    };
    std::size_t r = row;
    for (; r + kSums <= row + rows; r += kSums) {
        LOGRAD_UNROLL
        for (std::size_t j = 0; j < kSums; ++j) add((r + j) * channels + channel, first[j], second[j]);
    }
    LOGRAD_UNROLL
    for (std::size_t j = 0; j < kSums; ++j)
        if (r + j < row + rows) add((r + j) * channels + channel, first[j], second[j]);
    LOGRAD_UNROLL
    for (std::size_t j = 0; j < kSums; ++j) {
        store(lanes + 2 * j * channels + channel, first[j]);
        store(lanes + (2 * j + 1) * channels + channel, second[j]);
    }
}

template <bool Masked, bool Keeps, bool Squares>
inline void row_sums_of(const ProductSums& p, std::size_t rows, std::size_t channels, double* lanes, double* sums) {
    for (std::size_t k = 0; k < 2 * kSums * channels; ++k) lanes[k] = 0.0;
    const std::size_t whole = channels / kDoubles * kDoubles;
    const std::size_t few = kElementsTogether / channels / kSums * kSums;
    const std::size_t together = few > kSums ? few : kSums;
    for (std::size_t row = 0; row < rows; row += together) {
        const std::size_t now = rows - row < together ? rows - row : together;
        for (std::size_t c = 0; c < whole; c += kDoubles)
            add_rows<Masked, Keeps, Squares>(p, row, now, channels, c, together * channels, lanes);
        for (std::size_t r = row; r < row + now; ++r) {
            double* lane = lanes + 2 * (r % kSums) * channels;
            for (std::size_t c = whole; c < channels; ++c) {
                const double a = counted_one<Masked, Keeps>(p, r * channels + c);
                lane[c] += a, lane[channels + c] += a * static_cast<double>(p.b[r * channels + c]);
            }
        }
    }
    const std::size_t both = 2 * channels;
    for (std::size_t k = 0; k < both; ++k)
        sums[k] = (lanes[k] + lanes[both + k]) + (lanes[2 * both + k] + lanes[3 * both + k]);
}

template <bool Masked, bool Keeps> inline void plane_sums_of(const ProductSums& p, std::size_t places, double* sums) {
    D4 first{}, second{};
    std::size_t k = 0;
    for (; k + kSums <= places; k += kSums) {
        const D4 a = __builtin_convertvector((counted<F4, I4, Masked, Keeps>(p, k)), D4);
        first += a, second += a * __builtin_convertvector(load<F4>(p.b + k), D4);
    }
    for (std::size_t j = 0; k + j < places; ++j) {
        const double a = counted_one<Masked, Keeps>(p, k + j);
        first[j] += a, second[j] += a * static_cast<double>(p.b[k + j]);
    }
    sums[0] = (first[0] + first[1]) + (first[2] + first[3]);
    sums[1] = (second[0] + second[1]) + (second[2] + second[3]);
}

inline void row_sums(const ProductSums& p, std::size_t rows, std::size_t channels, double* lanes, double* sums) {
    if (p.a == p.b) row_sums_of<false, false, true>(p, rows, channels, lanes, sums);
    else if (p.mask == nullptr) row_sums_of<false, false, false>(p, rows, channels, lanes, sums);
    else if (p.masked == nullptr) row_sums_of<true, false, false>(p, rows, channels, lanes, sums);
    else row_sums_of<true, true, false>(p, rows, channels, lanes, sums);
}
inline void plane_sums(const ProductSums& p, std::size_t places, double* sums) {
    if (p.mask == nullptr) plane_sums_of<false, false>(p, places, sums);
    else if (p.masked == nullptr) plane_sums_of<true, false>(p, places, sums);
    else plane_sums_of<true, true>(p, places, sums);
}

// Walks over elements W at a time; visit(at, phase, count) does those from `at` on, of which `count` exist.
template <bool Alone, class Visit>
LOGRAD_INLINE void over_elements(const ChannelTables& t, std::size_t count, Visit visit) {
    std::size_t phase = t.phase, k = 0;
    for (; k + W <= count; k += W) {
        visit(k, phase, W);
        if (!Alone) {
            phase += W;
            if (phase >= t.period) phase -= t.period;
        }
    }
    if (k < count) visit(k, phase, count - k);
}
template <bool Alone> LOGRAD_INLINE F channels_at(const float* table, std::size_t phase) {
    return Alone ? F{} + *table : load<F>(table + phase);
}
LOGRAD_INLINE F some_of(const float* x, std::size_t count) {
    if (count == W) return load<F>(x);
    F v{};
    std::memcpy(&v, x, count * sizeof(float));
    return v;
}
LOGRAD_INLINE bool streams_to(const ChannelTables& t, const float* y) {
    return t.past_cache && reinterpret_cast<std::uintptr_t>(y) % sizeof(F) == 0;
}
LOGRAD_INLINE void put_some(float* y, F v, std::size_t count, bool streams) {
    if (count == W && streams) stream(y, v);
    else if (count == W) store(y, v);
    else std::memcpy(y, &v, count * sizeof(float));
}

template <bool Alone, bool Adds, bool Rectifies>
inline void normalize_all(const ChannelTables& t, const float* x, const float* residual, float* y, std::size_t count,
                          BitWriter* mask) {
    const bool streams = streams_to(t, y);
    BitWriter out = Rectifies ? *mask : BitWriter{};
    over_elements<Alone>(t, count, [&](std::size_t k, std::size_t phase, std::size_t n) __attribute__((always_inline)) {
        F v = some_of(x + k, n) - channels_at<Alone>(t.mean, phase);
        v = v * channels_at<Alone>(t.first, phase) + channels_at<Alone>(t.second, phase);
        if (Adds) v = v + some_of(residual + k, n);
        if (Rectifies) {
            const I stopped = v <= 0.0f;  // a NaN passes, as in PyTorch
            put(out, ~word_of(stopped) & ((1u << n) - 1u), n);
            v = bits<F>(bits<I>(v) & ~stopped);
        }
        put_some(y + k, v, n, streams);
    });
    if (Rectifies) *mask = out;
}

template <bool Alone>
inline void normalize_as(const ChannelTables& t, const float* x, const float* residual, float* y, std::size_t count,
                         BitWriter* mask) {
    if (residual == nullptr && mask == nullptr) normalize_all<Alone, false, false>(t, x, residual, y, count, mask);
    else if (residual == nullptr) normalize_all<Alone, false, true>(t, x, residual, y, count, mask);
    else if (mask == nullptr) normalize_all<Alone, true, false>(t, x, residual, y, count, mask);
    else normalize_all<Alone, true, true>(t, x, residual, y, count, mask);
}
inline void normalize(const ChannelTables& t, const float* x, const float* residual, float* y, std::size_t count,
                      BitWriter* mask) {
    if (t.alone) normalize_as<true>(t, x, residual, y, count, mask);
    else normalize_as<false>(t, x, residual, y, count, mask);
}

template <bool Alone, bool Masked>
inline void input_gradient_all(const ChannelTables& t, const float* factor, const ProductSums& p, float* d_x,
                               std::size_t count) {
    const bool streams = streams_to(t, d_x);
    over_elements<Alone>(t, count, [&](std::size_t k, std::size_t phase, std::size_t n) __attribute__((always_inline)) {
        F g = some_of(p.a + k, n);
        if (Masked) g = bits<F>(bits<I>(g) & lanes_of<I>(bits_at(p.mask, p.bit + k)));
        const F centred = some_of(p.b + k, n) - channels_at<Alone>(t.mean, phase);
        const F left = (g - channels_at<Alone>(t.second, phase)) - centred * channels_at<Alone>(factor, phase);
        put_some(d_x + k, left * channels_at<Alone>(t.first, phase), n, streams);
    });
}
inline void input_gradient(const ChannelTables& t, const float* factor, const ProductSums& p, float* d_x,
                           std::size_t count) {
    if (t.alone && p.mask == nullptr) input_gradient_all<true, false>(t, factor, p, d_x, count);
    else if (t.alone) input_gradient_all<true, true>(t, factor, p, d_x, count);
    else if (p.mask == nullptr) input_gradient_all<false, false>(t, factor, p, d_x, count);
    else input_gradient_all<false, true>(t, factor, p, d_x, count);
}

inline constexpr NormalizationKernels kNormalization{row_sums, plane_sums, normalize, input_gradient};

}  // namespace LOGRAD_ISA
}  // namespace lograd
