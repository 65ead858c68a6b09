// Ranges and codes of a run of elements for one instruction set.

#pragma once

#include <type_traits>

#include "kernels/chunks.isa.h"
#include "kernels/levels/levels.h"
#include "rounding/steps.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

static_assert(kChunk <= kFoldTail);
typedef std::uint8_t Bytes __attribute__((vector_size(W * 4)));

// The factors of a chunk, side by side.
class Factors {
    const LevelFold* fold_;
    std::size_t position_ = ~std::size_t{0}, at_ = 0;  // the chunk that is to come next, and its channel
    std::size_t filled_ = ~std::size_t{0};             // the channel that the buffer holds throughout
    alignas(64) float buffer_[kChunk];

public:
    explicit Factors(const LevelFold* fold) : fold_(fold) {}

    const float* operator()(std::size_t position) {
        const std::size_t channels = fold_->channels, inner = fold_->inner;
        if (inner != 1) return spread(position, channels, inner);
        if (position != position_) at_ = position % channels;
        const float* found = fold_->factors + at_;
        position_ = position + kChunk, at_ += kChunk;
        if (at_ >= channels) at_ %= channels;
        return found;
    }

private:
    const float* spread(std::size_t position, std::size_t channels, std::size_t inner) {
        std::size_t channel = position / inner % channels, left = inner - position % inner;
        if (left >= kChunk && channel == filled_) return buffer_;
        filled_ = left >= kChunk ? channel : ~std::size_t{0};
        for (std::size_t j = 0; j < kChunk; left = inner, channel = channel + 1 == channels ? 0 : channel + 1) {
            const std::size_t stop = left < kChunk - j ? j + left : kChunk;
            for (const float factor = fold_->factors[channel]; j < stop; ++j) buffer_[j] = factor;
        }
        return buffer_;
    }
};

// Smallest and largest of the finite elements.
class Bounds {
    static constexpr float kInfinity = __builtin_inff();
    F low_ = F{} + kInfinity, high_ = F{} - kInfinity;

public:
    bool finite = true;

    LOGRAD_INLINE void add(F low, F high) { low_ = smaller(low, low_), high_ = larger(high, high_); }

    // A chunk with a NaN or an infinity among its elements.
    template <bool Fold> void add_finite(const float* in, const float* factors) {
        I wrong{};
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F z = Fold ? load<F>(in + j) * load<F>(factors + j) : load<F>(in + j);
            const I proper = magnitude(z) < kInfinity;
            wrong |= ~proper;
            add(select(proper, z, F{} + kInfinity), select(proper, z, F{} - kInfinity));
        }
        finite = finite && !any(wrong);
    }

    void store_to(LevelsSeen& seen) const {
        seen.low = kInfinity, seen.high = -kInfinity, seen.finite = finite;
        for (std::size_t k = 0; k < W; ++k) {
            seen.low = low_[k] < seen.low ? low_[k] : seen.low;
            seen.high = high_[k] > seen.high ? high_[k] : seen.high;
        }
    }
};

template <bool Fold, class T> void level_range_as(const T* x, const LevelRun& run, LevelsSeen& seen) {
    constexpr float kInfinity = __builtin_inff();
    Bounds bounds;
    Factors factors(run.fold);
    alignas(64) float buffer[kChunk], last[kChunk];
    const std::size_t n = run.piece.count;
    for (std::size_t done = 0; done < n; done += kChunk) {
        const std::size_t count = n - done < kChunk ? n - done : kChunk;
        const float* in = buffer;
        const float* by = Fold ? factors(run.position + done) : nullptr;
        if (std::is_same_v<T, float> && count == kChunk) {
            in = reinterpret_cast<const float*>(x + done);
        } else {
            widen(x + done, buffer, count);
            for (std::size_t j = count; j < kChunk; ++j) buffer[j] = buffer[count - 1];
        }
        if (Fold && count < kChunk) {
            for (std::size_t j = 0; j < kChunk; ++j) last[j] = by[j < count ? j : count - 1];
            by = last;
        }
        F low0 = F{} + kInfinity, low1 = low0, high0 = F{} - kInfinity, high1 = high0;
        I nan{};
        LOGRAD_UNROLL
        for (std::size_t j = 0; j < kChunk; j += 2 * W) {
            F a = load<F>(in + j), b = load<F>(in + j + W);
            if constexpr (Fold) a *= load<F>(by + j), b *= load<F>(by + j + W);
            low0 = smaller(a, low0), low1 = smaller(b, low1);
            high0 = larger(a, high0), high1 = larger(b, high1);
            nan |= either_nan(a, b);
        }
        const F low = smaller(low0, low1), high = larger(high0, high1);
        if (__builtin_expect(any(nan | (low == -kInfinity) | (high == kInfinity)), 0))
            bounds.template add_finite<Fold>(in, by);
        else bounds.add(low, high);
    }
    bounds.store_to(seen);
    seen.zeros = seen.clipped = seen.zeros_before = 0;
}

