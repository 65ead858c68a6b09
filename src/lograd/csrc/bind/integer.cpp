// Products of small integers.

#include "kernels/integer/integer.h"

#include <nanobind/stl/array.h>

#include <array>

#include "bind/bind.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;

Bytes bytes_at(A data, int zero) { return {at<const std::uint8_t>(data), zero}; }
Scales scales_at(A values, N count) { return {at<const float>(values), count}; }

void matmul(N batch, N m, N n, N k, A a, std::array<N, 3> a_strides, int a_zero, A b, std::array<N, 3> b_strides,
            int b_zero, A rows, N rows_count, A columns, N columns_count, A bias, A out, int threads) {
    integer_matmul({batch, m, n, k, bytes_at(a, a_zero), a_strides[0], a_strides[1], a_strides[2], bytes_at(b, b_zero),
                    b_strides[0], b_strides[1], b_strides[2], scales_at(rows, rows_count),
                    scales_at(columns, columns_count), at<const float>(bias), at<float>(out), threads});
}

}  // namespace

void bind_integer(Functions& functions) {
    functions.kernel("integer_matmul", &matmul, nb::kw_only(), nb::arg("batch"), nb::arg("m"), nb::arg("n"),
                     nb::arg("k"), nb::arg("a"), nb::arg("a_strides"), nb::arg("a_zero"), nb::arg("b"),
                     nb::arg("b_strides"), nb::arg("b_zero"), nb::arg("rows"), nb::arg("rows_count"),
                     nb::arg("columns"), nb::arg("columns_count"), nb::arg("bias"), nb::arg("out"),
                     nb::arg("threads"));
    functions.other("release_integer_workspace", &release_integer_workspace);
}

}  // namespace lograd
