// The passes of rows.h, compiled once per instruction set.  As in chunks.h: no function template of the standard library.

#pragma once

#include "elementwise.h"
#include "rows.h"

namespace lograd {
namespace LOGRAD_ISA {

// A comparison with NaN is false, so NaN never becomes a bound; infinities do, and are sorted out by a second look.
template <class T> void range_of(const T* x, std::size_t n, Range& range) {
    constexpr float kInfinity = __builtin_inff();
    F low0 = F{} + kInfinity, low1 = low0, high0 = F{} - kInfinity, high1 = high0;
    I nan{};
    alignas(64) float buffer[kChunk];
    for (std::size_t done = 0; done < n; done += kChunk) {
        const std::size_t count = n - done < kChunk ? n - done : kChunk;
        const float* in = buffer;
        if (std::is_same_v<T, float> && count == kChunk) {
            in = reinterpret_cast<const float*>(x + done);
        } else {
            widen(x + done, buffer, count);
            for (std::size_t j = count; j % (2 * W) != 0; ++j) buffer[j] = buffer[count - 1];
        }
        for (std::size_t j = 0; j < count; j += 2 * W) {
            const F a = load<F>(in + j), b = load<F>(in + j + W);
            low0 = smaller(a, low0), low1 = smaller(b, low1);
            high0 = larger(a, high0), high1 = larger(b, high1);
            nan |= either_nan(a, b);
        }
    }
    // Halves against halves: a chain of comparisons would cost more than a short row.
    alignas(64) float lows[W], highs[W];
    store(lows, smaller(low0, low1)), store(highs, larger(high0, high1));
    for (std::size_t half = W / 2; half != 0; half /= 2) {
        for (std::size_t k = 0; k < half; ++k) {
            lows[k] = lows[k + half] < lows[k] ? lows[k + half] : lows[k];
            highs[k] = highs[k + half] > highs[k] ? highs[k + half] : highs[k];
        }
    }
    float low = lows[0], high = highs[0];
    if (low == -kInfinity || high == kInfinity) {
        low = kInfinity, high = -kInfinity;
        for (std::size_t i = 0; i < n; ++i) {
            float value;
            widen(x + i, &value, 1);
            if (!(std::fabs(value) < kInfinity)) continue;
            low = value < low ? value : low, high = value > high ? value : high;
        }
    }
    range = {low, high, any(nan)};
}

inline void range(Type type, const void* x, std::size_t count, Range& out) {
    with_type(type, [&](auto* tag) { range_of(static_cast<decltype(tag)>(const_cast<void*>(x)), count, out); });
}

// The parameters of a chunk.
class Spread {
    static constexpr std::size_t kNone = ~std::size_t{0};
    const RowParameters& rows_;
    std::size_t row_ = kNone, begin_ = 0, end_ = 0;  // the row where the chunk begins
    std::size_t filled_ = kNone;                      // the row that the lists hold throughout

public:
    // Element by element, after `fill`.
    alignas(64) float scale[kChunk], low[kChunk], zero[kChunk], smallest[kChunk], largest[kChunk];

    explicit Spread(const RowParameters& rows) : rows_(rows) {}

    // True if one row fills the chunk at this position.  Elements from `valid` on are padding.
    bool move_to(std::size_t position, std::size_t valid) {
        if (position < begin_ || position >= end_) {
            row_ = position / rows_.columns;
            begin_ = row_ * rows_.columns;
            end_ = begin_ + rows_.columns;
        }
        return valid == kChunk && position + kChunk <= end_;
    }

    std::size_t row() const { return row_; }