inline void level_range(const LevelRun& run, LevelsSeen& seen) {
    with_type(run.piece.type, [&](auto* tag) {
        const auto* x = static_cast<decltype(tag)>(const_cast<void*>(run.piece.x));
        if (run.fold != nullptr) level_range_as<true>(x, run, seen);
        else level_range_as<false>(x, run, seen);
    });
}

// Codes of chunks, and what is counted of them.
template <bool Stochastic, bool Fold> class Leveller {
    static constexpr float kInfinity = __builtin_inff();
    const LevelRun& run_;
    const std::uint64_t first_ = run_.piece.index;
    const std::uint8_t zero_ = static_cast<std::uint8_t>(static_cast<std::int32_t>(run_.parameters.zero));
    Factors factors_{run_.fold};
    Bounds bounds_;
    I before_{};     // zeros among the elements of the last chunk, which may be rounded twice
    Bytes zeros_{};  // lane by lane, of at most 63 chunks
    std::size_t chunks_ = 0;
    I zeros_before_{};  // lane by lane; a run has fewer than 2^31 elements in each
    std::int64_t all_zeros_ = 0, clipped_ = 0, last_zeros_before_ = 0;

    // Rounds a chunk; true if all its elements lie inside the range and `Look` was to see that.
    template <bool Look, class Rule>
    LOGRAD_INLINE bool round_by(Rule& rule, const float* __restrict in, const float* __restrict by,
                                Code* __restrict out, const Draw& draw) {
        const LevelParameters p = run_.parameters;
        const F scale = F{} + p.scale, bottom = F{} - p.zero, top = F{} + (run_.bins - p.zero);
        const I zero = I{} + static_cast<std::int32_t>(p.zero);
        F low = F{} + kInfinity, high = F{} - kInfinity;
        I nan{}, zeros_before{};
        for (std::size_t j = 0; j < kChunk; j += 4 * W) {
            I codes[4];
            LOGRAD_UNROLL
            for (std::size_t k = 0; k < 4; ++k) {
                const std::size_t at = j + k * W;
                F z = load<F>(in + at);
                zeros_before -= z == 0.0f;
                if constexpr (Fold) z *= load<F>(by + at);
                if constexpr (Look) low = smaller(z, low), high = larger(z, high), nan |= z != z;
                const F steps = smaller(larger(z * scale, bottom), top);
                if constexpr (Stochastic) {
                    const I up = rule(magnitude(steps) * 65536.0f, {draw.upper + at, draw.index + at, draw.seed});
                    const I negative = bits<I>(steps) >> 31;
                    codes[k] = ((up ^ negative) - negative) + zero;
                } else {
                    // Added to 1.5 2^23 a number is rounded to a whole one, ties to even, in the last bits.
                    codes[k] = bits<I>(steps + 0x1.8p23f) - (0x4b400000 - zero);
                }
            }
            store_bytes(codes, out + j);
        }
        before_ = zeros_before;
        if constexpr (!Look) return true;
        const I outside = nan | (low < p.smallest) | (high > p.largest);
        if (__builtin_expect(any(outside), 0)) return false;
        bounds_.add(low, high);
        return true;
    }

    template <bool Look> bool round(const float* in, const float* by, Code* out, const Draw& draw) {
        return round_chunk<Stochastic>([&](auto& rule) { return round_by<Look>(rule, in, by, out, draw); });
    }

    // Some elements lie outside the range, or are NaN.  Elements from `valid` on repeat the one before.
    __attribute__((noinline)) void look_closely(const float* in, const float* by, std::size_t valid) {
        bounds_.template add_finite<Fold>(in, by);
        const F smallest = F{} + run_.parameters.smallest, largest = F{} + run_.parameters.largest;
        I clipped{};
        std::int64_t count = 0;
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F z = Fold ? load<F>(in + j) * load<F>(by + j) : load<F>(in + j);
            const I outside = (z < smallest) | (z > largest);
            clipped -= outside;
            if (j + W == kChunk && valid < kChunk) count += outside[W - 1] * static_cast<std::int64_t>(kChunk - valid);
        }
        for (std::size_t k = 0; k < W; ++k) count += clipped[k];
        clipped_ += count;
    }

    void flush() {
        for (std::size_t k = 0; k < sizeof(Bytes); ++k) all_zeros_ += zeros_[k];
        zeros_ = Bytes{}, chunks_ = 0;
    }

