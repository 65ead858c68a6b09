// Memory and threads of the integer products.

#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "kernels/integer/path.h"

namespace lograd {

// What one thread needs.
struct IntegerWorker {
    Buffer packed;   // rows of A, or images, in units
    Buffer panels;   // of B
    Buffer columns;  // a `Columns`
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

// A thread is worth its start from a million multiply-adds on.
inline int useful_threads(std::size_t work, int threads) {
    return std::max(1, std::min(threads, static_cast<int>(std::min<std::size_t>(work >> 20, 1024))));
}

}  // namespace lograd
