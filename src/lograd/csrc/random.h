// Counter-based randomness: Philox4x32-10 of (seed, element index), and nothing else.
//
// Every element owns a 48-bit uniform number U.  Its upper 16 bits come from stream 0, eight elements to a block; they
// alone decide almost always, which halves the cost.  The lower 32 bits come from stream 1, four elements to a block,
// and are drawn only where the upper ones tie: for one element in 65536.  The outcome is that of all 48 bits.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

struct Words {
    std::uint32_t w[4];
};

inline Words philox(std::uint64_t block, std::uint32_t stream, std::uint64_t seed) {
    std::uint32_t a = static_cast<std::uint32_t>(block), b = static_cast<std::uint32_t>(block >> 32), c = stream, d = 0;
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p = std::uint64_t{0xD2511F53u} * a, q = std::uint64_t{0xCD9E8D57u} * c;
        const std::uint32_t a1 = static_cast<std::uint32_t>(q >> 32) ^ b ^ k0;
        const std::uint32_t c1 = static_cast<std::uint32_t>(p >> 32) ^ d ^ k1;
        b = static_cast<std::uint32_t>(q);
        d = static_cast<std::uint32_t>(p);
        a = a1;
        c = c1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

// The lower 32 bits of the uniform number of one element.
inline std::uint32_t lower32(std::uint64_t index, std::uint64_t seed) {
    return philox(index >> 2, 1, seed).w[index & 3];
}

}  // namespace lograd
