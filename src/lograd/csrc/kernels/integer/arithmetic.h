// How the integers of one product are summed: as bytes or as words, and what is left to correct at the end.

#pragma once

#include <vector>

#include "kernels/integer/integer.h"
#include "kernels/integer/tile.h"

namespace lograd {

// Panels of B, so many bytes apart.
struct Panels {
    const std::uint8_t* first;
    std::size_t count, stride, units;
};

// With a and b as they are packed, a' = a - a_shift and b' = b - b_shift, the exact sum is
//     sum a' b' - a_zero sum b' - b_zero sum a' + k a_zero b_zero.
// Bytes a' are unsigned, bytes b' signed.
struct Arithmetic {
    const IntegerKernels& kernels;
    MicroKernels units;
    std::size_t steps;  // units of a group: those that sums of 16 bits hold, whatever the bytes are
    int a_most;         // the largest a'
    int a_shift, b_shift, a_zero, b_zero;
    bool wide;  // the exact sum may leave 32 bits

    // The largest bytes are those of the operands; 255 will do where that of a is not known to be less.
    Arithmetic(const IntegerKernels& kernels, int a_zero, int a_largest, int b_zero, int b_largest, std::size_t k);
    // Sums words, which leave nothing to correct.
    void take_words();
    std::size_t count(std::size_t k) const { return (k + units.per - 1) / units.per; }
    // Units of a group that sums of 16 bits hold with these packed panels, which are more where few bytes are large.  To look
    // at them pays where many rows follow.
    std::size_t steps_for(const Panels& panels, std::size_t rows, int threads) const;
};

// Adds a segment to a list of segments in groups of at most so many units.
void append(std::vector<Segment>& groups, Segment segment, std::size_t steps, std::ptrdiff_t a_step,
            std::ptrdiff_t b_step);

// The sums of a tile: modulo 2^32, or whole where 32 bits may not hold them.
struct Sums {
    std::int32_t tile[kMaxMR * kMaxNR];
    std::int64_t wide[kMaxMR * kMaxNR];
};

// The columns of the result, in whole panels.
struct ColumnTerms {
    std::int32_t* offsets;
    std::int64_t* wide_offsets;
    float* scales;
    float* bias;  // null where there is none

    ColumnTerms(std::int32_t* narrow, std::int64_t* wide, float* scales_, float* bias_)
        : offsets(narrow), wide_offsets(wide), scales(scales_), bias(bias_) {}
    static constexpr std::size_t kBytes = 2 * sizeof(float) + sizeof(std::int32_t) + sizeof(std::int64_t);
    // In memory for kBytes times `count`, a multiple of 16.
    ColumnTerms(void* memory, std::size_t count, bool has_bias);
    // Expands scales and bias of `columns` of them.
    void fill(std::size_t columns, std::size_t count, const Scales& scales, const float* bias) const;
};

// All segments of a product, in groups, with the sums over b' and over a' that its zeros ask for.
class KLoop {
    const Arithmetic& arithmetic_;
    const Segment* segments_;
    std::size_t count_;
    std::ptrdiff_t a_step_, b_step_;

public:
    KLoop(const Arithmetic& arithmetic, const Segment* segments, std::size_t count, std::ptrdiff_t a_step,
          std::ptrdiff_t b_step)
        : arithmetic_(arithmetic), segments_(segments), count_(count), a_step_(a_step), b_step_(b_step) {}

    // Sums of a tile over all segments; in `wide` if 32 bits may not hold them.
    void operator()(const std::uint8_t* const* rows, const std::uint8_t* panel, Sums& sums) const;
    // The offsets of the columns of a panel, for k elements summed.
    void column_offsets(const std::uint8_t* panel, std::size_t k, const ColumnTerms& columns, std::size_t first) const;
    // The offset of each row; false, and nothing, where there is none.
    bool row_offsets(const std::uint8_t* const* rows, std::int64_t* offsets) const;
};

struct OutputTile {
    std::size_t rows, columns, first_column;  // of the result
    const std::int64_t* row_offsets;          // may be null
    const float* row_scales;                  // may be null
    float* const* out;                        // where each row begins
    bool past_cache;                          // a large result is written so, where its vectors are aligned
};

// Writes a tile to its place in the result.
void write_tile(const Arithmetic& arithmetic, const Sums& sums, const ColumnTerms& columns, const OutputTile& place);

}  // namespace lograd
