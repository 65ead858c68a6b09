// Elements of any type as words of 32 bits, and kept values with fewer mantissa bits.

#pragma once

#include "base/elements.isa.h"
#include "kernels/packets/packets.h"
#include "rounding/random.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

// The bits of an element type.
struct ElementBits {
    int bits, mantissa;
    std::uint32_t sign, infinity;

    explicit ElementBits(Type type)
        : bits(type == Type::kFloat32 ? 32 : 16), mantissa(type == Type::kFloat32   ? 23
                                                           : type == Type::kFloat16 ? 10
                                                                                    : 7),
          sign(1u << (bits - 1)), infinity(sign - (1u << mantissa)) {}
};

inline U load_words(const std::uint32_t* p) { return load<U>(p); }
inline U load_words(const std::uint16_t* p) { return bits<U>(random_ints(p)); }

// W elements, or fewer with zeros behind them.
template <class T> U load_words(const T* p, std::size_t valid) {
    if (__builtin_expect(valid >= W, 1)) return load_words(p);
    T padded[W] = {};
    std::memcpy(padded, p, valid * sizeof(T));
    return load_words(padded);
}

// To nearest, ties to even; zeros and elements of magnitude alpha stay, what is finite stays finite, and NaN stays NaN.
class CutMantissa {
    const int cut_;
    const U sign_, infinity_, largest_, quiet_, alpha_;

public:
    CutMantissa(const ElementBits& kind, std::uint32_t alpha, int cut)
        : cut_(cut), sign_(U{} + kind.sign), infinity_(U{} + kind.infinity),
          largest_(U{} + (kind.infinity - (1u << cut))), quiet_(U{} + (1u << (kind.mantissa - 1))),
          alpha_(U{} + alpha) {}

    U operator()(U word) const {
        const U m = word & (sign_ - 1u);
        U near = (m + ((1u << (cut_ - 1)) - 1u) + (m >> cut_ & 1u)) >> cut_ << cut_;
        near = smaller(near, largest_);
        const U stays = bits<U>((m == alpha_) | (m == infinity_)), nan = bits<U>(m > infinity_);
        near = (m & stays) | (near & ~stays);
        return (word & sign_) | (((m | quiet_) >> cut_ << cut_) & nan & ~stays) | (near & ~(nan & ~stays));
    }
};

// Calls go(null pointer of the words that hold elements of a type).
template <class Go> auto with_words(Type type, Go go) {
    return type == Type::kFloat32 ? go(static_cast<std::uint32_t*>(nullptr)) : go(static_cast<std::uint16_t*>(nullptr));
}

inline std::uint32_t smallest_word(Type type, const void* x, std::size_t count) {
    const U rest = U{} + (ElementBits(type).sign - 1u);
    return with_words(type, [&](auto* null) {
        const auto* p = static_cast<decltype(null)>(const_cast<void*>(x));
        U least = U{} - 1u;
        for (std::size_t i = 0; i < count; i += W)
            least = smaller(least, (load_words(p + i, count - i) & rest) - 1u);  // zero becomes the largest number
        std::uint32_t found = 0xffffffffu;
        for (std::size_t lane = 0; lane < W; ++lane) found = least[lane] < found ? least[lane] : found;
        return found;
    });
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
