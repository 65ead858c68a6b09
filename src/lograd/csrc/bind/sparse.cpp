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
    SparseBackward task{};
    task.layer = {{batch, channels, outputs, groups, axis(y), axis(x)}, gradient_last, input_last};
    task.g = at<const float>(g);
    task.threshold = at<const float>(threshold);
    task.key = key_at(key);
    task.x = at<const float>(input);
    task.weight = at<const float>(weight);
    task.strides = {strides[0], strides[1], strides[2], strides[3]};
    task.d_x = at<float>(d_x);
    task.d_weight = at<float>(d_weight);
    task.d_bias = at<float>(d_bias);
    task.counts = at<std::int64_t>(counts);
    task.threads = threads;
    return sparse_backward(task);
}

}  // namespace

void bind_sparse(Functions& functions) {
    // Only by name: nobody can count nineteen arguments.
    functions.kernel("sparse_backward", &backward, nb::kw_only(), nb::arg("batch"), nb::arg("channels"),
                     nb::arg("outputs"), nb::arg("groups"), nb::arg("y"), nb::arg("x"), nb::arg("gradient_last"),
                     nb::arg("input_last"), nb::arg("g"), nb::arg("threshold"), nb::arg("key"), nb::arg("input"),
                     nb::arg("weight"), nb::arg("strides"), nb::arg("d_x"), nb::arg("d_weight"), nb::arg("d_bias"),
                     nb::arg("counts"), nb::arg("threads"));
    functions.other("release_sparse_workspace", &release_sparse_workspace);
}

}  // namespace lograd
