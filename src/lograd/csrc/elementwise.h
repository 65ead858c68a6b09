// The elementwise kernels, compiled once per instruction set; tests hold them equal, bit for bit, to ops/reference.py.
//
// No multiplication may be fused with an addition here (-ffp-contract=off): every operation rounds as it is written.

#pragma once

#include <cmath>
#include <type_traits>

#include "chunks.h"
#include "kernels.h"

namespace lograd {
namespace LOGRAD_ISA {

inline F random_floats(const std::uint16_t* random) {
    return __builtin_convertvector(__builtin_convertvector(load<H>(random), I), F);
}

// Dispatches on the element type.
template <bool Random, class Kernel> void run(const Piece& p, Kernel kernel) {
    const auto go = [&](auto* x) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(x)>>;
        for_chunks<Random>(x, static_cast<T*>(p.y), p.count, p.index, p.seed, kernel);
    };
    switch (p.type) {
        case Type::kFloat32: return go(static_cast<const float*>(p.x));
        case Type::kBfloat16: return go(static_cast<const Bfloat16*>(p.x));
        case Type::kFloat16: return go(static_cast<const Float16*>(p.x));
    }
}

// Counts of a piece, one per lane.  Padding is zero in and zero out, so it is taken off at the end.
struct Tally {
    I zeros{}, nans{}, clipped{};
    std::size_t padding = 0;

    void add(const float* out, std::size_t valid) {
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F y = load<F>(out + j);
            zeros -= y == 0.0f;
            nans -= y != y;
        }
        padding += kChunk - valid;
    }
    void add_to(Counts& counts) const {
        for (std::size_t i = 0; i < W; ++i) counts.zeros += zeros[i], counts.nans += nans[i], counts.clipped += clipped[i];
        counts.zeros -= static_cast<std::int64_t>(padding);
    }
};

// Eq. 5: keep x if |x| > U a, as sign(x) max(|x|, a); else 0.
inline void stochastic_prune(const Piece& p, float a, Counts& counts) {
    const float s = a * 0x1p-16f;
    const F step = F{} + s, floor = F{} + a;
    Tally tally;
    run<true>(p, [&](const float* in, float* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        I ties{};
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j), m = magnitude(x);
            const F low = random_floats(random + j) * step, high = low + step;
            const I keep = ~(m <= high);  // a NaN is kept
            ties |= keep ^ (m > low);     // between the two, and NaN
            const F kept = select(m < floor, floor, m);
            store(out + j, bits<F>((bits<U>(kept) | sign(x)) & bits<U>(keep)));
        }
        if (any(ties)) {
            for (std::size_t k = 0; k < valid; ++k) {
                const float m = std::fabs(in[k]), low = static_cast<float>(random[k]) * s;
                if (!(m > low && m <= low + s)) continue;
                const double u = random[k] + lower32(first + k, p.seed) * 0x1p-32;
                out[k] = static_cast<double>(m) > u * s ? std::copysign(m < a ? a : m, in[k]) : 0.0f;
            }
        }
        tally.add(out, valid);
    });
    tally.add_to(counts);
}

// Keep |x| > t, and NaN.
inline void threshold_prune(const Piece& p, float t, Counts& counts) {
    Tally tally;
    run<false>(p, [&](const float* in, float* out, const std::uint16_t*, std::uint64_t, std::size_t valid) {
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j);
            store(out + j, bits<F>(bits<U>(x) & bits<U>(~(magnitude(x) <= t))));
        }
        tally.add(out, valid);
    });
    tally.add_to(counts);
}

// Rounds magnitudes given in steps: nearest (ties to even), or up if U < the fraction.  Whole numbers below 2^23 come out;
// above that a float32 has no fraction.
template <bool Stochastic> struct Rounder {
    I ties{};

    F operator()(F steps, const std::uint16_t* random) {
        if constexpr (Stochastic) {
            const F whole = __builtin_convertvector(__builtin_convertvector(steps, I), F);
            const I top = __builtin_convertvector((steps - whole) * 65536.0f, I);
            const I draw = __builtin_convertvector(load<H>(random), I);
            ties |= top == draw;
            return whole + bits<F>((top > draw) & bits<I>(F{} + 1.0f));
        } else {
            return (steps + 0x1p23f) - 0x1p23f;
        }
    }

    // One element whose upper 16 bits tied.
    static float exact(float steps, std::uint16_t draw, std::uint64_t index, std::uint64_t seed) {
        const float whole = std::floor(steps);
        const double uniform = draw * 0x1p-16 + lower32(index, seed) * 0x1p-48;
        return whole + (uniform < static_cast<double>(steps - whole) ? 1.0f : 0.0f);
    }
};

