// Passes over the rows of a matrix.

#include "kernels/rows/rows.h"

#include "bind/bind.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;

Matrix matrix(int type, A x, N rows, N columns) { return {type_of(type), at<const void>(x), rows, columns}; }

template <Counts (*Quantize)(const Matrix&, const RowRounding&, float*, float*)>
void quantize(int type, A x, N rows, N columns, A y, A ranges, A parameters, int bins, bool stochastic, bool codes,
              A key, A counts, int threads) {
    const RowRounding rounding{at<void>(y), static_cast<float>(bins), stochastic, codes, key_at(key), threads};
    write(Quantize(matrix(type, x, rows, columns), rounding, at<float>(ranges), at<float>(parameters)), counts);
}

}  // namespace

void bind_rows(Functions& functions) {
    functions.kernel("row_ranges", [](int type, A x, N rows, N columns, A out, int threads) {
        row_ranges(matrix(type, x, rows, columns), at<float>(out), threads);
    });
    functions.kernel("largest_and_scale", [](int type, A x, N rows, N columns, float top, A out, int threads) {
        largest_and_scale(matrix(type, x, rows, columns), top, at<float>(out), threads);
    });
    functions.kernel("quantize_samples", &quantize<quantize_samples>);
    functions.kernel("quantize_tensor", &quantize<quantize_tensor>);
    functions.kernel("quantize_interval", [](int type, A x, N rows, N columns, A y, A statistics, A parameters, A gamma,
                                             int levels, bool stochastic, bool codes, A key, A counts, int threads) {
        const float bins = 2 * static_cast<float>(levels);
        const RowRounding rounding{at<void>(y), bins, stochastic, codes, key_at(key), threads};
        const Matrix m = matrix(type, x, rows, columns);
        write(quantize_interval(m, rounding, *at<const double>(gamma), at<double>(statistics), at<float>(parameters)),
              counts);
    });
    functions.kernel("dequantize_rows",
                     [](int type, A codes, N rows, N columns, A y, A parameters, int bins, int threads) {
        dequantize_rows(matrix(type, codes, rows, columns), at<void>(y), at<const float>(parameters),
                        static_cast<float>(bins), threads);
    });
    functions.kernel("reflect_rows", [](bool inverse, int type, A x, A y, N rows, N columns, A order, A first,
                                        A stretch, A share, A bounds, A counts, int threads) {
        const auto* smallest = at<const float>(bounds);
        const auto* largest = smallest == nullptr ? nullptr : smallest + rows;
        write(reflect_rows(
                  {inverse, type_of(type), at<const void>(x), at<void>(y), rows, columns, at<const std::int64_t>(order),
                   at<const std::int64_t>(first), at<const float>(stretch), at<const double>(share), smallest, largest},
                  threads),
              counts);
    });
}

}  // namespace lograd
