"""Integer products of a layer: codes are multiplied as they are, and exact sums scaled once.

Activations and weights are coded for the output, and their codes are all that is saved.  In the backward the gradient
is coded for each product.  An operand that is not finite has no codes: Y, and products of such a gradient, are then
dense products of the tensor as it is, and counted.  In the backward activations or weights that were not finite are
all NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import native
from ...ops import scaled_products
from ...ops.coded import Householder
from ...ops.geometry import Geometry, output_size
from ...ops.integer_products import Fold, fold_by
from ...ops.registry import call
from ...ops.scaled_products import Steps, lists
from ...treatments import SYMBOLS
from ..autograd import CODES, Call
from ..forms import Form, Gradients, Need, empty, laid_out
from ..rows import of_rows, rows_to_multiply, scattered, without_zeros
from ..site import BY_COLUMN, CPU, Levels, Site
from . import sparse
from .choice import DENSE, INTEGER, LEAST_WORK, NAMES, SPARSE, UNDECIDED, Choice, timed

Layer = Any
"""A `LayerEngine`, which imports this module."""
_LEAST_STEP, _LARGEST_STEP = 2.0**-96, 2.0**64
"""Steps of weights between these leave sums of products in float32's range."""

NOT_FINITE, ELSEWHERE = 1, 2
"""Outcomes of the native kernels of a layer (csrc/kernels/integer/layer.h): an operand was not finite, or steps leave
the range of float32."""
MOST_SHAPES = 64
"""Shapes of tensors that a layer remembers."""

Results = tuple[Tensor, ...]


# ------------------------------------------------------------------------------------------------------ products


