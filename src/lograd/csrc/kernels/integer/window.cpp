#include "kernels/integer/window.h"

#include <algorithm>

namespace lograd {

PaddedAxis output_axis(const Axis& a) {
    AxisPhase phase{a.output, 0, 1, 0, a.stride, {}};
    for (std::size_t k = 0; k < a.kernel; ++k) phase.taps.push_back({k, k * a.dilation});
    const std::size_t size = (a.output - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
    return {size, a.padding, size > a.padding ? std::min(a.input, size - a.padding) : 0, {phase}};
}

// A pixel i of the input was read by output o through tap k where i + padding = o stride + k dilation.  With
// i + padding = q stride + r, taps of this phase have k dilation = t stride + r, and o = q - t.
PaddedAxis input_gradient_axis(const Axis& a) {
    const std::size_t before = (a.kernel - 1) * a.dilation / a.stride, last = (a.input - 1 + a.padding) / a.stride;
    PaddedAxis axis{last + before + 1, before, std::min(a.output, last + 1), {}};
    for (std::size_t r = 0; r < a.stride; ++r) {
        // The first q whose pixel is inside.
        const std::size_t q = a.padding > r ? (a.padding - r + a.stride - 1) / a.stride : 0;
        const std::size_t first = q * a.stride + r - a.padding;
        if (first >= a.input) continue;
        AxisPhase phase{(a.input - 1 - first) / a.stride + 1, first, a.stride, q, 1, {}};
        for (std::size_t k = a.kernel; k-- > 0;)
            if (k * a.dilation % a.stride == r) phase.taps.push_back({k, before - k * a.dilation / a.stride});
        axis.phases.push_back(phase);
    }
    return axis;
}

}  // namespace lograd
