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

// True for a convolution of single pixels, which is a linear layer with a row for each of them.
inline bool is_pixelwise(const ConvolutionShape& layer) {
    const auto plain = [](const Axis& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.padding == 0; };
    return layer.groups == 1 && plain(layer.y) && plain(layer.x);
}

}  // namespace lograd