// Non-subtractive dither: g rounded stochastically to multiples of `step`.
inline void dither(const Piece& p, float step, Counts& counts) {
    Tally tally;
    run<true>(p, [&](const float* in, float* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        Rounder<true> rounder;
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j), steps = magnitude(x) / step;
            const I fractional = steps < 0x1p23f;
            const F rounded = rounder(select(fractional, steps, F{}), random + j);
            const F result = select(fractional, rounded, steps) * step;
            store(out + j, bits<F>(bits<U>(result) | sign(x)));
        }
        if (any(rounder.ties)) {
            for (std::size_t k = 0; k < valid; ++k) {
                const float steps = std::fabs(in[k]) / step;
                if (!(steps < 0x1p23f)) continue;
                out[k] = std::copysign(Rounder<true>::exact(steps, random[k], first + k, p.seed) * step, in[k]);
            }
        }
        tally.add(out, valid);
    });
    tally.add_to(counts);
}

inline F power_of_two(I exponent) { return bits<F>((exponent + 127) << 23); }

// Q(scale x) / scale.
template <bool Stochastic> void quantize_as(const Piece& p, const Grid& grid, float scale, Counts& counts) {
    const F largest = F{} + grid.largest, largest_negative = F{} + grid.largest_negative;
    // Beyond the largest value nothing is rounded, so exponents and steps stay small.
    const F bound = select(largest > largest_negative, largest, largest_negative);
    const I smallest = I{} + grid.smallest_exponent;
    Tally tally;
    run<Stochastic>(
        p, [&](const float* in, float* out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
            Rounder<Stochastic> rounder;
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F x = load<F>(in + j), y = x * scale, m = magnitude(y);
                const F inside = select(m < bound, m, bound);  // NaN becomes the bound here, and NaN again below
                I exponent{};
                if (!grid.integer) {
                    exponent = bits<I>(bits<U>(inside) >> 23) - 127;
                    exponent = (exponent > smallest ? exponent : smallest) - grid.mantissa;
                }
                const F steps = inside * power_of_two(-exponent);
                F rounded = rounder(steps, random + j);
                if (!Stochastic && !grid.integer && grid.mantissa == 0) {
                    // The tie 1.5 lies between exponents e and e + 1, and the even code decides.
                    const I stays = (steps == 1.5f) & ((exponent & 1) == (grid.odd_exponents_up ? 0 : 1));
                    rounded = select(stays, F{} + 1.0f, rounded);
                }
                const F limit = select(bits<I>(sign(y)) != 0, largest_negative, largest);
                const F value = rounded * power_of_two(exponent);
                const F bounded = select(value < limit, value, limit);
                tally.clipped -= m > limit;
                const F result = bits<F>(bits<U>(bounded) | sign(y)) / scale;
                store(out + j, select(m == m, result, x));
            }
            if constexpr (Stochastic) {
                for (std::size_t k = 0; k < valid && any(rounder.ties); ++k) {
                    const float y = in[k] * scale, m = std::fabs(y);
                    const float limit = std::signbit(y) ? grid.largest_negative : grid.largest;
                    if (!(m < limit)) continue;
                    int exponent = 0;
                    if (!grid.integer) {
                        exponent = m > 0 ? std::ilogb(m) : grid.smallest_exponent;
                        exponent = (exponent > grid.smallest_exponent ? exponent : grid.smallest_exponent) - grid.mantissa;
                    }
                    const float rounded = Rounder<true>::exact(std::ldexp(m, -exponent), random[k], first + k, p.seed);
                    const float value = std::ldexp(rounded, exponent);
                    out[k] = std::copysign(value < limit ? value : limit, y) / scale;
                }
            }
            tally.add(out, valid);
        });
    tally.add_to(counts);
}

inline void quantize(const Piece& p, const Grid& grid, float scale, bool stochastic, Counts& counts) {
    stochastic ? quantize_as<true>(p, grid, scale, counts) : quantize_as<false>(p, grid, scale, counts);
}

inline const Kernels& table(const char* name) {
    static const Kernels kernels{name, stochastic_prune, threshold_prune, dither, quantize};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
