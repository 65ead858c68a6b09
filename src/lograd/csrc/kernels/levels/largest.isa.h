// The largest magnitude of each column.

#pragma once

#include <cstring>

#include "base/vector.isa.h"
#include "kernels/levels/levels.h"

namespace lograd {
namespace LOGRAD_ISA {

// Bits of magnitudes are in the order of the magnitudes, with NaN above all, so integers are compared.  Loops without
// branches or calls: the compiler makes vectors of them.
inline std::int32_t magnitude_bits(float x) {
    std::int32_t found;
    std::memcpy(&found, &x, sizeof found);
    return found & 0x7fffffff;
}

// `rows` rows of `columns` elements, each row times its factor if there are any.
inline void largest_of_columns(const float* x, std::size_t rows, std::size_t columns, const float* factors,
                               std::int32_t* __restrict largest) {
    for (std::size_t r = 0; r < rows; ++r) {
        const float* __restrict row = x + r * columns;
        const float factor = factors == nullptr ? 1.0f : factors[r];
        for (std::size_t c = 0; c < columns; ++c) {
            const std::int32_t found = magnitude_bits(row[c] * factor);
            largest[c] = found > largest[c] ? found : largest[c];
        }
    }
}

inline std::int32_t largest_of_all(const float* x, std::size_t count) {
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t found = magnitude_bits(x[i]);
        largest = found > largest ? found : largest;
    }
    return largest;
}

}  // namespace LOGRAD_ISA
}  // namespace lograd