def output(x: Levels, weight: Levels, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return Y as float32; images lie channels-last."""
    zeros, x_step, steps = (x.zero, weight.zero), x.step, weight.step
    if geometry.stride:
        return scaled_products.scaled_convolution(x.codes, weight.codes, *zeros, Steps((x_step, steps)), bias, geometry)
    rows, columns = (Steps((x_step,)), Steps((steps,))) if len(x_step) > 1 else (None, Steps((x_step, steps)))
    return scaled_products.matmul(x.codes, weight.codes.t(), *zeros, rows, columns, bias)


def products(g: Levels, fold: Fold | None, x: Levels, weight: Levels, geometry: Geometry, need: Need) -> Results:
    """Return dX, dW and dbias as float32; what is not needed has no elements, and images lie channels-last.

    Args:
        fold: factors by which the gradient was multiplied before it was coded, its channels for dX alone, or its rows
            for dW alone; None for none.
        need: which of the three are needed; of a gradient whose codes count from the low end of each sample dX alone.
    """
    d_x, d_weight, d_bias = g.parameters.new_empty(3, 0).unbind()
    if g.low is not None:
        return input_gradient_by_sample(g, g.low, fold, weight, geometry, tuple(x.codes.shape)), d_weight, d_bias
    step, zero = g.step, g.zero
    if need[0]:
        by = Steps((step, weight.step if fold is None else fold.unit))
        codes = g.codes, weight.codes, zero, weight.zero
        if geometry.stride:
            d_x = scaled_products.convolution_input_gradient(*codes, by, geometry, x.codes.shape[2:])
        else:
            rows, columns = (by, None) if len(step) > 1 else (None, by)
            d_x = scaled_products.matmul(*codes, rows, columns, None)
    if need[1]:
        by = Steps((step, x.step if fold is None else fold.unit))
        if geometry.stride:
            codes = g.codes, x.codes, zero, x.zero
            d_weight = scaled_products.convolution_weight_gradient(*codes, by, geometry, weight.codes.shape[2:])
        else:
            d_weight = scaled_products.matmul(g.codes.t(), x.codes, zero, x.zero, by, None, None)
    if need[2]:  # the sum of each channel, exact but for one rounding and its scale
        flat = g.codes if g.codes.dim() == 2 else g.codes.permute(0, 2, 3, 1).reshape(-1, g.codes.shape[1])
        d_bias = scaled_products.matmul(flat.new_ones(1, len(flat)), flat, 0, zero, None, Steps((step,)), None).view(-1)
    return d_x, d_weight, d_bias


# ---------------------------------------------------------------------------------------- samples with their own ranges


def input_gradient_by_sample(
    g: Levels, low: Tensor, fold: Fold | None, weight: Levels, geometry: Geometry, shape: tuple[int, ...]
) -> Tensor:
    """Return dX of a gradient whose samples have ranges of their own, as PSQ and BHQ make them; float32.

    With codes c, the step s_i and the low end l_i of sample i, G_i = s_i c_i + l_i and T the mixing of samples,

        dX = T^-1 (s_i (c_i . W) + l_i (1 . W)),

    where a dot is the product of the layer: c . W is an integer one, and 1 . W is the same for all samples.

    Args:
        low: the low end of each sample.
        fold: factors by which its channels were multiplied before it was coded; None for none.
        shape: of the layer's input.
    """
    scale = weight.step if fold is None else torch.tensor([fold.unit], dtype=torch.float32)
    step, rows = g.step, (-1, *(1,) * (g.codes.dim() - 1))
    ones = torch.ones_like(g.codes[:1])
    if not _LEAST_STEP <= float(scale) <= _LARGEST_STEP:
        # Too far from 1 to come first: (s_i (c_i . W) + l_i (1 . W)) times it, in float64.
        d_x, of_ones = (_sums(codes, weight, geometry, shape, None).double() for codes in (g.codes, ones))
        d_x.mul_(step.reshape(rows)).addcmul_(low.double().reshape(rows), of_ones)
        d_x = d_x.mul_(scale.double()).float()
    elif not geometry.stride:
        d_x = call("integer_matmul", g.codes, weight.codes, 0, weight.zero, step, scale, None)
        d_x.addr_(low, _sums(ones, weight, geometry, shape, scale)[0])
    else:
        d_x, of_ones = (_sums(codes, weight, geometry, shape, scale) for codes in (g.codes, ones))
        d_x.mul_(step.reshape(rows)).addcmul_(low.reshape(rows), of_ones)
    return d_x if g.mixing is None else _separated(d_x, g.mixing)


def _sums(codes: Tensor, weight: Levels, geometry: Geometry, shape: tuple[int, ...], scale: Tensor | None) -> Tensor:
    """Return codes . W, times a scale."""
    found: Tensor
    if not geometry.stride:
        found = call("integer_matmul", codes, weight.codes, 0, weight.zero, None, scale, None)
    else:
        where = *lists(geometry), list(shape[2:])
        found = call("integer_convolution_input_gradient", codes, weight.codes, 0, weight.zero, scale, *where)
    return found


def _separated(x: Tensor, mixing: Householder) -> Tensor:
    """Return T^-1 x over rows: each group is reflected, and its rows are divided by their factors.

    H z = z - v (v . z) / (1 - 1 / sqrt n) with v = 1 / sqrt n - e1, in a group of n rows; see
    `ops.quantize_block_householder`.
    """
    order, first = mixing.groups.unbind()
    column = (-1, *(1,) * (x.dim() - 1))
    size = torch.bincount(first, minlength=len(first))[first]
    share = size.double().rsqrt()
    factor = torch.where(size > 1, 1 / (1 - share), 0.0)
    leads = torch.arange(len(first)) == first
    z = x[order]
    total = torch.zeros_like(z).index_add_(0, first, z)[first]
    along = (total * share.float().reshape(column)).sub_(z[first]).mul_(factor.float().reshape(column))
    z.addcmul_(along, (share - leads.double()).float().reshape(column), value=-1).div_(mixing.stretch.reshape(column))
    return torch.empty_like(x).index_copy_(0, order, z)


# ---------------------------------------------------------------------------------------------------- a layer of codes


class CodedProducts:
    """Computes a layer from codes of its operands.

    Args:
        layer: its engine; `reason_not_coded` has none.
    """

    mode = CODES

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.refused = ""
        """The type or device of the last tensors, where integer products do not serve it."""
        self._one_call = OneCall()

    def serves(self, x: Tensor, weight: Tensor) -> bool:
        """Return True if these tensors can be coded now."""
        if not (self.layer.activations.ready and self.layer.weights.ready):
            return False
        self.refused = reason_not_served(x, weight)
        return not self.refused and x.numel() > 0

    def packs(self, call: Call) -> bool:
        """Return True if codes of the activations are saved two to a byte."""
        site = self.layer.activations.at["output"]
        return call.need[1] and self.layer.packs and site is not None and site.nibbles

    def turned_output(self, call: Call) -> bool:
        """Return True if Y is given channels-last: where it is asked for, or PyTorch would."""
        return len(call.x_shape) == 4 and (self.layer.turns or call.x_turned or call.weight_turned)

    def output(self, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Results:
        """Return Y, and codes and parameters of activations and weights."""
        layer, form = self.layer, call.form
        sites = layer.activations.at["output"], layer.weights.at["output"]
        assert sites[0] is not None
        assert sites[1] is not None
        geometry, operands = planar(form.geometry), (image(x), image(form.oriented(weight)))
        choice = layer.choices["output"]
        mode = choice.mode_for(sites[0].held)
        if mode == UNDECIDED:
            mode = self._choose_output(operands, bias, geometry, (sites[0], sites[1]))
        y, x_codes, *others = self._output(mode, operands, bias, geometry, (sites[0], sites[1]))
        y = owned(laid_out(_flat(y, form.geometry), self.turned_output(call)))
        return y, in_nibbles(x_codes) if self.packs(call) else x_codes, *others

    def _choose_output(
        self, operands: tuple[Tensor, Tensor], bias: Tensor | None, geometry: Geometry, sites: tuple[Site, Site]
    ) -> int:
        """Time both backends on the operands at hand, and return the faster; encoding is part of either."""
        choice, (x, weight) = self.layer.choices["output"], operands
        if choice.is_too_small(x.numel() // x.shape[1] * weight.numel()):
            return INTEGER
        if not all(bool(one.isfinite().all()) for one in operands):
            return DENSE  # and not decided
        self.layer.hold(True)
        try:
            ways = {
                NAMES[mode]: partial(self._output, mode, operands, bias, geometry, sites) for mode in (DENSE, INTEGER)
            }
            mode: int = choice.decide(timed(**ways))
            return mode
        finally:
            self.layer.hold(False)

    def _output(
        self, mode: int, operands: tuple[Tensor, Tensor], bias: Tensor | None, geometry: Geometry,
        sites: tuple[Site, Site],
    ) -> Results:  # fmt: skip
        """Return Y by a backend, and codes and parameters of activations and weights."""
        if mode == INTEGER and (made := self._one_call.output(*operands, bias, geometry, sites)) is not None:
            return made
        (x, x_finite), (weight, weight_finite) = (
            site.levelled(operand) for site, operand in zip(sites, operands, strict=True)
        )
        if not (x_finite and weight_finite):
            y = _dense_output(*operands, bias, geometry)
        elif mode == INTEGER:
            y = output(x, weight, bias, geometry)
        else:
            y = _dense_output(x.decode(), weight.decode(), bias, geometry)
        return y, *x[:2], *weight[:2]

    def promise(self, call: Call) -> list[int]:
        """Return what `fake_output` has to know beside the tensors."""
        x, weight = self.layer.activations.at["output"], self.layer.weights.at["output"]
        by_row = x is not None and x.per_row and len(call.x_shape) == 2
        by_channel = weight is not None and weight.per_channel
        return [int(self.packs(call)), int(self.turned_output(call)), int(by_row), int(by_channel)]

    def backward(self, call: Call, g: Tensor, saved: Results) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the codes of its operands."""
        layer, form, need = self.layer, call.form, call.need
        geometry, passes = form.geometry, layer.passes(g, need)
        x = Levels(in_bytes(saved[0], geometry.groups * saved[2].shape[1], need[1]), saved[1])
        weight = Levels(saved[2], saved[3])
        if any(site is None for _, site, _, _ in passes):
            fold = fold_by(weight.step).factors if layer.folds else None
            rows = fold_by(x.step).factors if layer.folds_rows and not geometry.stride else None
            values: Gradients = layer.products_of_values(
                call, g, *_as_stored(form, *_decoded(x, weight, need)), fold, rows
            )
            return values
        found: list[Tensor | None] = [None, None, None]
        for name, site, contracted, wanted in passes:
            by_row = name == "weight_gradient.gradient"
            folds = layer.folds_rows and not geometry.stride if by_row else layer.folds
            now, choice = call._replace(need=wanted), layer.choices[name]
            mode = choice.mode if layer.gradient.ready else DENSE
            gradient = _Gradient(layer, self._one_call, now, g, x, weight, site, contracted, folds)
            d_x, d_weight, d_bias = gradient.products(gradient.choose(choice) if mode == UNDECIDED else mode)
            if wanted[0] and d_x is not None:
                found[0] = laid_out(d_x, call.x_turned)
            if wanted[1] and d_weight is not None:
                found[1] = laid_out(d_weight, call.weight_turned)
            if wanted[2]:  # where codes have the steps of rows in them, dbias has no use for these
                found[2] = g.sum(0) if folds else d_bias
        return tuple(found)


def _decoded(x: Levels, weight: Levels, need: Need) -> tuple[Tensor, Tensor]:
    """Return activations and weights as numbers; in the place of one that is not needed a tensor of its shape."""
    activations, weights = (
        levels.decode() if needed else levels.parameters.new_empty(()).expand(levels.codes.shape)
        for levels, needed in ((x, need[1]), (weight, need[0]))
    )
    return activations, weights


def _as_stored(form: Form, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return activations and weights as the layer has them."""
    return _flat(x, form.geometry), form.oriented(_flat(weight, form.geometry))


class OneCall:
    """The same products by one native call each, where every operand is rounded by `Integers` alone.

    In steps, the Python of a layer takes half a millisecond, which is most of the time of a small layer.
    """

    def __init__(self) -> None:
        self._forward, self._backward = native.kernel("layer_output"), native.kernel("layer_gradient")
        self._shapes: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def output(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, sites: tuple[Site, Site]
    ) -> Results | None:
        """Return Y, codes and parameters of activations and weights; None where this is not to be had.

        Where an operand is not finite, Y is the dense product.
        """
        matrix = not geometry.stride
        of_x, of_weight = (site.rule(matrix) for site in sites)
        if _channels_last(weight) is None:
            weight = weight.contiguous()
        x_last, weight_last = _channels_last(x), _channels_last(weight)
        if of_x is None or of_weight is None or x_last is None or not weight.numel():
            return None
        shape, sizes = self._shape(x.shape, weight.shape, geometry)
        y = _room(sizes, torch.float32, not matrix)
        x_codes, weight_codes = (_room(one.shape, torch.uint8, not matrix) for one in (x, weight))
        x_ranges, weight_ranges = x.shape[0] if of_x[1] else 1, weight.shape[0] if of_weight[1] else 1
        of_codes = tuple(_room((2, count), torch.float32) for count in (x_ranges, weight_ranges))
        outcome = self._forward(
            shape, of_x, native.view_address("x", x, torch.float32), x_last, native.own_address(x_codes),
            native.own_address(of_codes[0]), x_ranges, of_weight, native.view_address("weight", weight, torch.float32),
            weight_last, native.own_address(weight_codes), native.own_address(of_codes[1]), weight_ranges,
            0 if bias is None else native.address("bias", bias, torch.float32, weight.shape[0]), native.own_address(y),
            sites[0].held, torch.get_num_threads(),
        )  # fmt: skip
        if outcome == NOT_FINITE:
            y = _dense_output(x, weight, bias, geometry)
        elif outcome == ELSEWHERE:
            y = output(Levels(x_codes, of_codes[0]), Levels(weight_codes, of_codes[1]), bias, geometry)
        return y, x_codes, of_codes[0], weight_codes, of_codes[1]

    def gradient(self, gradient: _Gradient) -> Gradients | None:
        """Return dX, or dW and dbias, whichever is needed; None where this is not to be had."""
        call, x, weight, site, folds = gradient.call, gradient.x, gradient.weight, gradient.site, gradient.folds
        g, need, geometry = image(gradient.g), call.need, planar(call.form.geometry)
        matrix = not geometry.stride
        rule, g_last, met = site.rule(matrix), _channels_last(g), weight if need[0] else x
        if rule is None or g_last is None or need[0] == need[1] or (rule[1] == BY_COLUMN) != need[1]:
            return None
        ranges = met.parameters.shape[1]
        if (ranges > 1 and not folds) or not _lies_as_coded(met):
            return None
        shape, _ = self._shape(x.codes.shape, weight.codes.shape, geometry)
        last = not matrix and (need[0] or call.weight_turned)
        out = _room((x if need[0] else weight).codes.shape, torch.float32, last)
        d_bias = _room((g.shape[1],), torch.float32) if need[2] and not folds else None
        skips = g.numel() // g.shape[1] * weight.codes.numel() >= LEAST_WORK
        rule = (*rule[:-1], 0) if site.held else rule  # without counters, nothing changes
        outcome = self._backward(
            need[1], shape, rule, native.view_address("g", g, torch.float32), g_last, native.own_address(met.codes),
            native.own_address(met.parameters), ranges, folds, skips, native.own_address(out), last,
            0 if d_bias is None else native.own_address(d_bias), torch.get_num_threads(),
        )  # fmt: skip
        if outcome == ELSEWHERE:
            return None
        if outcome == NOT_FINITE:
            return gradient.dense(gradient.g)
        return gradient.stored(*((out, None, None) if need[0] else (None, out, d_bias)))

    def _shape(self, x: torch.Size, weight: torch.Size, geometry: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the kernels must know of shapes and geometry, and the shape of Y."""
        key = x, weight, geometry
        if key not in self._shapes:
            if len(self._shapes) == MOST_SHAPES:
                self._shapes.clear()
            sizes = output_size(x[2:], weight[2:], *geometry[:3])
            axes = list(zip(x[2:], sizes, weight[2:], *geometry[:3], strict=True)) or [(1, 1, 1, 1, 0, 1)] * 2
            numbers = int(bool(geometry.stride)), x[0], x[1], weight[0], geometry.groups, *axes[0], *axes[1]
            self._shapes[key] = numbers, (x[0], weight[0], *sizes)
        return self._shapes[key]


def _channels_last(x: Tensor) -> bool | None:
    """Return True for a matrix, or images whose channels lie last; False if these come first, None for all else."""
    if x.is_neg():
        return None
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return True
    return x.dim() == 2 if x.is_contiguous() else None


def _lies_as_coded(x: Levels) -> bool:
    """Return True if codes lie as they were made, which hooks on saved tensors may have changed."""
    memory = torch.channels_last if x.codes.dim() == 4 else torch.contiguous_format
    return x.codes.is_contiguous(memory_format=memory) and x.parameters.is_contiguous()


def _room(shape: Sequence[int], dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    """Return a tensor of the CPU without values."""
    memory = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=CPU, memory_format=memory)


class _Gradient:
    """A gradient in one of its products or both, the codes that it meets, and the ways to compute these products."""

    def __init__(
        self, layer: Layer, one_call: OneCall, call: Call, g: Tensor, x: Levels, weight: Levels, site: Site,
        contracted: tuple[int, ...], folds: bool,
    ) -> None:  # fmt: skip
        self.layer, self.one_call, self.call = layer, one_call, call
        self.g, self.x, self.weight = g, x, weight
        self.site, self.contracted, self.folds = site, contracted, folds

    def products(self, mode: int) -> Gradients:
        """Return dX, dW and dbias by a backend, as the layer has its operands, and count."""
        if mode == INTEGER and (made := self.one_call.gradient(self)) is not None:
            return made
        call, g, site, x, weight = self.call, self.g, self.site, self.x, self.weight
        form, need, by_channel = call.form, call.need, call.need[0]
        fold = fold_by((weight if by_channel else x).step) if self.folds else None
        factors, dim = None if fold is None else fold.factors, 1 if by_channel else 0
        if mode == INTEGER and (x.finite or not need[1]) and (weight.finite or not need[0]):
            levels, finite = site.levelled(image(g), self.contracted, factors, dim)
            if not finite:
                return self.dense(g)
            index = None if levels.low is not None else rows_to_multiply(g, call)  # else codes of zeros are no zeros
            if index is not None and len(index):
                levels, x = of_rows(levels, index, site.per_column), of_rows(x, index)
            summed = need if fold is None else (*need[:2], False)  # with factors in them, codes do not give dbias
            d_x, d_weight, d_bias = products(levels, fold, x, weight, planar(form.geometry), summed)
            if need[0] and index is not None and len(index):
                d_x = scattered(d_x, index, len(g))
            return self.stored(d_x, d_weight, d_bias)
        treated = site.treat(g, self.contracted, self.layer.gradient.control, factors, None, dim)
        if mode != SPARSE:
            return self.dense(treated)
        met = _decoded(x, weight, need)
        d_x, d_weight, d_bias, _ = sparse.list_products(
            image(treated), *met, planar(form.geometry), None, site.key, need
        )
        return self.stored(d_x, d_weight, d_bias)

    def dense(self, g: Tensor) -> Gradients:
        """Return the dense products of a gradient, as the layer has its operands."""
        met = _decoded(self.x, self.weight, self.call.need)
        return without_zeros(self.call, g, *_as_stored(self.call.form, *met))

    def stored(self, d_x: Tensor | None, d_weight: Tensor | None, d_bias: Tensor | None) -> Gradients:
        """Return results of codes as the layer has its operands."""
        form, need = self.call.form, self.call.need
        return (
            _flat(d_x, form.geometry) if need[0] and d_x is not None else None,
            form.oriented(_flat(d_weight, form.geometry)) if need[1] and d_weight is not None else None,
            d_bias,
        )

    def choose(self, choice: Choice) -> int:
        """Time the backends that serve on the gradient at hand, and return the fastest; treating it is part of each."""
        g, serving = self.g, choice.serving
        if choice.is_too_small(g.numel() // g.shape[1] * self.weight.codes.numel()):
            return INTEGER if INTEGER in serving else DENSE
        if not (bool(g.isfinite().all()) and self.x.finite and self.weight.finite):
            return DENSE  # and not decided
        self.site.held = True
        try:
            times = timed(**{NAMES[mode]: partial(self.products, mode) for mode in (DENSE, *serving)})
            if SPARSE in serving:
                treated = self.site.treat(g, self.contracted, self.layer.gradient.control)
                times = times._replace(zeros=1 - int(treated.count_nonzero()) / g.numel())
        finally:
            self.site.held = False
        return choice.decide(times)


def _dense_output(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    if not geometry.stride:
        return x.mm(weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    stride, padding, dilation, groups = geometry
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups)


# ------------------------------------------------------------------------------------------------- shapes and layouts


def image(x: Tensor) -> Tensor:
    """Return a sequence as an image of height 1; all else as it is."""
    return x.unsqueeze(2) if x.dim() == 3 else x


def planar(geometry: Geometry) -> Geometry:
    """Return the geometry with two dimensions where it has one."""
    stride, padding, dilation, groups = geometry
    return Geometry((1, *stride), (0, *padding), (1, *dilation), groups) if len(stride) == 1 else geometry


def _flat(result: Tensor, geometry: Geometry) -> Tensor:
    """Return an image of height 1 as a sequence, in a convolution over one dimension."""
    return result.squeeze(2) if len(geometry.stride) == 1 and result.dim() == 4 else result


def owned(x: Tensor) -> Tensor:
    """Return a result as no view: autograd refuses to change a view in place that a function gave, as a ReLU may."""
    if not x._is_view():
        return x
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def in_nibbles(codes: Tensor) -> Tensor:
    """Return codes of at most 4 bits two to a byte, along the channels; (samples, channels, ...) with half of these."""
    packed: Tensor = call("pack_nibbles", codes if codes.dim() == 2 else codes.permute(0, 2, 3, 1))
    return packed if codes.dim() == 2 else packed.permute(0, 3, 1, 2)


def in_bytes(codes: Tensor, channels: int, needed: bool = True) -> Tensor:
    """Return codes of so many channels one to a byte, from such codes or from those of `in_nibbles`.

    In the place of codes that are not needed it is a tensor of their shape.
    """
    if codes.shape[1] == channels:
        return codes
    if not needed:
        return codes.new_empty(()).expand(codes.shape[0], channels, *codes.shape[2:])
    whole: Tensor = call("unpack_nibbles", codes if codes.dim() == 2 else codes.permute(0, 2, 3, 1), channels)
    return whole if codes.dim() == 2 else whole.permute(0, 3, 1, 2)


def fake_output(x: Tensor, weight: Tensor, form: Form, promise: Sequence[int]) -> Results:
    """Return the results of `CodedProducts.output` without elements."""
    packs, turned, by_row, by_channel = promise
    oriented, geometry = form.oriented(weight), form.geometry
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
    ]
    y = empty(x, (x.shape[0], oriented.shape[0], *sizes), bool(turned))
    of_x = x.new_empty((2, x.shape[0] if by_row else 1))
    of_weight = x.new_empty((2, oriented.shape[0] if by_channel else 1))
    return y, _fake_codes(x, bool(packs)), of_x, _fake_codes(oriented, False), of_weight


def _fake_codes(x: Tensor, packs: bool) -> Tensor:
    shape = list(image(x).shape)
    if packs:
        shape[1] = (shape[1] + 1) // 2
    memory = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=torch.uint8, device=x.device, memory_format=memory)


# -------------------------------------------------------------------------------------------------------- what serves


def reason_not_served(x: Tensor, weight: Tensor) -> str:
    """Return the type and device of tensors that integer products do not serve; empty for those that they do."""
    if x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu":
        return ""
    return f"the tensors are {str(x.dtype).removeprefix('torch.')} on {x.device.type}"


def reason_not_coded(layer: Layer) -> str | None:
    """Return why activations and weights of a layer are not kept as codes; None if they are."""
    for operand in (layer.activations, layer.weights):
        site = operand.at["output"]
        if site is None or not site.levels:
            return f"{operand.name} of Y are not rounded to levels"
        if not operand.shared:
            return f"{operand.name} are not the same in Y and in the backward"
        if site.per_column:
            return f"{operand.name} have a scale for each column, and Y sums over columns"
    site = layer.activations.at["output"]
    if site is not None and site.per_channel:
        return "activations have a scale and a zero point for each sample; per='row' has one zero point for all"
    return None


def reason_not_levels(layer: Layer, name: str) -> str | None:
    """Return why the products of a site of the gradient, or "output", are no integer ones; None if they may be.

    Activations and weights are taken to be codes.
    """
    if name == "output":
        return None
    site, product = layer.gradient.sites[name], name.rpartition(".")[0]
    where = f" in {SYMBOLS[product]}" if product else ""
    if site.per_sample and product != "input_gradient":
        return f"the gradient{where} has a range for each sample, and dW sums over samples"
    if not (site.levels or site.per_sample):
        return f"the gradient{where} is not rounded to levels"
    if site.per_channel:
        return f"the gradient{where} has a scale for each sample"
    if site.per_row and product != "input_gradient":
        return f"the gradient{where} has a scale for each row, and dW sums over rows"
    if site.per_column and product != "weight_gradient":
        return f"the gradient{where} has a scale for each column, and dX sums over columns"
    activations = layer.activations.at["weight_gradient"]
    if product != "input_gradient" and activations is not None and activations.per_row and not layer.folds_rows:
        return f"dW sums over the scales of the activations, which the gradient{where} cannot be multiplied by"
    weights = layer.weights.at["input_gradient"]
    if product != "weight_gradient" and not site.can_fold and weights is not None and weights.per_channel:
        return f"dX sums over the scales of the weights, which the gradient{where} cannot be multiplied by"
    return None
