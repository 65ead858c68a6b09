// Blocks of elements that share a scale.  tests/ops hold the kernels equal, bit for bit, to ops/blocks.py.

#pragma once

#include "base/types.h"
#include "rounding/formats.h"

namespace lograd {

// Rows of `columns` elements.  Blocks are numbered row by row; the last one of a row may be short.
struct Blocks {
    const BlockCoding* coding;
    Type type;
    const void* x;
    void* y;               // values, or null: then codes and scales
    std::uint8_t* codes;   // one for each element
    std::uint8_t* scales;  // one for each block
    std::size_t rows, columns;
    float tensor_scale;
    float largest;  // finite number of the type
    bool stochastic, unbiased, past_cache;
    Key key;
    int threads;
};

Counts quantize_blocks(Blocks);
void dequantize_blocks(Blocks);

// The kernels of one instruction set, each for blocks first to last - 1.
struct BlockKernels {
    void (*quantize)(const Blocks&, std::size_t first, std::size_t last, Counts&);
    void (*dequantize)(const Blocks&, std::size_t first, std::size_t last);
};

}  // namespace lograd