public:
    explicit Leveller(const LevelRun& run) : run_(run) {}

    void chunk(const float* in, Code* out, const std::uint16_t* random, std::uint64_t first, std::size_t) {
        const float* by = Fold ? factors_(run_.position + static_cast<std::size_t>(first - first_)) : nullptr;
        const Draw draw{random, first, run_.piece.seed};
        if (!run_.look) round<false>(in, by, out, draw);
        else if (!round<true>(in, by, out, draw)) look_closely(in, by, kChunk);
        zeros_before_ += before_;
        for (std::size_t j = 0; j < kChunk; j += sizeof(Bytes)) zeros_ -= load<Bytes>(out + j) == zero_;
        if (++chunks_ == 255 * sizeof(Bytes) / kChunk) flush();
    }

    // A chunk that is not whole.
    void chunk(const float* in, float* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        alignas(64) float padded[kChunk], factors[kChunk];
        Code codes[kChunk];
        const float* by = Fold ? factors_(run_.position + static_cast<std::size_t>(first - first_)) : nullptr;
        for (std::size_t j = 0; j < kChunk; ++j) {
            padded[j] = in[j < valid ? j : valid - 1];
            if constexpr (Fold) factors[j] = by[j < valid ? j : valid - 1];
        }
        const Draw draw{random, first, run_.piece.seed};
        if (!run_.look) round<false>(padded, factors, codes, draw);
        else if (!round<true>(padded, factors, codes, draw)) look_closely(padded, factors, valid);
        for (std::size_t j = 0; j < valid; ++j) {
            out[j] = codes[j].value;
            all_zeros_ += codes[j].value == zero_, last_zeros_before_ += in[j] == 0.0f;
        }
    }

    void store_to(LevelsSeen& seen) {
        flush();
        bounds_.store_to(seen);
        seen.zeros = all_zeros_, seen.clipped = clipped_, seen.zeros_before = last_zeros_before_;
        for (std::size_t k = 0; k < W; ++k) seen.zeros_before += zeros_before_[k];
    }
};

template <bool Stochastic, bool Fold, class T>
void quantize_levels_as(const T* x, const LevelRun& run, LevelsSeen& seen) {
    Leveller<Stochastic, Fold> leveller(run);
    const Piece& p = run.piece;
    for_chunks<Stochastic>(x, static_cast<Code*>(p.y), p.count, p.index, p.seed, Writes::kBuffered,
                           [&](auto, const float* in, auto* out, const std::uint16_t* random, std::uint64_t first,
                               std::size_t valid) { leveller.chunk(in, out, random, first, valid); });
    leveller.store_to(seen);
}

inline void quantize_levels(const LevelRun& run, LevelsSeen& seen) {
    with_type(run.piece.type, [&](auto* tag) {
        const auto* x = static_cast<decltype(tag)>(const_cast<void*>(run.piece.x));
        if (run.stochastic && run.fold != nullptr) quantize_levels_as<true, true>(x, run, seen);
        else if (run.stochastic) quantize_levels_as<true, false>(x, run, seen);
        else if (run.fold != nullptr) quantize_levels_as<false, true>(x, run, seen);
        else quantize_levels_as<false, false>(x, run, seen);
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
