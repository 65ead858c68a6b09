// What an instruction set brings to products of small integers: one tile, and the passes before and after it.
//
// A product C[m, n] = sum_k A[m, k] B[k, n] is cut into tiles of a few rows and columns.  Elements are bytes, A unsigned and
// B signed, or 16-bit words where bytes would overflow; four bytes or two words of A, a unit, are broadcast and meet the
// same four or two k of each column of B.  Rows of A are read where they lie, through pointers.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace lograd {

// Units that follow each other at constant steps, at least one: where they begin in each row of A and in B, in bytes.
struct Segment {
    std::ptrdiff_t a, b;
    std::size_t units;
    std::size_t flush;  // 1 where sums of 16 bits may hold no more: the end of a group
};

struct Tile {
    const std::uint8_t* const* rows;  // as many as the kernel has, all of them readable
    const std::uint8_t* panel;
    const Segment* segments;  // the last one is the end of a group
    std::size_t count;
    std::ptrdiff_t a_step, b_step;
    std::int32_t* sums;  // the kernel's rows and columns, modulo 2^32
    bool add;            // to what they are
};

// A tile whose k is cut into blocks with factors of their own:
//     sum over blocks, in order, of (float(sum - offset) * a_scale) * b_scale.
struct BlockTile {
    const std::uint8_t* const* rows;
    const std::uint8_t* panel;
    std::ptrdiff_t a_step, b_step;
    std::size_t blocks, units;     // units of a block
    std::size_t steps;             // units of a group at most
    const std::int32_t* offsets;   // (blocks, columns)
    const float* const* a_scales;  // of each row, one for each block
    const float* b_scales;         // (blocks, columns)
    float* sums;                   // block_mr x NR of the kernel
};

// The end of a tile: r = float(sum - offsets) * column_scale [* row_scale] [+ bias].
struct Epilogue {
    const std::int32_t* sums;
    std::size_t rows, columns;  // of the result, at most those of the kernel
    const std::int32_t* column_offsets;
    const std::int32_t* row_offsets;  // may be null
    const float* column_scales;       // these and the offsets have whole panels
    const float* row_scales;          // may be null
    const float* bias;                // may be null, else a whole panel
    float* const* out;                // where each row begins
    bool past_cache;                  // rows of vectors are aligned
};

// Elements to put side by side: `outer` units of `per` k each, from a matrix in which neighbours in k or in columns lie
// together.  The result is out[unit][column][per]; columns and k beyond the end are filled with `fill`.
struct Packing {
    const std::uint8_t* from;
    std::size_t k_stride, column_stride;  // one of them is 1
    std::size_t k, columns;               // that there are
    std::size_t width;                    // columns of the result
    int shift;                            // subtracted from each element
    int fill;                             // after the shift
    void* out;
};

struct MicroKernels {
    std::size_t per;  // elements of a unit
    void (*tile)(const Tile&);
    void (*twin)(const Tile&);  // the same in plain code, which tests compare it with
    void (*blocks)(const BlockTile&);
    void (*pack)(const Packing&);
};

// The end of a tile with blocks: r = sum * scale [+ bias].
struct BlockEpilogue {
    const float* sums;
    std::size_t rows, columns;
    float scale;
    const float* bias;  // may be null
    float* out;
    std::size_t out_stride;
    bool past_cache;  // rows of vectors are aligned
};

struct IntegerKernels {
    std::size_t mr, nr;         // rows and columns of a tile
    std::size_t block_mr;       // rows of a tile with blocks
    bool exact;                 // sums of bytes never overflow, whatever they are
    MicroKernels bytes, words;  // bytes.tile may be null
    void (*epilogue)(const Epilogue&);
    void (*block_epilogue)(const BlockEpilogue&);
    int (*largest)(const std::uint8_t* x, std::size_t count);
    // Units, at most kLongestGroup, that any group of a panel of bytes B may have so that in no column the magnitudes of two
    // neighbouring bytes, summed over the group, exceed the limit; 0 where kGroupBlock are too many.  `sums` are 2 NR numbers
    // for each block.
    std::size_t (*longest_group)(const std::uint8_t* panel, std::size_t units, int limit, std::int16_t* sums);
    // to[i] = table[from[i]], with 256 entries.
    void (*look_up)(const std::uint8_t* from, std::uint8_t* to, std::size_t count, const std::uint8_t* table);
};

// At most so many rows and columns has a tile of any kernel.
constexpr std::size_t kMaxMR = 8, kMaxNR = 32;
// With so many units, sums of 16 bits hold those of A itself, whose bytes are at most 255.
constexpr std::size_t kLongestGroup = 64, kGroupBlock = 4;

}  // namespace lograd
