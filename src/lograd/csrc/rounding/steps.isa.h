// Rounding of magnitudes that are counted in steps: the one place that says what "to nearest" and "stochastic" mean.
//
// Stochastic rounding goes up if the fraction plus the uniform number U reaches 1.  With T the upper 16 bits of the
// fraction and D those of U: up if T + D > 65535, not if T + D < 65535.  In between, at a tie, the rest of both decides.
// So a chunk is rounded with 16 bits, and, where one of its elements ties (1 in 65536 does), once more with all 48.

#pragma once

#include "rounding/random.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// The random numbers of a vector: the upper 16 bits of its lanes, and the random index of the first.
struct Draw {
    const std::uint16_t* upper;
    std::uint64_t index, seed;
};

// Whole numbers of steps, as the rule at hand has them, as float and as integer.
inline F as_float(F steps) { return steps; }
inline F as_float(I steps) { return __builtin_convertvector(steps, F); }
inline I as_integer(F steps) { return __builtin_convertvector(steps, I); }
inline I as_integer(I steps) { return steps; }

// Each rule takes 2^kBits times the steps, at most 2^22 steps to nearest and 2^15 at random.

// To nearest, ties to even.
struct Nearest {
    static constexpr std::uint32_t kBits = 0;

    LOGRAD_INLINE F operator()(F steps, const Draw&) const { return (steps + 0x1p23f) - 0x1p23f; }
};

// By the upper 16 bits; `tied` says if they did not decide for some element.
class ByUpperBits {
    U fullest_{};

public:
    static constexpr std::uint32_t kBits = 16;

    I operator()(I scaled, const Draw& draw) {
        const I sum = scaled + random_ints(draw.upper);
        fullest_ = larger_halves(fullest_, bits<U>(sum));
        return sum >> 16;
    }
    I operator()(F scaled, const Draw& draw) { return (*this)(__builtin_convertvector(scaled, I), draw); }

    bool tied() const { return any((fullest_ & 0xffffu) == 0xffffu); }
};

// By all 48 bits.
struct ByAllBits {
    static constexpr std::uint32_t kBits = 16;

    I operator()(F scaled, const Draw& draw) const {
        const I sum = __builtin_convertvector(scaled, I) + random_ints(draw.upper);
        I steps = sum >> 16;
        for (std::size_t i = 0; i < W; ++i)
            if ((sum[i] & 0xffff) == 0xffff) steps[i] = exactly(scaled[i] * 0x1p-16f, i, draw);
        return steps;
    }

private:
    static std::int32_t exactly(float steps, std::size_t lane, const Draw& draw) {
        const float whole = __builtin_floorf(steps);
        const double uniform = draw.upper[lane] * 0x1p-16 + lower32(draw.index + lane, draw.seed) * 0x1p-48;
        return static_cast<std::int32_t>(whole) + (uniform >= 1.0 - static_cast<double>(steps - whole));
    }
};

// Rounds a chunk by 16 bits, and again by all 48 if one of its elements ties.
template <class Round> inline auto round_at_random(Round round) {
    ByUpperBits by_upper_bits;
    auto counted = round(by_upper_bits);
    if (__builtin_expect(by_upper_bits.tied(), 0)) {
        ByAllBits by_all_bits;
        counted = round(by_all_bits);
    }
    return counted;
}

// Calls round(rule), which rounds a chunk and returns what it counted.  The constants of `round` belong inside it, where
// they stay in registers.  Only rounding to nearest is inlined by force: measured with GCC 12 and AVX-512, that saves 7 %
// there, and costs stochastic rounding 5 %.
template <bool Stochastic, class Round> LOGRAD_INLINE auto round_chunk(Round round) {
    if constexpr (Stochastic) {
        return round_at_random(round);
    } else {
        Nearest nearest;
        return round(nearest);
    }
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
