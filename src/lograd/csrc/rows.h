// Passes over the rows of a matrix: their ranges, their integer codes and back, and Householder reflections of groups of
// rows.  tests/test_ops_rows.py holds them equal, bit for bit, to the plain passes of ops/row_passes.py.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace lograd {

// Of the finite elements; `low > high` where there is none.
struct Range {
    float low, high;
    bool nan;
};

struct RowCounts {
    std::int64_t zeros = 0, nans = 0, clipped = 0;
};

// One number of each kind per row.  A code is round(scale (x - low)) + zero; what lies outside [smallest, largest] counts
// as saturated.
struct RowParameters {
    const float *scale, *low, *zero, *smallest, *largest;
    std::size_t columns;
};

// Rows `order[p]` in groups that begin where first[p] == p.  In a group of n rows `share[p]` is 1 / sqrt n, and the
// reflection H = I - v v^T / (1 - 1 / sqrt n), v = 1 / sqrt n - e1, sends e1 to 1 / sqrt n.
// Forward: H diag(stretch) clamp(x, smallest, largest).  Inverse: diag(1 / stretch) H x.
struct Reflection {
    bool inverse;
    Type type;  // of x if forward, of y if inverse; the other side is float32
    const void* x;
    void* y;
    std::size_t rows, columns;
    const std::int64_t *order, *first;
    const float* stretch;
    const double* share;
    const float *smallest, *largest;  // by row; null if inverse
};

struct RowKernels {
    void (*range)(Type, const void* x, std::size_t count, Range&);
    // p.x starts at element `position` of the matrix.  p.y takes codes, or values of the type of x.  Memory `ahead` of an
    // element (in elements) is asked for along with it.
    void (*quantize)(const Piece& p, std::size_t position, std::size_t ahead, const RowParameters&, float bins,
                     bool stochastic, bool codes, RowCounts&);
    void (*dequantize)(const Piece& p, std::size_t position, const RowParameters&, float bins);
    void (*reflect)(const Reflection&, std::size_t begin_column, std::size_t end_column, RowCounts&);
};

const RowKernels& generic_row_kernels();
const RowKernels& avx2_row_kernels();
const RowKernels& avx512_row_kernels();

// A matrix of `rows` x `columns` elements, one row after the other.
struct Matrix {
    Type type;
    const void* x;
    std::size_t rows, columns;
};

// out[0..rows) lows, then highs, then 1 where a row has a NaN.
void row_ranges(const Matrix&, float* out, int threads);
// `parameters` are five lists of one number per row, in the order of RowParameters.
RowCounts quantize_rows(const Matrix&, void* y, const float* parameters, float bins, bool stochastic, bool codes,
                     std::uint64_t seed, std::uint64_t offset, int threads);
// The same with each row's own range, in one pass over memory where a row fits the cache; fills `ranges` as row_ranges
// does, and `parameters`.
RowCounts quantize_samples(const Matrix&, void* y, float* ranges, float* parameters, float bins, bool stochastic, bool codes,
                        std::uint64_t seed, std::uint64_t offset, int threads);
// out[0] the largest finite magnitude m, out[1] the scale top / m: finite, and 1 if m is 0.
void largest_and_scale(const Matrix&, float top, float* out, int threads);
// One range for the whole matrix, with zero as a code: `tensor_parameters` in ops/row_passes.py.  Fills `ranges` and
// `parameters` for one row.
RowCounts quantize_tensor(const Matrix&, void* y, float* ranges, float* parameters, float bins, bool stochastic, bool codes,
                          std::uint64_t seed, std::uint64_t offset, int threads);
// `levels` on either side of zero, up to gamma times the largest magnitude: `interval_parameters` there.  `statistics` are
// that magnitude and the share of elements beyond the interval.
RowCounts quantize_interval(const Matrix&, void* y, double* statistics, float* parameters, double gamma, float levels,
                            bool stochastic, bool codes, std::uint64_t seed, std::uint64_t offset, int threads);
// The codes are matrix.x; matrix.type is that of y.  `parameters` are three lists: scale, low, zero.
void dequantize_rows(const Matrix&, void* y, const float* parameters, float bins, int threads);
RowCounts reflect_rows(const Reflection&, int threads);

}  // namespace lograd
