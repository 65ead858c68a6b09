// The products of sparse.h for Python: tensors come as addresses, checked by ops/sparse_products.py.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>

#include "sparse.h"

namespace nb = nanobind;

namespace {

using A = std::uintptr_t;
using N = std::size_t;

template <class T> T* at(A address) { return reinterpret_cast<T*>(address); }

lograd::Axis axis(const std::array<N, 6>& a) { return {a[0], a[1], a[2], a[3], a[4], a[5]}; }

}  // namespace

void bind_sparse(nb::module_& m) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();

    // An axis is (input, output, kernel, stride, padding, dilation).
    m.def("sparse_backward", [](N batch, N channels, N outputs, N groups, std::array<N, 6> y, std::array<N, 6> x,
                                bool gradient_last, bool input_last, A g, A threshold, A key, A input, A weight,
                                std::array<N, 4> strides, A d_x, A d_weight, A d_bias, A counts, int threads) {
        const lograd::Convolution layer{batch, channels, outputs, groups, axis(y), axis(x), gradient_last, input_last};
        const lograd::SparseBackward task{
            at<const float>(g), at<const float>(threshold), at<const std::uint64_t>(key), at<const float>(input),
            at<const float>(weight), {strides[0], strides[1], strides[2], strides[3]}, at<float>(d_x), at<float>(d_weight),
            at<float>(d_bias), at<std::int64_t>(counts)};
        return lograd::sparse_backward(layer, task, threads);
    }, without_gil);
    m.def("release_sparse_workspace", &lograd::release_sparse_workspace);
}
