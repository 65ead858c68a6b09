// The elementwise kernels for one instruction set.
//
// No multiplication may be fused with an addition here (-ffp-contract=off): every operation rounds as it is written.

#pragma once

#include "kernels/chunks.isa.h"
#include "kernels/elementwise/elementwise.h"
#include "rounding/grid.isa.h"
#include "rounding/pruning.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// What is counted is counted in the result, so that it is read again.
template <bool Random, class Kernel> void run(const Piece& p, const Counts& counts, Kernel kernel) {
    with_type(p.type, [&](auto* null) {
        using T = std::remove_pointer_t<decltype(null)>;
        for_chunks<Random>(static_cast<const T*>(p.x), static_cast<T*>(p.y), p.count, p.index, p.seed,
                           counts.wanted ? Writes::kBuffered : Writes::kStraight, kernel);
    });
}

// Counts of a piece, one per lane.  Padding is zero in and zero out, so it is taken off at the end.
struct Tally {
    I zeros{}, nans{}, clipped{}, zeros_before{};
    std::size_t padding = 0;
    bool wanted;

    explicit Tally(const Counts& counts) : wanted(counts.wanted) {}

    void add(const float* in, const float* out, std::size_t valid) {
        if (!wanted) return;
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j), y = load<F>(out + j);
            zeros_before -= x == 0.0f;
            zeros -= y == 0.0f;
            nans -= y != y;
        }
        padding += kChunk - valid;
    }
    void add_to(Counts& counts) const {
        for (std::size_t i = 0; i < W; ++i) {
            counts.zeros += zeros[i], counts.nans += nans[i], counts.clipped += clipped[i];
            counts.zeros_before += zeros_before[i];
        }
        counts.zeros -= static_cast<std::int64_t>(padding);
        counts.zeros_before -= static_cast<std::int64_t>(padding);
    }
};

inline void stochastic_prune(const Piece& p, float a, Counts& counts) {
    const Pruning pruning(a);
    Tally tally(counts);
    run<true>(p, counts,
              [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random,
                  std::uint64_t first, std::size_t valid) {
        U nearest = U{} - 1u;
        LOGRAD_UNROLL
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j);
            const I above = pruning.above(x, random + j);
            nearest = smaller(nearest, bits<U>(above));
            put(out + j, bits<F>(bits<U>(pruning.kept(x)) & bits<U>(above > 1)));
        }
        if (pruning.undecided(nearest))
            for (std::size_t k = 0; k < valid; ++k) out[k] = pruning.exactly(in[k], random[k], first + k, p.seed);
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

// Keep |x| > t, and NaN.
inline void threshold_prune(const Piece& p, float t, Counts& counts) {
    Tally tally(counts);
    run<false>(p, counts,
               [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t*, std::uint64_t,
                   std::size_t valid) {
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j);
            put(out + j, bits<F>(bits<U>(x) & bits<U>(~(magnitude(x) <= t))));
        }
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

// Non-subtractive dither: x rounded stochastically to multiples of `step`.
inline void dither(const Piece& p, float step, Counts& counts) {
    Tally tally(counts);
    run<true>(p, counts,
              [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random,
                  std::uint64_t first, std::size_t valid) {
        tally.clipped += round_chunk<true>([&](auto& rule) {
            const F unit = F{} + step;
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F x = load<F>(in + j), steps = magnitude(x) / unit;
                const I fractional = steps < 0x1p23f;  // a larger float32 is a whole number
                const F small = bits<F>(bits<I>(steps) & fractional);
                const F whole = __builtin_convertvector(__builtin_convertvector(small, I), F);
                const F rounded =
                    whole + as_float(rule((small - whole) * 65536.0f, Draw{random + j, first + j, p.seed}));
                put(out + j, bits<F>(bits<U>(select(fractional, rounded, steps) * unit) | sign(x)));
            }
            return I{};  // nothing is clipped
        });
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

// Q(scale x) / scale.  `Divide` is not needed where the scale is a power of two: its inverse is exact.  In a `Symmetric`
// format the bound of the magnitude is itself a value, so that nothing is rounded beyond it.
template <bool Stochastic, bool Divide, bool Symmetric>
void quantize_as(const Piece& p, const Grid& grid, float scale, Counts& counts) {
    Tally tally(counts);
    run<Stochastic>(p, counts,
                    [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random,
                        std::uint64_t first, std::size_t valid) {
        tally.clipped += round_chunk<Stochastic>([&](auto& rule) {
            const OnGrid<std::remove_reference_t<decltype(rule)>> on_grid(grid);
            const F factor = F{} + scale, inverse = 1.0f / factor;
            const bool counted = tally.wanted;
            I clipped{};
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F x = load<F>(in + j), y = x * factor, m = magnitude(y);
                F value = on_grid.value(on_grid.round(m, rule, {random + j, first + j, p.seed})), limit = on_grid.bound;
                if constexpr (!Symmetric) {
                    limit = on_grid.limit(y);
                    value = smaller(value, limit);
                }
                if (counted) clipped -= m > limit;
                const F q = bits<F>(bits<U>(value) | sign(y)), result = Divide ? q / factor : q * inverse;
                // A scale that is NaN, infinite or zero makes a NaN of a number; then it is y that tells.
                const F unknown = Divide ? select(x == x, m, x) : x;
                put(out + j, select(m == m, result, unknown));
            }
            return clipped;
        });
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

inline void quantize(const Piece& p, const Grid& grid, float scale, bool stochastic, Counts& counts) {
    int exponent;
    const bool divide = __builtin_frexpf(scale, &exponent) != 0.5f || exponent < -100 || exponent > 100;
    const bool symmetric = grid.largest == grid.largest_negative;
    using Kernel = void (*)(const Piece&, const Grid&, float, Counts&);
    static constexpr Kernel kAll[] = {
        quantize_as<false, false, false>, quantize_as<false, false, true>, quantize_as<false, true, false>,
        quantize_as<false, true, true>,   quantize_as<true, false, false>, quantize_as<true, false, true>,
        quantize_as<true, true, false>,   quantize_as<true, true, true>,
    };
    kAll[stochastic * 4 + divide * 2 + symmetric](p, grid, scale, counts);
}

inline constexpr ElementwiseKernels kElementwise{stochastic_prune, threshold_prune, dither, quantize};

}  // namespace LOGRAD_ISA
}  // namespace lograd
