// Rounding to the values of a format, and their codes.

#pragma once

#include "rounding/formats.h"
#include "rounding/steps.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

constexpr std::uint32_t kOne = 0x3f800000;  // the bits of 1.0f; an exponent e adds e << 23

inline float power_of_two(int exponent) {
    const std::uint32_t word = kOne + (static_cast<std::uint32_t>(exponent) << 23);
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Magnitudes on the grid of a format: whole steps in the binade 2^e given by its bits, not yet cut off at the largest
// value.
template <class Steps> struct Rounded {
    Steps steps;
    U binade;
};

// The constants of a format, in registers while a chunk is rounded.
template <class Rule> class OnGrid {
    const F largest_, largest_negative_, smallest_normal_;
    const bool integer_, parity_, odd_up_;
    const U mantissa_, inverse_of_;

public:
    const F bound;  // the largest magnitude: nothing is rounded beyond it, so exponents and steps stay small

    explicit OnGrid(const Grid& grid)
        : largest_(F{} + grid.largest), largest_negative_(F{} + grid.largest_negative),
          smallest_normal_(F{} + power_of_two(grid.smallest_exponent)), integer_(grid.integer),
          parity_(!grid.integer && grid.mantissa == 0), odd_up_(grid.odd_exponents_up),
          mantissa_(U{} + (static_cast<std::uint32_t>(grid.mantissa) << 23)),
          inverse_of_(2u * kOne + mantissa_ + (Rule::kBits << 23)), bound(larger(largest_, largest_negative_)) {}

    // NaN becomes the bound; who calls puts it back.
    auto round(F magnitude, Rule& rule, const Draw& draw) const {
        const F inside = smaller(magnitude, bound);
        // e is the exponent of the binade, of the smallest normal number, or 0 for integers.
        U binade = U{} + kOne;
        if (!integer_) binade = bits<U>(larger(inside, smallest_normal_)) & 0x7f800000u;
        const F exact = inside * bits<F>(inverse_of_ - binade);
        auto steps = rule(exact, draw);
        if constexpr (Rule::kBits == 0) {
            if (parity_) {
                // The tie 1.5 lies between exponents e and e + 1, and the even code decides.
                const I odd = ((binade >> 23) & 1u) == 0u;  // e itself: the bits hold e + 127
                steps = select((exact == 1.5f) & (odd_up_ ? ~odd : odd), F{} + 1.0f, steps);
            }
        }
        return Rounded<decltype(steps)>{steps, binade};
    }

    template <class Steps> F value(const Rounded<Steps>& r) const {
        return as_float(r.steps) * bits<F>(r.binade - mantissa_);
    }

    // The largest magnitude on the side of y.
    F limit(F y) const { return select(bits<I>(y) < 0, largest_negative_, largest_); }
};

// The constants of a format's codes.
class Coder {
    const bool integer_, twos_complement_;
    const I shift_, smallest_;  // the mantissa bits, and e of the first binade as it is in bits
    const I most_, most_negative_, negative_base_, negative_zero_;

public:
    explicit Coder(const Coding& c)
        : integer_(c.grid.integer), twos_complement_(c.negative_step < 0), shift_(I{} + c.grid.mantissa),
          smallest_(I{} + (127 + c.grid.smallest_exponent)), most_(I{} + c.largest),
          most_negative_(I{} + c.largest_negative), negative_base_(I{} + c.negative_base),
          negative_zero_(I{} + c.negative_zero) {}

    // The code of a rounded magnitude with the sign of y.  Steps of a normal number hold the hidden bit, which carries the
    // missing 1 into the exponent field.
    template <class Steps> I code(const Rounded<Steps>& r, F y) const {
        I c = as_integer(r.steps);
        if (!integer_) c += (bits<I>(r.binade >> 23) - smallest_) << shift_;
        const I negative = bits<I>(y) < 0, end = negative ? most_negative_ : most_;
        c = c < end ? c : end;
        const I below = twos_complement_ ? negative_base_ - c : negative_base_ + c;
        return negative ? ((c == 0) ? negative_zero_ : below) : c;
    }
    I is_zero(I code) const { return (code == 0) | (code == negative_zero_); }
};

}  // namespace LOGRAD_ISA
}  // namespace lograd
