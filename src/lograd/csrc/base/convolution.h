// The shape of a convolution over images.  A linear layer is one with one tap over an image one pixel wide.

#pragma once

#include <cstddef>

namespace lograd {

struct Axis {
    std::size_t input, output, kernel, stride, padding, dilation;
};

struct ConvolutionShape {
    std::size_t batch, channels, outputs, groups;
    Axis y, x;
};

}  // namespace lograd
