// Passes over the rows of a matrix: their ranges, their integer codes and back, and Householder reflections of groups of
// rows.  tests/ops hold them equal, bit for bit, to the definitions of ops/affine.py and ops/householder.py.

#pragma once

#include "base/types.h"

namespace lograd {

// A matrix of `rows` x `columns` elements, one row after the other.
struct Matrix {
    Type type;
    const void* x;
    std::size_t rows, columns;
};

// How rows become codes, or the values that the codes stand for.
struct RowRounding {
    void* y;
    float bins;  // the largest code
    bool stochastic, codes;
    Key key;
    int threads;
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

// out[0..rows) lows, then highs, then 1 where a row has a NaN.
void row_ranges(const Matrix&, float* out, int threads);
// out[0] the largest finite magnitude m, out[1] the scale top / m: finite, and 1 if m is 0.
void largest_and_scale(const Matrix&, float top, float* out, int threads);

// `parameters` are five lists of one number per row, in the order of RowParameters.  Each of these fills them.
//
// Each row with its own range, in one pass over memory where a row fits the cache; fills `ranges` as row_ranges does.
Counts quantize_samples(const Matrix&, const RowRounding&, float* ranges, float* parameters);
// One range for the whole matrix, with zero as a code: `tensor_parameters` in ops/affine.py.
Counts quantize_tensor(const Matrix&, const RowRounding&, float* ranges, float* parameters);
// rounding.bins / 2 levels on either side of zero, up to gamma times the largest magnitude: `interval_parameters` there.
// `statistics` are that magnitude and the share of elements beyond the interval.
Counts quantize_interval(const Matrix&, const RowRounding&, double gamma, double* statistics, float* parameters);
// The codes are matrix.x; matrix.type is that of y.  `parameters` are three lists: scale, low, zero.
void dequantize_rows(const Matrix&, void* y, const float* parameters, float bins, int threads);

Counts reflect_rows(const Reflection&, int threads);

// The range of the finite elements; `low > high` where there is none.
struct Range {
    float low, high;
    bool nan;
};

// One number of each kind per row.  A code is round(scale (x - low)) + zero; what lies outside [smallest, largest] counts
// as clipped.
struct RowParameters {
    const float *scale, *low, *zero, *smallest, *largest;
    std::size_t columns;
};

// A piece of a matrix from element `position` on.  Memory `ahead` of an element (in elements) is asked for along with it.
struct RowPiece {
    Piece piece;
    std::size_t position, ahead;
    const RowParameters& rows;
    float bins;
    bool stochastic, codes;
};

// The kernels of one instruction set.
struct RowKernels {
    void (*range)(Type, const void* x, std::size_t count, Range&);
    void (*quantize)(const RowPiece&, Counts&);
    void (*dequantize)(const RowPiece&);
    void (*reflect)(const Reflection&, std::size_t begin_column, std::size_t end_column, Counts&);
};

}  // namespace lograd
