// How a convolution reads an image: which pixels of a padded copy meet which taps of the kernel.

#pragma once

#include <cstddef>
#include <vector>

#include "kernels/integer/integer.h"

namespace lograd {

// A tap of the kernel along one axis, and how far from a result's first pixel it reads.
struct AxisTap {
    std::size_t kernel, offset;
};

// Results along one axis that meet the same taps: number i lies at first + i step, and reads from from_first + i from_step on.
struct AxisPhase {
    std::size_t count, first, step, from_first, from_step;
    std::vector<AxisTap> taps;  // by offset
};

// A padded axis: the pixels that are there begin at `padding`, and `kept` of them are read.
struct PaddedAxis {
    std::size_t size, padding, kept;
    std::vector<AxisPhase> phases;
};

// Along which the output is computed from the input.
PaddedAxis output_axis(const Axis& axis);
// Along which the gradient of the input is computed from that of the output; a phase for each remainder of the stride.
PaddedAxis input_gradient_axis(const Axis& axis);

}  // namespace lograd
