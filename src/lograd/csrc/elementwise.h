// The elementwise kernels, compiled once per instruction set; tests hold them equal, bit for bit, to ops/reference.py.
//
// No multiplication may be fused with an addition here (-ffp-contract=off): every operation rounds as it is written.

#pragma once

#include <cmath>
#include <type_traits>

#include "chunks.h"
#include "kernels.h"
#include "pruning.h"

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
    run<true>(p, counts, [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random,
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
    run<false>(p, counts, [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t*, std::uint64_t, std::size_t valid) {
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j);
            put(out + j, bits<F>(bits<U>(x) & bits<U>(~(magnitude(x) <= t))));
        }
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

// Stochastic rounding of a magnitude in steps: up if its fraction plus U reaches 1.  With T the upper 16 bits of the
// fraction and D those of U: up if T + D > 65535, not if T + D < 65535, and in between the rest of both decides.
inline float round_exactly(float steps, std::uint16_t draw, std::uint64_t index, std::uint64_t seed) {
    const float whole = std::floor(steps);
    const double uniform = draw * 0x1p-16 + lower32(index, seed) * 0x1p-48;
    return whole + (uniform >= 1.0 - static_cast<double>(steps - whole) ? 1.0f : 0.0f);
}

// Non-subtractive dither: g rounded stochastically to multiples of `step`.
inline void dither(const Piece& p, float step, Counts& counts) {
    Tally tally(counts);
    run<true>(p, counts, [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
        const F unit = F{} + step;
        Ties ties;
        for (std::size_t j = 0; j < kChunk; j += W) {
            const F x = load<F>(in + j), steps = magnitude(x) / unit;
            const I fractional = steps < 0x1p23f;  // a larger float32 is a whole number
            const F small = bits<F>(bits<I>(steps) & fractional);
            const F whole = __builtin_convertvector(__builtin_convertvector(small, I), F);
            const I sum = __builtin_convertvector((small - whole) * 65536.0f, I) + random_ints(random + j);
            ties.add(sum);
            const F rounded = whole + bits<F>((sum > 65535) & bits<I>(F{} + 1.0f));
            put(out + j, bits<F>(bits<U>(select(fractional, rounded, steps) * unit) | sign(x)));
        }
        if (__builtin_expect(bool(ties), 0)) {
            for (std::size_t k = 0; k < valid; ++k) {
                const float steps = std::fabs(in[k]) / step;
                if (!(steps < 0x1p23f)) continue;
                out[k] = std::copysign(round_exactly(steps, random[k], first + k, p.seed) * step, in[k]);
            }
        }
        tally.add(in, out, valid);
    });
    tally.add_to(counts);
}

constexpr std::uint32_t kOne = 0x3f800000;  // the bits of 1.0f; an exponent e adds e << 23
inline float power_of_two(int exponent) {
    const std::uint32_t word = kOne + (static_cast<std::uint32_t>(exponent) << 23);
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Q(scale x) / scale.  `Divide` is not needed where the scale is a power of two: its inverse is exact.  In a `Symmetric`
// format the bound of the magnitude is itself a value, so that nothing is rounded beyond it.
template <bool Stochastic, bool Divide, bool Symmetric>
void quantize_as(const Piece& p, const Grid& grid, float scale, Counts& counts) {
    Tally tally(counts);
    run<Stochastic>(
        p, counts, [&](auto put, const float* __restrict in, float* __restrict out, const std::uint16_t* random, std::uint64_t first, std::size_t valid) {
            // Locals of the innermost function, so that they stay in registers.
            const F largest = F{} + grid.largest, largest_negative = F{} + grid.largest_negative;
            // Beyond the largest value nothing is rounded, so exponents and steps stay small.
            const F bound = larger(largest, largest_negative);
            const F smallest_normal = F{} + power_of_two(grid.smallest_exponent);
            const F factor = F{} + scale, inverse = 1.0f / factor;
            const bool integer = grid.integer, parity = !integer && grid.mantissa == 0, odd_up = grid.odd_exponents_up;
            const U mantissa = U{} + (static_cast<std::uint32_t>(grid.mantissa) << 23);
            const U inverse_of = 2u * kOne + mantissa + (Stochastic ? 16u << 23 : 0u);
            const bool counted = tally.wanted;
            I clipped{};
            Ties ties;
            for (std::size_t j = 0; j < kChunk; j += W) {
                const F x = load<F>(in + j), y = x * factor, m = magnitude(y);
                const F inside = smaller(m, bound);  // NaN becomes the bound here, and NaN again below
                // 2^e, as bits: e is the exponent of the binade, of the smallest normal number, or 0 for integers.
                U binade = U{} + kOne;
                if (!integer) binade = bits<U>(larger(inside, smallest_normal)) & 0x7f800000u;
                const F steps = inside * bits<F>(inverse_of - binade);
                F rounded;
                if constexpr (Stochastic) {
                    const I sum = __builtin_convertvector(steps, I) + random_ints(random + j);
                    ties.add(sum);
                    rounded = __builtin_convertvector(sum >> 16, F);
                } else {
                    rounded = (steps + 0x1p23f) - 0x1p23f;  // to nearest, ties to even
                    if (parity) {
                        // The tie 1.5 lies between exponents e and e + 1, and the even code decides.
                        const I odd = ((binade >> 23) & 1u) == 0u;  // e itself: the bits hold e + 127
                        rounded = select((steps == 1.5f) & (odd_up ? ~odd : odd), F{} + 1.0f, rounded);
                    }
                }
                F value = rounded * bits<F>(binade - mantissa), limit = bound;
                if constexpr (!Symmetric) {
                    limit = select(bits<I>(y) < 0, largest_negative, largest);
                    value = smaller(value, limit);
                }
                if (counted) clipped -= m > limit;
                const F q = bits<F>(bits<U>(value) | sign(y)), result = Divide ? q / factor : q * inverse;
                // A scale that is NaN, infinite or zero makes a NaN of a number; then it is y that tells.
                const F unknown = Divide ? select(x == x, m, x) : x;
                put(out + j, select(m == m, result, unknown));
            }
            if constexpr (Stochastic) {
                if (__builtin_expect(bool(ties), 0)) {
                    for (std::size_t k = 0; k < valid; ++k) {
                        const float y = in[k] * scale, m = std::fabs(y);
                        const float limit = std::signbit(y) ? grid.largest_negative : grid.largest;
                        if (!(m < limit)) continue;
                        int exponent = 0;
                        if (!grid.integer) {
                            exponent = m > 0 ? std::ilogb(m) : grid.smallest_exponent;
                            if (exponent < grid.smallest_exponent) exponent = grid.smallest_exponent;
                            exponent -= grid.mantissa;
                        }
                        const float steps = std::ldexp(m, -exponent);
                        const float value = std::ldexp(round_exactly(steps, random[k], first + k, p.seed), exponent);
                        out[k] = std::copysign(value < limit ? value : limit, y) / scale;
                    }
                }
            }
            tally.clipped += clipped;
            tally.add(in, out, valid);
        });
    tally.add_to(counts);
}

inline void quantize(const Piece& p, const Grid& grid, float scale, bool stochastic, Counts& counts) {
    int exponent;
    const bool divide = std::frexp(scale, &exponent) != 0.5f || exponent < -100 || exponent > 100;
    const bool symmetric = grid.largest == grid.largest_negative;
    using Kernel = void (*)(const Piece&, const Grid&, float, Counts&);
    static constexpr Kernel kAll[] = {
        quantize_as<false, false, false>, quantize_as<false, false, true>, quantize_as<false, true, false>,
        quantize_as<false, true, true>,   quantize_as<true, false, false>, quantize_as<true, false, true>,
        quantize_as<true, true, false>,   quantize_as<true, true, true>,
    };
    kAll[stochastic * 4 + divide * 2 + symmetric](p, grid, scale, counts);
}

inline const Kernels& table(const char* name) {
    static const Kernels kernels{name, stochastic_prune, threshold_prune, dither, quantize};
    return kernels;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
