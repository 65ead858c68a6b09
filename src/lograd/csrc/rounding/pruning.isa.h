// Stochastic pruning of a vector, for the kernel that writes what is left and for the one that lists it.

#pragma once

#include "rounding/random.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// Eq. 5: sign(x) max(|x|, a) if |x| > U a, else 0, where U are the 48 random bits of an element.
//
// The upper 16 of them, D, decide where |x| 2^16 / a, rounded to the whole number R, is two above D or less than D: the
// roundings of R and of `exactly` are far below that.  Elsewhere, 2 in 65536 times, `exactly` does.
class Pruning {
    const float threshold_, step_;
    const F inverse_, floor_;

public:
    explicit Pruning(float threshold)
        : threshold_(threshold), step_(threshold * 0x1p-16f), inverse_(F{} + 1.0f / step_), floor_(F{} + threshold) {}

    // R - D: more than 1 where x is kept.
    I above(F x, const std::uint16_t* random) const {
        // A float from 2^23 on is a whole number, and so are its bits: R + 0x4b000000.  NaN and infinity are larger.
        return bits<I>(magnitude(x) * inverse_ + 0x1p23f) - (random_ints(random) + 0x4b000000);
    }
    // What x becomes where it is kept.
    F kept(F x) const { return bits<F>(bits<U>(larger(floor_, magnitude(x))) | sign(x)); }

    // Whether the remaining bits are needed, given the smallest `above` without sign.
    bool undecided(U nearest) const {
        const bool tiny = !(step_ >= 0x1p-120f);  // its inverse overflows, or is close to that
        return __builtin_expect(tiny || any(nearest <= 1u), 0);
    }
    float exactly(float x, std::uint16_t draw, std::uint64_t index, std::uint64_t seed) const {
        const float m = __builtin_fabsf(x), low = static_cast<float>(draw) * step_;
        bool keep = !(m <= low);  // a NaN is kept
        if (m > low && m <= low + step_)
            keep = static_cast<double>(m) > (draw + lower32(index, seed) * 0x1p-32) * step_;
        return keep ? (m < threshold_ ? __builtin_copysignf(threshold_, x) : x) : 0.0f;
    }
};

}  // namespace LOGRAD_ISA
}  // namespace lograd
