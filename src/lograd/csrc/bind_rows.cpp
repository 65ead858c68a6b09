// The passes of rows.h for Python: tensors come as addresses, checked by ops/row_passes.py.

#include <nanobind/nanobind.h>

#include "rows.h"

namespace nb = nanobind;

namespace {

using A = std::uintptr_t;
using N = std::size_t;

template <class T> T* at(A address) { return reinterpret_cast<T*>(address); }

lograd::Matrix matrix(int type, A x, N rows, N columns) {
    return {static_cast<lograd::Type>(type), at<const void>(x), rows, columns};
}

void write(const lograd::RowCounts& counts, A out) {
    auto* to = at<std::int64_t>(out);
    to[0] = counts.zeros, to[1] = counts.nans, to[2] = counts.clipped;
}

}  // namespace

void bind_rows(nb::module_& m) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();

    m.def("row_ranges", [](int type, A x, N rows, N columns, A out, int threads) {
        lograd::row_ranges(matrix(type, x, rows, columns), at<float>(out), threads);
    }, without_gil);
    m.def("quantize_samples", [](int type, A x, N rows, N columns, A y, A ranges, A parameters, int bins, bool stochastic,
                                 bool codes, A key, int threads, A counts) {
        const auto* k = at<const std::uint64_t>(key);
        write(lograd::quantize_samples(matrix(type, x, rows, columns), at<void>(y), at<float>(ranges),
                                       at<float>(parameters), static_cast<float>(bins), stochastic, codes, k[0], k[1],
                                       threads), counts);
    }, without_gil);
    m.def("quantize_tensor", [](int type, A x, N rows, N columns, A y, A ranges, A parameters, int bins, bool stochastic,
                                bool codes, A key, int threads, A counts) {
        const auto* k = at<const std::uint64_t>(key);
        write(lograd::quantize_tensor(matrix(type, x, rows, columns), at<void>(y), at<float>(ranges), at<float>(parameters),
                                      static_cast<float>(bins), stochastic, codes, k[0], k[1], threads), counts);
    }, without_gil);
    m.def("largest_and_scale", [](int type, A x, N rows, N columns, float top, A out, int threads) {
        lograd::largest_and_scale(matrix(type, x, rows, columns), top, at<float>(out), threads);
    }, without_gil);
    m.def("quantize_interval", [](int type, A x, N rows, N columns, A y, A statistics, A parameters, A gamma, int levels,
                                  bool stochastic, bool codes, A key, int threads, A counts) {
        const auto* k = at<const std::uint64_t>(key);
        write(lograd::quantize_interval(matrix(type, x, rows, columns), at<void>(y), at<double>(statistics),
                                        at<float>(parameters), *at<const double>(gamma), static_cast<float>(levels),
                                        stochastic, codes, k[0], k[1], threads), counts);
    }, without_gil);
    m.def("dequantize_rows", [](int type, A codes, N rows, N columns, A y, A parameters, int bins, int threads) {
        lograd::dequantize_rows(matrix(type, codes, rows, columns), at<void>(y), at<const float>(parameters),
                                static_cast<float>(bins), threads);
    }, without_gil);
    m.def("reflect_rows", [](bool inverse, int type, A x, A y, N rows, N columns, A order, A first, A stretch, A share,
                             A bounds, int threads, A counts) {
        const auto* low = at<const float>(bounds);
        const lograd::Reflection reflection{
            inverse, static_cast<lograd::Type>(type), at<const void>(x), at<void>(y), rows, columns,
            at<const std::int64_t>(order), at<const std::int64_t>(first), at<const float>(stretch),
            at<const double>(share), low, low == nullptr ? nullptr : low + rows};
        write(lograd::reflect_rows(reflection, threads), counts);
    }, without_gil);
}