    // Written anew only where the row changes, so that rows of any length cost the same.
    void fill(std::size_t position, std::size_t valid) {
        const bool whole = move_to(position, valid);
        if (whole && row_ == filled_) return;
        filled_ = whole ? row_ : kNone;
        std::size_t row = row_, end = end_ - position;
        for (std::size_t j = 0; j < valid; end += rows_.columns, ++row) {
            const float a = rows_.scale[row], b = rows_.low[row], c = rows_.zero[row];
            const float d = rows_.smallest[row], e = rows_.largest[row];
            for (; j < end && j < valid; ++j) scale[j] = a, low[j] = b, zero[j] = c, smallest[j] = d, largest[j] = e;
        }
        for (std::size_t j = valid; j < kChunk; ++j) {
            scale[j] = 1.0f, low[j] = zero[j] = 0.0f;
            smallest[j] = -__builtin_inff(), largest[j] = __builtin_inff();
        }
    }
};

// The codes of a chunk of one row whose zero is 0, where all its elements lie inside the range and no random number ties.
// Else false, and nothing is promised: the general way does it again.
inline bool sample_codes(const float* __restrict in, Code* out, const std::uint16_t* random, float low_, float scale_,
                         float bins) {
#ifndef __SSE2__
    return false;  // other conversions do not say that they failed
#endif
    if (!(scale_ < 0x1p100f)) return false;
    const F low = F{} + low_, scale = F{} + scale_ * 65536.0f;
    U most{};
    Ties ties;
    for (std::size_t j = 0; j < kChunk; j += 4 * W) {
        I codes[4];
        LOGRAD_UNROLL
        for (std::size_t k = 0; k < 4; ++k) {
            const F v = load<F>(in + j + k * W);
            // A conversion that fails (NaN, infinity) gives 2^31, which is too much; so is a negative number.
            const I steps = __builtin_convertvector((v - low) * scale, I), sum = steps + random_ints(random + j + k * W);
            most = larger(most, bits<U>(steps));
            ties.add(sum);
            codes[k] = sum >> 16;
        }
        store_bytes(codes, out + j);
    }
    return !ties && !any(most > static_cast<std::uint32_t>(bins) << 16);
}

// Far beyond any code, and small enough for 16 more bits in an integer.
constexpr float kFar = 512.0f;

// Rounds 0 <= steps <= kFar: nearest (ties to even), or up if the fraction plus U reaches 1.
template <bool Stochastic> struct RowRounder {
    Ties ties;

    F operator()(F steps, const std::uint16_t* random) {
        if constexpr (Stochastic) {
            // The upper 16 bits of U and those of the fraction; where they lack one unit the rest of both decides.
            const I sum = __builtin_convertvector(steps * 65536.0f, I) + random_ints(random);
            ties.add(sum);
            return __builtin_convertvector(sum >> 16, F);
        } else {
            return (steps + 0x1p23f) - 0x1p23f;
        }
    }
};

template <bool Stochastic, bool Codes, class In, class Out>
void quantize_rows_as(const In* x, Out* y, const Piece& p, std::size_t position, std::size_t ahead,
                      const RowParameters& rows, float bins, RowCounts& counts) {
    Spread at(rows);
    const auto general = [&](const float* __restrict in, float* __restrict out, const std::uint16_t* random,
                             std::uint64_t first, std::size_t valid) {
        at.fill(position + static_cast<std::size_t>(first - p.index), valid);
        const F top = F{} + bins, nan_code = F{} + (bins < 255.0f ? 255.0f : 0.0f);
        RowRounder<Stochastic> rounder;
        I outside{};
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F v = load<F>(in + j), scale = load<F>(at.scale + j), low = load<F>(at.low + j);
            const F zero = load<F>(at.zero + j);
            const F steps = (v - low) * scale;
            const F rounded = rounder(smaller(magnitude(steps), F{} + kFar), random + j);
            const F shifted = bits<F>(bits<U>(rounded) | sign(steps)) + zero;
            const F code = smaller(larger(shifted, F{}), top);
            if constexpr (Codes) store(out + j, code);
            else store(out + j, (code - zero) / scale + low);
            outside |= ~((v >= load<F>(at.smallest + j)) & (v <= load<F>(at.largest + j)));
        }
        if constexpr (Stochastic) {
            for (std::size_t k = 0; k < valid && rounder.ties; ++k) {
                if (in[k] != in[k]) continue;
                const float steps = (in[k] - at.low[k]) * at.scale[k], m = std::fabs(steps);
                const float rounded = round_exactly(m < kFar ? m : kFar, random[k], first + k, p.seed);
                const float shifted = std::copysign(rounded, steps) + at.zero[k];
                const float code = shifted < 0.0f ? 0.0f : shifted > bins ? bins : shifted;
                out[k] = Codes ? code : (code - at.zero[k]) / at.scale[k] + at.low[k];
            }
        }
        if (any(outside)) {
            I clipped{}, nans{};
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F v = load<F>(in + j);
                const I is_nan = v != v;
                store(out + j, select(is_nan, Codes ? nan_code : v, load<F>(out + j)));
                clipped -= (v < load<F>(at.smallest + j)) | (v > load<F>(at.largest + j));
                nans -= is_nan;
            }
            for (std::size_t k = 0; k < W; ++k) counts.clipped += clipped[k], counts.nans += nans[k];
        }
        if constexpr (!Codes) {
            std::int64_t zeros = 0;
            for (std::size_t k = 0; k < valid; ++k) zeros += out[k] == 0.0f;
            counts.zeros += zeros;
        }
    };
    for_chunks<Stochastic>(
        x, y, p.count, p.index, p.seed, Writes::kBuffered,
        [&](auto, const float* in, auto* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
            const std::size_t done = static_cast<std::size_t>(first - p.index);
            if (ahead != 0)
                for (std::size_t j = 0; j < kChunk; j += 64 / sizeof(In)) __builtin_prefetch(x + done + ahead + j);
            if constexpr (std::is_same_v<decltype(out), Code*>) {
                if (Stochastic && at.move_to(position + done, valid) && rows.zero[at.row()] == 0.0f &&
                    sample_codes(in, out, random, rows.low[at.row()], rows.scale[at.row()], bins))
                    return;
                alignas(64) float codes[kChunk];
                general(in, codes, random, first, valid);
                narrow(codes, out, kChunk);
            } else {
                general(in, out, random, first, valid);
            }
        });
}

