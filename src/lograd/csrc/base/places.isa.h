// Tables by a byte of bits, where an instruction set has no instruction for compressing or expanding a vector.

#pragma once

#include "base/vector.isa.h"

namespace lograd {
namespace LOGRAD_ISA {

#if defined(__AVX2__) && !defined(__AVX512F__)
// Row m: the places of the bits of m, lowest first.
struct Places {
    std::uint8_t of[256][8];
    constexpr Places() : of() {
        for (int mask = 0; mask < 256; ++mask)
            for (int bit = 0, n = 0; bit < 8; ++bit)
                if (mask >> bit & 1) of[mask][n++] = static_cast<std::uint8_t>(bit);
    }
};
alignas(64) inline constexpr Places kPlaces;

// Row m: how many bits of m are below each place.
struct Ranks {
    std::uint8_t of[256][8];
    constexpr Ranks() : of() {
        for (int mask = 0; mask < 256; ++mask)
            for (int bit = 0, n = 0; bit < 8; ++bit) {
                of[mask][bit] = static_cast<std::uint8_t>(n);
                n += mask >> bit & 1;
            }
    }
};
alignas(64) inline constexpr Ranks kRanks;
#endif

}  // namespace LOGRAD_ISA
}  // namespace lograd
