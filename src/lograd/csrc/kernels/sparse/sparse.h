// The two products of a layer's backward pass with a gradient that is mostly zeros:
//     dX[p + t, c] += G[p, o] W[o, c, t]    and    dW[o, c, t] += G[p, o] X[p + t, c]
// over output pixels p, output channels o, input channels c and taps t of the kernel.  A linear layer is a convolution with
// one tap over an image one pixel wide.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/convolution.h"
#include "base/types.h"

namespace lograd {

struct Convolution : ConvolutionShape {
    bool gradient_last, input_last;  // channels last in memory, else first; densely packed either way
};

// Strides of the weight and of its gradient, in elements.
struct WeightStrides {
    std::size_t output, channel, y, x;
};

struct SparseBackward {
    Convolution layer;
    const float* g;
    const float* threshold;  // of stochastic pruning on the way; null if g is to be taken as it is
    Key key;
    const float *x, *weight;
    WeightStrides strides;
    float *d_x, *d_weight, *d_bias;  // null where not needed
    std::int64_t* counts;            // zeros and NaN of the pruned g, nothing, zeros of g
    int threads;
};

// False if an element of x or of the weight was not finite: then the results are not those of a dense product, where zero
// times infinity is NaN, and the caller has to compute one.
bool sparse_backward(const SparseBackward&);

// Gives the memory back that is kept between calls.
void release_sparse_workspace();

}  // namespace lograd