inline void quantize_rows(const Piece& p, std::size_t position, std::size_t ahead, const RowParameters& rows, float bins,
                          bool stochastic, bool codes, RowCounts& counts) {
    with_type(p.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        const T* x = static_cast<const T*>(p.x);
        T* y = static_cast<T*>(p.y);
        Code* c = static_cast<Code*>(p.y);
        if (stochastic && codes) quantize_rows_as<true, true>(x, c, p, position, ahead, rows, bins, counts);
        else if (stochastic) quantize_rows_as<true, false>(x, y, p, position, ahead, rows, bins, counts);
        else if (codes) quantize_rows_as<false, true>(x, c, p, position, ahead, rows, bins, counts);
        else quantize_rows_as<false, false>(x, y, p, position, ahead, rows, bins, counts);
    });
}

inline void dequantize_rows(const Piece& p, std::size_t position, const RowParameters& rows, float bins) {
    Spread at(rows);
    const F nan_code = F{} + (bins < 255.0f ? 255.0f : -1.0f), nan = F{} + __builtin_nanf("");
    with_type(p.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        for_chunks<false>(
            static_cast<const Code*>(p.x), static_cast<T*>(p.y), p.count, 0, 0, Writes::kBuffered,
            [&](auto, const float* in, float* out, const std::uint16_t*, std::uint64_t first, std::size_t valid) {
                at.fill(position + static_cast<std::size_t>(first), valid);
                for (std::size_t j = 0; j < kChunk; j += W) {
                    const F code = load<F>(in + j);
                    const F value = (code - load<F>(at.zero + j)) / load<F>(at.scale + j) + load<F>(at.low + j);
                    store(out + j, select(code == nan_code, nan, value));
                }
            });
    });
}

// Columns at once: long enough a run of each row for the prefetcher, short enough for the sums to stay in the L1 cache.
constexpr std::size_t kColumns = 1024;

