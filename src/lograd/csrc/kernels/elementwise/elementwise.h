// The elementwise kernels: what is pruned, dithered or quantized element by element.  tests/ops hold them equal, bit for
// bit, to ops/elementwise.py.

#pragma once

#include "base/types.h"
#include "rounding/formats.h"

namespace lograd {

// What all of them take.
struct Elementwise {
    Type type;
    const void* x;
    void* y;
    std::size_t count;
    Key key;
    int threads;
    std::int64_t* counts;  // zeros, NaN, clipped, zeros of x are added to these four; null if nobody wants them
};

void stochastic_prune(const Elementwise&, float threshold);
void threshold_prune(const Elementwise&, float threshold);
void dither(const Elementwise&, float step);
void quantize(const Elementwise&, const Grid&, float scale, bool stochastic);

// The kernels of one instruction set, each for one piece.
struct ElementwiseKernels {
    void (*stochastic_prune)(const Piece&, float threshold, Counts&);
    void (*threshold_prune)(const Piece&, float threshold, Counts&);
    void (*dither)(const Piece&, float step, Counts&);
    void (*quantize)(const Piece&, const Grid&, float scale, bool stochastic, Counts&);
};

}  // namespace lograd
