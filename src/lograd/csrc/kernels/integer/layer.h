// The three products of a layer, each in one call: operands are rounded to bytes, counted, multiplied and scaled.
// engine/backends/integer.py is the definition, in steps; tests/engine hold both equal, bit for bit.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/convolution.h"

namespace lograd {

// How an operand is rounded in a product, as the treatment `Integers` says, and what changes with each tensor.
struct OperandRule {
    enum Range { kTensor, kFirst, kColumn };  // one range; one for each of the first dimension, or of the second
    int bits;
    Range range;
    bool shared_zero;  // ranges of rows are widened so that one code stands for zero in all of them
    bool symmetric, stochastic, power_of_two;
    std::int64_t* key;
    double* memory;  // low and high of the next range, and the tensors behind them; null where ranges are those at hand
    std::int64_t* counters;  // those of a site, in the order of engine/site.py; null in an evaluation
};

// A float32 operand of (batch, channels, inner) or, with channels last, (batch, inner, channels).  Its codes have the
// channels last.
struct OperandTensor {
    const float* x;
    std::size_t batch, channels, inner;
    bool channels_last;
};

// Codes and, in two lists, scales and zeros.  Scales are NaN where an element was not finite.
struct Codes {
    std::uint8_t* codes;
    float* parameters;
    std::size_t ranges;
};

enum class Outcome : int {
    kDone,
    kNotFinite,  // an operand was not; it is counted, its codes are of no use, and there is no product
    kElsewhere,  // steps leave the range of float32: nothing has changed, and the definition computes the product
};

// A linear layer is a convolution of one tap over images of one pixel.
struct LayerShape {
    ConvolutionShape layer;
    bool convolves;
    int threads;
};

// Y, and codes of the activations and the weights.
Outcome layer_output(const LayerShape&, const OperandRule& of_x, const OperandTensor& x, const Codes& x_codes,
                     const OperandRule& of_weight, const OperandTensor& weight, const Codes& weight_codes,
                     const float* bias, float* y);

// A gradient in one of its two products, and what becomes of it.
struct GradientProduct {
    OperandRule rule;
    OperandTensor g;
    Codes other;      // what it meets
    bool folds;       // it is multiplied by the steps of `other` before it is rounded
    bool skips_rows;  // samples, or pixels of a convolution of one, that are zero are left out where they are many
    float* out;
    bool out_last;  // dW alone: its input channels lie last, and not before the pixels of the kernel
    float* d_bias;  // may be null; dW alone, and not where it folds
};

Outcome layer_input_gradient(const LayerShape&, const GradientProduct&);
Outcome layer_weight_gradient(const LayerShape&, const GradientProduct&);

}  // namespace lograd
