// Memory of the integer products.

#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "kernels/integer/path.h"

namespace lograd {

struct IntegerWorker {
    Buffer packed, panels, columns, segments, sums;
};

struct IntegerWorkspace {
    Buffer panels, columns, gradient, input, sums, segments;
    std::vector<std::unique_ptr<IntegerWorker>> workers;
};

}  // namespace lograd