// Element j of x and of y may share an address, others do not: the loops below are free of dependences.
#define LOGRAD_INDEPENDENT _Pragma("GCC ivdep")

template <bool Inverse, class In, class Out>
void reflect_block(const Reflection& r, const In* x, Out* y, std::size_t column, std::size_t count, RowCounts& counts) {
    alignas(64) float buffer[kColumns], head[kColumns];
    alignas(64) double sum[kColumns], t[kColumns];
    const auto read = [&](std::size_t p) -> const float* {
        const In* from = x + static_cast<std::size_t>(r.order[p]) * r.columns + column;
        if constexpr (std::is_same_v<In, float>) return from;
        widen(from, buffer, count);
        return buffer;
    };
    for (std::size_t begin = 0, end; begin < r.rows; begin = end) {
        for (end = begin + 1; end < r.rows && static_cast<std::size_t>(r.first[end]) == begin;) ++end;
        const double share = r.share[begin], factor = end - begin > 1 ? 1.0 / (1.0 - share) : 0.0;
        for (std::size_t j = 0; j < count; ++j) sum[j] = 0.0;
        for (std::size_t p = begin; p < end; ++p) {
            const float* z = read(p);
            const std::size_t row = static_cast<std::size_t>(r.order[p]);
            const float stretch = Inverse ? 1.0f : r.stretch[p];
            const float low = Inverse ? 0.0f : r.smallest[row], high = Inverse ? 0.0f : r.largest[row];
            std::int32_t clipped = 0;
            for (std::size_t j = 0; j < count; ++j) {
                float value = z[j];
                if constexpr (!Inverse) {
                    clipped += (value < low) | (value > high);
                    value = (value < low ? low : value > high ? high : value) * stretch;
                }
                if (p == begin) head[j] = value;
                sum[j] += value;
            }
            counts.clipped += clipped;
        }
        for (std::size_t j = 0; j < count; ++j) t[j] = (sum[j] * share - head[j]) * factor;
        for (std::size_t p = begin; p < end; ++p) {
            const float* z = read(p);
            const std::size_t row = static_cast<std::size_t>(r.order[p]);
            const float low = Inverse ? 0.0f : r.smallest[row], high = Inverse ? 0.0f : r.largest[row];
            const float stretch = r.stretch[p];
            const double v = p == begin ? share - 1.0 : share;
            Out* to = y + row * r.columns + column;
            float* result = buffer;
            if constexpr (std::is_same_v<Out, float>) result = to;
            LOGRAD_INDEPENDENT
            for (std::size_t j = 0; j < count; ++j) {
                float value = z[j];
                if constexpr (!Inverse) value = (value < low ? low : value > high ? high : value) * stretch;
                value = static_cast<float>(value - v * t[j]);
                if constexpr (Inverse) value /= stretch;
                result[j] = value;
            }
            if constexpr (Inverse) {
                std::int32_t zeros = 0, nans = 0;
                for (std::size_t j = 0; j < count; ++j) zeros += result[j] == 0.0f, nans += result[j] != result[j];
                counts.zeros += zeros, counts.nans += nans;
            }
            if constexpr (!std::is_same_v<Out, float>) narrow(result, to, count);
        }
    }
}

inline void reflect(const Reflection& r, std::size_t begin, std::size_t end, RowCounts& counts) {
    with_type(r.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        for (std::size_t column = begin; column < end; column += kColumns) {
            const std::size_t count = end - column < kColumns ? end - column : kColumns;
            if (r.inverse)
                reflect_block<true>(r, static_cast<const float*>(r.x), static_cast<T*>(r.y), column, count, counts);
            else
                reflect_block<false>(r, static_cast<const T*>(r.x), static_cast<float*>(r.y), column, count, counts);
        }
    });
}

inline const RowKernels& row_table() {
    static const RowKernels kernels{range, quantize_rows, dequantize_rows, reflect};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
