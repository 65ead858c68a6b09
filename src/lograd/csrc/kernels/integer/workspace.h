// Memory and threads of the integer products.

#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "kernels/integer/arithmetic.h"

namespace lograd {

// What one thread needs.
struct IntegerWorker {
    Buffer packed;   // rows of A, or images, in units
    Buffer panels;   // of B
    Buffer columns;  // a `ColumnTerms`
    Buffer rows;     // where the rows of tiles begin
    Buffer results;  // where they are written
    Buffer offsets;  // what is subtracted from each
    Buffer sums;
};

struct IntegerWorkspace {
    Buffer panels, columns, gradient, input, sums;
    std::vector<std::unique_ptr<IntegerWorker>> workers;
};

// How many pieces of this size it takes.
inline std::size_t up(std::size_t n, std::size_t step) { return (n + step - 1) / step; }

// `count` pieces of `bytes`, side by side.
template <std::size_t bytes>
void gather(const std::uint8_t* from, std::size_t from_step, std::uint8_t* to, std::size_t to_step, std::size_t count) {
    for (; count != 0; --count, from += from_step, to += to_step) std::memcpy(to, from, bytes);
}
inline void gather(std::size_t bytes, const std::uint8_t* from, std::size_t from_step, std::uint8_t* to,
                   std::size_t to_step, std::size_t count) {
    switch (bytes) {
        case 16: return gather<16>(from, from_step, to, to_step, count);
        case 24: return gather<24>(from, from_step, to, to_step, count);
        case 32: return gather<32>(from, from_step, to, to_step, count);
        case 64: return gather<64>(from, from_step, to, to_step, count);
        case 128: return gather<128>(from, from_step, to, to_step, count);
    }
    for (; count != 0; --count, from += from_step, to += to_step) std::memcpy(to, from, bytes);
}

// A thread is worth its start from a million multiply-adds on.
inline int useful_threads(std::size_t work, int threads) {
    return std::max(1, std::min(threads, static_cast<int>(std::min<std::size_t>(work >> 20, 1024))));
}

}  // namespace lograd
