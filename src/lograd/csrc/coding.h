// Formats with their codes, and the table of the kernels that read and write codes and blocks, for one instruction set.

#pragma once

#include "kernels.h"

namespace lograd {

// A format of at most 8 bits and its codes; see `Coding` in ops/packed.py.
struct Coding {
    Grid grid;
    int largest, largest_negative;     // codes of the extreme magnitudes
    int negative_base, negative_step;  // magnitude code c > 0 becomes base + step c: a sign bit, or two's complement
    int negative_zero, nan;            // code 0 where the format has none
    float values[256];                 // what each byte stands for; NaN where it is no code
};

// Blocks of `size` elements with one scale; see `BlockCoding` in ops/blocks.py.
struct BlockCoding {
    Coding element, scale;
    std::size_t size;
    bool power_of_two;      // scale 2^(floor(log2 max) - element_emax), else max / element.grid.largest to nearest
    int element_emax;
    int scale_emin, scale_emax;
};

// Rows of `columns` elements.  Blocks are numbered row by row; the last one of a row may be short.
struct Blocks {
    const BlockCoding* coding;
    Type type;
    const void* x;
    void* y;               // values, or null: then codes and scales
    std::uint8_t* codes;   // one for each element
    std::uint8_t* scales;  // one for each block
    std::size_t columns;
    float tensor_scale;
    float largest;  // finite number of the type
    bool stochastic, unbiased, past_cache;
    std::uint64_t seed, offset;

    std::size_t per_row() const { return (columns + coding->size - 1) / coding->size; }
};

struct Hadamard {
    Type type;
    const void* x;
    void* y;
    std::size_t block, columns;
    const std::uint32_t* signs;  // one bit for each column, or null
    bool inverse, past_cache;
};

struct CodeKernels {
    // y holds one byte for each element.
    void (*quantize_codes)(const Piece&, const Coding&, float scale, bool stochastic, Counts&);
    void (*dequantize_codes)(const std::uint8_t* codes, Type, void* y, std::size_t count, const Coding&, float scale);
    // Rows of `columns` codes to rows of (columns + 1) / 2 bytes, the first code in the low half; false if a code exceeds 15.
    bool (*pack_nibbles)(const std::uint8_t* codes, std::uint8_t* packed, std::size_t rows, std::size_t columns);
    void (*unpack_nibbles)(const std::uint8_t* packed, std::uint8_t* codes, std::size_t rows, std::size_t columns);
    // Blocks first to last - 1, of x or of codes and scales.
    void (*quantize_blocks)(const Blocks&, std::size_t first, std::size_t last, Counts&);
    void (*dequantize_blocks)(const Blocks&, std::size_t first, std::size_t last);
    // Blocks first to last - 1 of the whole tensor.
    void (*hadamard)(const Hadamard&, std::size_t first, std::size_t last);
};

const CodeKernels& generic_code_kernels();
const CodeKernels& avx2_code_kernels();
const CodeKernels& avx512_code_kernels();

// Those of the instruction set in use.
const CodeKernels& code_kernels();

}  // namespace lograd
