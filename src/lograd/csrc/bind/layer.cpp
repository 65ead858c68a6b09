// Layers whose operands are rounded and multiplied in one call.

#include "kernels/integer/layer.h"

#include <nanobind/stl/array.h>

#include "bind/bind.h"
#include "kernels/levels/levels.h"

namespace lograd {
namespace {

using A = Address;
using N = Size;
// (bits, range, shared zero, symmetric, stochastic, power of two, key, memory, counters): `Site.rule`.
using Rule = std::array<std::int64_t, 9>;
// (convolves, batch, channels, outputs, groups, y, x), an axis as in `axis`.
using Shape = std::array<N, 17>;

OperandRule rule_of(const Rule& r, bool held) {
    const auto address = [](std::int64_t value) { return static_cast<Address>(value); };
    return {static_cast<int>(r[0]),
            static_cast<OperandRule::Range>(r[1]),
            r[2] != 0,
            r[3] != 0,
            r[4] != 0,
            r[5] != 0,
            at<std::int64_t>(address(r[6])),
            at<double>(address(r[7])),
            held ? nullptr : at<std::int64_t>(address(r[8]))};
}

LayerShape shape_of(const Shape& s, int threads) {
    const Axis y{s[5], s[6], s[7], s[8], s[9], s[10]}, x{s[11], s[12], s[13], s[14], s[15], s[16]};
    return {{s[1], s[2], s[3], s[4], y, x}, s[0] != 0, threads};
}

Codes codes_at(A codes, A parameters, N ranges) { return {at<std::uint8_t>(codes), at<float>(parameters), ranges}; }

int output(const Shape& shape, const Rule& of_x, A x, bool x_last, A x_codes, A x_parameters, N x_ranges,
           const Rule& of_weight, A weight, bool weight_last, A weight_codes, A weight_parameters, N weight_ranges,
           A bias, A y, bool held, int threads) {
    const LayerShape s = shape_of(shape, threads);
    const ConvolutionShape& l = s.layer;
    const OperandTensor first{at<const float>(x), l.batch, l.channels, l.y.input * l.x.input, x_last};
    const OperandTensor second{at<const float>(weight), l.outputs, l.channels / l.groups, l.y.kernel * l.x.kernel,
                               weight_last};
    return static_cast<int>(layer_output(
        s, rule_of(of_x, held), first, codes_at(x_codes, x_parameters, x_ranges), rule_of(of_weight, held), second,
        codes_at(weight_codes, weight_parameters, weight_ranges), at<const float>(bias), at<float>(y)));
}

int gradient(bool of_weight, const Shape& shape, const Rule& rule, A g, bool g_last, A codes, A parameters, N ranges,
             bool folds, bool skips_rows, A out, bool out_last, A d_bias, int threads) {
    const LayerShape s = shape_of(shape, threads);
    const ConvolutionShape& l = s.layer;
    const OperandTensor tensor{at<const float>(g), l.batch, l.outputs, l.y.output * l.x.output, g_last};
    const GradientProduct product{
        rule_of(rule, false), tensor, codes_at(codes, parameters, ranges), folds, skips_rows, at<float>(out), out_last,
        at<float>(d_bias)};
    return static_cast<int>(of_weight ? layer_weight_gradient(s, product) : layer_input_gradient(s, product));
}

}  // namespace

void bind_layer(Functions& functions) {
    functions.kernel("layer_output", &output);
    functions.kernel("layer_gradient", &gradient);
    functions.kernel("row_limits", [](A x, N rows, N columns, int bits, A limits, int threads) {
        row_limits(at<const float>(x), rows, columns, bits, at<float>(limits), threads);
    });
}

}  // namespace lograd
