// Rows to codes and back for one instruction set.

#pragma once

#include <type_traits>

#include "kernels/chunks.isa.h"
#include "kernels/rows/rows.h"
#include "rounding/steps.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// The parameters of a chunk.
class Spread {
    static constexpr std::size_t kNone = ~std::size_t{0};
    const RowParameters& rows_;
    std::size_t row_ = kNone, begin_ = 0, end_ = 0;  // the row where the chunk begins
    std::size_t filled_ = kNone;                     // the row that the lists hold throughout

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
    ByUpperBits rule;
    for (std::size_t j = 0; j < kChunk; j += 4 * W) {
        I codes[4];
        LOGRAD_UNROLL
        for (std::size_t k = 0; k < 4; ++k) {
            const F v = load<F>(in + j + k * W);
            // A conversion that fails (NaN, infinity) gives 2^31, which is too much; so is a negative number.
            const I scaled = __builtin_convertvector((v - low) * scale, I);
            most = larger(most, bits<U>(scaled));
            codes[k] = rule(scaled, {random + j + k * W, 0, 0});
        }
        store_bytes(codes, out + j);
    }
    return !rule.tied() && !any(most > static_cast<std::uint32_t>(bins) << 16);
}

// Far beyond any code, and small enough for 16 more bits in an integer.
constexpr float kFar = 512.0f;

// Quantizes chunks: the codes, or the values that they stand for.
template <bool Stochastic, bool Codes> class RowRounder {
    const RowPiece& task_;
    const std::uint64_t first_ = task_.piece.index;
    Spread at_{task_.rows};
    Counts& counts_;

    // Rounds a chunk by the parameters that at_ holds; the lanes with an element outside its range, or NaN.
    template <class Rule>
    LOGRAD_INLINE I round_by(Rule& rule, const float* __restrict in, float* __restrict out, const Draw& draw) const {
        const F top = F{} + task_.bins;
        I outside{};
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F v = load<F>(in + j), scale = load<F>(at_.scale + j), low = load<F>(at_.low + j);
            const F zero = load<F>(at_.zero + j);
            const F steps = (v - low) * scale, near = smaller(magnitude(steps), F{} + kFar);
            constexpr float kUnit = 1u << Rule::kBits;
            const F rounded = as_float(rule(near * kUnit, {draw.upper + j, draw.index + j, draw.seed}));
            const F shifted = bits<F>(bits<U>(rounded) | sign(steps)) + zero;
            const F code = smaller(larger(shifted, F{}), top);
            if constexpr (Codes) store(out + j, code);
            else store(out + j, (code - zero) / scale + low);
            outside |= ~((v >= load<F>(at_.smallest + j)) & (v <= load<F>(at_.largest + j)));
        }
        return outside;
    }

    // Some elements lie outside their range, or are NaN and get what stands for it.
    void count_outside(const float* in, float* out) {
        const F nan_code = F{} + (task_.bins < 255.0f ? 255.0f : 0.0f);
        I clipped{}, nans{};
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F v = load<F>(in + j);
            const I is_nan = v != v;
            store(out + j, select(is_nan, Codes ? nan_code : v, load<F>(out + j)));
            clipped -= (v < load<F>(at_.smallest + j)) | (v > load<F>(at_.largest + j));
            nans -= is_nan;
        }
        for (std::size_t k = 0; k < W; ++k) counts_.clipped += clipped[k], counts_.nans += nans[k];
    }

public:
    RowRounder(const RowPiece& task, Counts& counts) : task_(task), counts_(counts) {}

    void chunk(const float* in, float* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        at_.fill(task_.position + static_cast<std::size_t>(first - first_), valid);
        const Draw draw{random, first, task_.piece.seed};
        if (any(round_chunk<Stochastic>([&](auto& rule) { return round_by(rule, in, out, draw); })))
            count_outside(in, out);
        if constexpr (!Codes) {
            std::int64_t zeros = 0;
            for (std::size_t k = 0; k < valid; ++k) zeros += out[k] == 0.0f;
            counts_.zeros += zeros;
        }
    }

    // Whole chunks of codes often go the short way.
    void chunk(const float* in, Code* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        const RowParameters& rows = task_.rows;
        if (Stochastic && at_.move_to(task_.position + static_cast<std::size_t>(first - first_), valid) &&
            rows.zero[at_.row()] == 0.0f &&
            sample_codes(in, out, random, rows.low[at_.row()], rows.scale[at_.row()], task_.bins))
            return;
        alignas(64) float codes[kChunk];
        chunk(in, codes, random, first, valid);
        narrow(codes, out, kChunk);
    }
};

template <bool Stochastic, bool Codes, class In, class Out>
void quantize_rows_as(const In* x, Out* y, const RowPiece& task, Counts& counts) {
    RowRounder<Stochastic, Codes> rounder(task, counts);
    const Piece& p = task.piece;
    for_chunks<Stochastic>(
        x, y, p.count, p.index, p.seed, Writes::kBuffered,
        [&](auto, const float* in, auto* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        if (task.ahead != 0) {
            const In* next = x + static_cast<std::size_t>(first - p.index) + task.ahead;
            for (std::size_t j = 0; j < kChunk; j += 64 / sizeof(In)) __builtin_prefetch(next + j);
        }
        rounder.chunk(in, out, random, first, valid);
    });
}

inline void quantize_rows(const RowPiece& task, Counts& counts) {
    with_type(task.piece.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        const T* x = static_cast<const T*>(task.piece.x);
        T* y = static_cast<T*>(task.piece.y);
        Code* c = static_cast<Code*>(task.piece.y);
        if (task.stochastic && task.codes) quantize_rows_as<true, true>(x, c, task, counts);
        else if (task.stochastic) quantize_rows_as<true, false>(x, y, task, counts);
        else if (task.codes) quantize_rows_as<false, true>(x, c, task, counts);
        else quantize_rows_as<false, false>(x, y, task, counts);
    });
}

inline void dequantize_rows(const RowPiece& task) {
    Spread at(task.rows);
    const Piece& p = task.piece;
    const F nan_code = F{} + (task.bins < 255.0f ? 255.0f : -1.0f), nan = F{} + __builtin_nanf("");
    with_type(p.type, [&](auto* tag) {
        using T = std::remove_pointer_t<decltype(tag)>;
        for_chunks<false>(
            static_cast<const Code*>(p.x), static_cast<T*>(p.y), p.count, 0, 0, Writes::kBuffered,
            [&](auto, const float* in, float* out, const std::uint16_t*, std::uint64_t first, std::size_t valid) {
            at.fill(task.position + static_cast<std::size_t>(first), valid);
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F code = load<F>(in + j);
                const F value = (code - load<F>(at.zero + j)) / load<F>(at.scale + j) + load<F>(at.low + j);
                store(out + j, select(code == nan_code, nan, value));
            }
        });
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
