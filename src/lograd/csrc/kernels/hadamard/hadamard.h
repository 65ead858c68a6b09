// The random Hadamard transform.  tests/ops hold it equal, bit for bit, to ops/hadamard.py.

#pragma once

#include "base/types.h"

namespace lograd {

// Rows of `columns` elements, transformed in blocks of 16, 32, 64 or 128.
struct Hadamard {
    Type type;
    const void* x;
    void* y;
    std::size_t rows, columns, block;
    const std::uint64_t* seed;  // of the random signs, or null for none
    bool inverse;
    int threads;
};

void hadamard(const Hadamard&);

// What a kernel needs beside that.
struct HadamardPiece {
    const Hadamard& task;
    const std::uint32_t* signs;  // one bit for each column, or null
    bool past_cache;
};

// The kernels of one instruction set.
struct HadamardKernels {
    // Random signs of blocks of 128 columns, four words for each block.
    void (*signs)(std::uint64_t seed, std::size_t blocks, std::uint32_t* words);
    // Blocks first to last - 1 of the whole tensor.
    void (*transform)(const HadamardPiece&, std::size_t first, std::size_t last);
};

}  // namespace lograd
