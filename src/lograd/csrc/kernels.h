// What a kernel needs to know, and the table of kernels of one instruction set.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lograd {

enum class Type : int { kFloat32, kBfloat16, kFloat16 };

// A piece of a tensor: `count` elements from address x to address y; `index` is the random index of the first.
struct Piece {
    Type type;
    const void* x;
    void* y;
    std::size_t count;
    std::uint64_t index, seed;
};

struct Counts {
    bool wanted;
    std::int64_t zeros = 0, nans = 0, clipped = 0, zeros_before = 0;
};

// A float format of M mantissa bits, or an integer, as kernels see it; `Grid` in ops/grid.py.
struct Grid {
    bool integer;            // steps of 1 instead of steps that grow with the exponent
    int mantissa;            // M
    int smallest_exponent;   // of the smallest normal number
    bool odd_exponents_up;   // without mantissa: ties go up where the exponent is odd (else where it is even)
    float largest, largest_negative;
};

struct Kernels {
    const char* name;
    void (*stochastic_prune)(const Piece&, float threshold, Counts&);
    void (*threshold_prune)(const Piece&, float threshold, Counts&);
    void (*dither)(const Piece&, float step, Counts&);
    void (*quantize)(const Piece&, const Grid&, float scale, bool stochastic, Counts&);
};

const Kernels& generic_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// The kernels in use: the widest that this CPU runs, unless use_isa says less.
const Kernels& kernels();
// Null if the name is not one of this build and CPU.
const Kernels* use_isa(const char* name);

}  // namespace lograd
