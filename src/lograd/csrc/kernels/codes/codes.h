// Values to codes of at most 8 bits and back, one byte each, and two codes of 4 bits in a byte.  tests/ops hold them equal,
// bit for bit, to ops/codes.py.

#pragma once

#include "base/types.h"
#include "rounding/formats.h"

namespace lograd {

struct QuantizeCodes {
    Type type;
    const void* x;
    std::uint8_t* codes;
    std::size_t count;
    const Coding* coding;
    float scale;
    bool stochastic;
    Key key;
    int threads;
};

struct DequantizeCodes {
    const std::uint8_t* codes;
    Type type;
    void* y;
    std::size_t count;
    const Coding* coding;
    float scale;
    int threads;
};

Counts quantize_codes(const QuantizeCodes&);
void dequantize_codes(const DequantizeCodes&);

// Rows of `columns` codes to rows of (columns + 1) / 2 bytes, the first code in the low half; false if a code exceeds 15.
bool pack_nibbles(const std::uint8_t* codes, std::uint8_t* packed, std::size_t rows, std::size_t columns, int threads);
void unpack_nibbles(const std::uint8_t* packed, std::uint8_t* codes, std::size_t rows, std::size_t columns,
                    int threads);

// The kernels of one instruction set.
struct CodeKernels {
    // p.y takes one byte for each element.
    void (*quantize)(const Piece& p, const Coding&, float scale, bool stochastic, Counts&);
    // p.x are codes; p.type is that of p.y.
    void (*dequantize)(const Piece& p, const Coding&, float scale);
    bool (*pack_nibbles)(const std::uint8_t* codes, std::uint8_t* packed, std::size_t rows, std::size_t columns);
    void (*unpack_nibbles)(const std::uint8_t* packed, std::uint8_t* codes, std::size_t rows, std::size_t columns);
};

}  // namespace lograd
