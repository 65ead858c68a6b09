// A tensor as levels for integer products: bytes that count steps from a whole zero point.  ops/affine.py is
// the definition; tests/ops hold these kernels equal to it, bit for bit.

#pragma once

#include "base/types.h"

namespace lograd {

// Factors of channels: element i of the tensor's memory has factor (i / inner) mod channels.  Where inner is 1 the list
// goes on, from its start again, for kFoldTail more, so that a chunk finds its factors side by side.
struct LevelFold {
    const float* factors;
    std::size_t channels, inner;
};
constexpr std::size_t kFoldTail = 128;

// code = clamp(round(z scale), -zero, bins - zero) + zero; `smallest` and `largest` are the values of the end codes.
struct LevelParameters {
    float scale, zero, smallest, largest;
    bool empty = false;  // nothing but zeros: no levels, and a step of 0
};

// What a pass has seen of the elements z, which are those of x times their factors.
struct LevelsSeen {
    float low, high;                            // of the finite ones; low > high if there is none
    bool finite;                                // all of them
    std::int64_t zeros, clipped, zeros_before;  // codes of zero, elements outside, elements that are zero
};

// Elements from `position` on, one after the other in memory; their codes go to piece.y in the same order.
struct LevelRun {
    Piece piece;
    std::size_t position;
    const LevelFold* fold;  // null if there is none
    LevelParameters parameters;
    float bins;
    bool stochastic;
    bool look;  // false if all elements are known to be finite and inside the range: only zeros are counted
};

// A tensor in memory: `batch` times `channels` planes of `inner` elements.  Codes lie in the same order, or with
// `transposed` the channels of each place side by side.
struct LevelTensor {
    Type type;
    const void* x;
    std::uint8_t* codes;
    std::size_t batch, channels, inner;
    bool transposed;
};

struct LevelRounding {
    bool per_row;         // one range for each of the batch
    const float* limits;  // lows, then highs; null if ranges are those of the elements
    const float* fold;    // null, or as many as `fold_channels`
    std::size_t fold_channels, fold_inner;
    int bits;
    bool symmetric, power_of_two, stochastic;
    Key key;
    int threads;
};

// `parameters` are two lists of one number per range, scales and zeros; `found` are lows and highs.
Counts integer_codes(const LevelTensor&, const LevelRounding&, float* parameters, float* found);

// The largest magnitude of each channel, NaN where an element is NaN; `inner` is 1 where channels lie side by side, and
// then each of the batch may have a factor.
void column_largest(const float* x, std::size_t batch, std::size_t channels, std::size_t inner, const float* factors,
                    float* out, int threads);

// A range for each row in which one code of so many bits stands for zero in all of them: lows, then highs.
void row_limits(const float* x, std::size_t rows, std::size_t columns, int bits, float* limits, int threads);

// The kernels of one instruction set.
struct LevelKernels {
    void (*range)(const LevelRun&, LevelsSeen&);
    void (*quantize)(const LevelRun&, LevelsSeen&);
    // Bytes of a matrix whose rows lie `stride` apart to columns `to_stride` apart.  Up to 15 rows and 15 bytes beyond
    // the matrix are read.
    void (*transpose)(const std::uint8_t* from, std::size_t rows, std::size_t columns, std::size_t stride,
                      std::uint8_t* to, std::size_t to_stride);
    // Raises `largest`, the bits of a magnitude for each column, to that of elements, times the factor of their row.
    void (*largest_of_columns)(const float* x, std::size_t rows, std::size_t columns, const float* factors,
                               std::int32_t* largest);
    std::int32_t (*largest_of_all)(const float* x, std::size_t count);
};

}  // namespace lograd
