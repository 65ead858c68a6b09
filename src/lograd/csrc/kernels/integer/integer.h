// Products of small integers, exact: sums of (a - a_zero)(b - b_zero) over bytes a and b, scaled to float32 at the end as
//     r = float(sum) * column_scale;  r = r * row_scale;  r = r + bias
// one rounding after the other.  Results do not depend on the instruction set or on the threads.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/convolution.h"

namespace lograd {

// One factor for all, one for each, or none.
struct Scales {
    const float* values;  // may be null
    std::size_t count;
};

struct Bytes {
    const std::uint8_t* data;
    int zero;
};

// C[m, n] = sum_k A[m, k] B[k, n] for each of a batch; strides in elements.
struct IntegerMatmul {
    std::size_t batch, m, n, k;
    Bytes a;
    std::size_t a_batch, a_row, a_k;  // of the last two, one is 1
    Bytes b;
    std::size_t b_batch, b_k, b_column;  // of the last two, one is 1
    Scales rows, columns;
    const float* bias;  // may be null
    float* out;         // (batch, m, n)
    int threads;
};

// Images are (batch, y, x, channels) in memory, weights (outputs, y, x, channels / groups).
// The output (a: input, b: weight), the gradient of the input (a: gradient, b: weight) or of the weight (a: gradient,
// b: input).  Columns are output channels; rows are output channels where the result is the weight's gradient.
struct IntegerConvolution {
    ConvolutionShape layer;
    Bytes a, b;
    Scales rows, columns;
    const float* bias;
    float* out;
    int threads;
};

// C[m, n] = scale * sum over blocks of (float(sum in the block) * a_scale) * b_scale, blocks in order; then + bias.
struct IntegerBlocks {
    std::size_t m, n, k, block;
    Bytes a;  // (m, k)
    const float* a_scales;
    Bytes b;  // (n, k)
    const float* b_scales;
    float scale;
    const float* bias;
    float* out;
    int threads;
};

void integer_matmul(const IntegerMatmul&);
void integer_convolution(const IntegerConvolution&);
void integer_input_gradient(const IntegerConvolution&);
void integer_weight_gradient(const IntegerConvolution&);
void integer_block_matmul(const IntegerBlocks&);
// to[i] = table[from[i]]: codes of a format as levels.
void look_up(const std::uint8_t* from, std::uint8_t* to, std::size_t count, const std::uint8_t* table, int threads);

}  // namespace lograd
