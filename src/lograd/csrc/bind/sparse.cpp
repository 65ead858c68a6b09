// The products of a backward pass with a gradient that is mostly zeros.

#include "kernels/sparse/sparse.h"

#include <nanobind/stl/array.h>

#include <array>

#include "bind/bind.h"

namespace lograd {
namespace {

using A = Address;

bool backward(Size batch, Size channels, Size outputs, Size groups, std::array<Size, 6> y, std::array<Size, 6> x,
              bool gradient_last, bool input_last, A g, A threshold, A key, A input, A weight,
              std::array<Size, 4> strides, A d_x, A d_weight, A d_bias, A counts, int threads) {
    return sparse_backward({{{batch, channels, outputs, groups, axis(y), axis(x)}, gradient_last, input_last},
                            at<const float>(g),
                            at<const float>(threshold),
                            key_at(key),
                            at<const float>(input),
                            at<const float>(weight),
                            {strides[0], strides[1], strides[2], strides[3]},
                            at<float>(d_x),
                            at<float>(d_weight),
                            at<float>(d_bias),
                            at<std::int64_t>(counts),
                            threads});
}

}  // namespace

void bind_sparse(Functions& functions) {
    functions.named("sparse_backward", &backward, "batch", "channels", "outputs", "groups", "y", "x", "gradient_last",
                    "input_last", "g", "threshold", "key", "input", "weight", "strides", "d_x", "d_weight", "d_bias",
                    "counts", "threads");
    functions.other("release_sparse_workspace", &release_sparse_workspace);
}

}  // namespace lograd
