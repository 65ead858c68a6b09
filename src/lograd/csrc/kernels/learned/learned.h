// Gradients of a tensor and of its learned range, from the gradient of the rounded tensor.  ops/affine.py is the
// definition, which tests/ops/test_ops_learned.py holds equal to these kernels bit for bit.

#pragma once

#include "base/types.h"

namespace lograd {

// Elements whose sum is one number of the sum over all.
constexpr std::size_t kRangeBlock = 1024;

struct RangeGradients {
    Type type;
    const void *g, *x;
    void* d_x;
    std::size_t count;
    float factor, low, high;  // steps are x factor; levels go from low to high
};

// Writes d_x, and returns the sum of what each element gives to the range.
double range_gradients(const RangeGradients&, int threads);

// The kernel of one instruction set: blocks of elements, of which the last may be shorter, and the sum of each.
struct LearnedKernels {
    void (*range_gradients)(const RangeGradients&, bool past_cache, double* sums);
};

}  // namespace lograd
