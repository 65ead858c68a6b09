// Number formats as kernels see them, as plain data.

#pragma once

#include <cstddef>

namespace lograd {

// A float format of M mantissa bits, or an integer; `Grid` in ops/elementwise.py.
struct Grid {
    bool integer;           // steps of 1 instead of steps that grow with the exponent
    int mantissa;           // M
    int smallest_exponent;  // of the smallest normal number
    bool odd_exponents_up;  // without mantissa: ties go up where the exponent is odd (else where it is even)
    float largest, largest_negative;
};

// A format of at most 8 bits and its codes; see `Coding` in ops/codes.py.
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
    bool power_of_two;  // scale 2^(floor(log2 max) - element_emax), else max / element.grid.largest to nearest
    int element_emax;
    int scale_emin, scale_emax;
};

}  // namespace lograd
