"""Integer products of a layer: codes are multiplied as they are, and exact sums scaled once.

Activations and weights are coded for the output, and their codes are all that is saved.  In the backward the gradient
is coded for each product.  An operand that is not finite has no codes: Y, and products of such a gradient, are then
dense products of the tensor as it is, and counted.  In the backward activations or weights that were not finite are
all NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import native
from ...ops import Counted, scaled_products
from ...ops.coded import Householder
from ...ops.geometry import Geometry, output_size
from ...ops.registry import call, kernel_of
from ...ops.scaled_products import Steps, lists
from ...treatments import SYMBOLS
from ..autograd import CODES, Call
from ..forms import Addmm, Form, Gradients, Need, empty, laid_out
from ..rows import LEAST_WORK, of_rows, rows_to_multiply, scattered
from ..site import BY_COLUMN, CPU, Floats, Fold, Levels, Site, applied, fold_by, levelled
from . import choice as served
from . import sparse
from .choice import DENSE, INTEGER, NAMES, SPARSE, UNDECIDED, Choice, timed

Layer = Any
"""A `LayerEngine`, which imports this module."""
SHORTEST_SUM = 64
"""Products of an output element: below, writing the output takes most of the time, and dense products do that too."""
_TINY, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_BYTES = 255.0**2
"""No product of two levels is larger."""
_LEAST_STEP, _LARGEST_STEP = 2.0**-96, 2.0**64
"""Steps of weights between these leave sums of products in float32's range."""

NOT_FINITE, ELSEWHERE = 1, 2
"""Outcomes of the native kernels of a layer (csrc/kernels/integer/layer.h): an operand was not finite, or steps leave
the range of float32."""
MOST_SHAPES = 64
"""Shapes of tensors that a layer remembers."""

PASSED_THROUGH = -1
"""In place of a backend: the gradient is not treated yet, and its products are dense."""

Results = tuple[Tensor, ...]


# ------------------------------------------------------------------------------------------------------ products


def output(x: Levels, weight: Levels, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Return Y as float32; images lie channels-last."""
    x_step, steps, zeros = x.step, weight.step, (x.zero, weight.zero)
    if len(x_step) > 1:  # rows of a linear layer
        return _matmul(x.codes, weight.codes.t(), zeros, (x_step,), (steps,), bias)
    if not geometry.stride:
        return _matmul(x.codes, weight.codes.t(), zeros, None, (x_step, steps), bias)
    columns = _factor((x_step, steps))
    if columns is None:
        return scaled_products.convolution(x.codes, weight.codes, *zeros, _steps((x_step, steps)), bias, geometry)
    result: Tensor = kernel_of("integer_convolution")(x.codes, weight.codes, *zeros, columns, bias, *lists(geometry))
    return result


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
        by, zeros = (step, weight.step if fold is None else fold.unit), (zero, weight.zero)
        if not geometry.stride:
            by_row, by_column = (by, None) if len(step) > 1 else (None, by)
            d_x = _matmul(g.codes, weight.codes, zeros, by_row, by_column, None)
        elif (scale := _factor(by)) is not None:
            where = *lists(geometry), list(x.codes.shape[2:])
            d_x = kernel_of("integer_convolution_input_gradient")(g.codes, weight.codes, *zeros, scale, *where)
        else:
            d_x = scaled_products.convolution_input_gradient(
                g.codes, weight.codes, *zeros, _steps(by), geometry, x.codes.shape[2:]
            )
    if need[1]:
        by, zeros = (step, x.step if fold is None else fold.unit), (zero, x.zero)
        if not geometry.stride:
            d_weight = _matmul(g.codes.t(), x.codes, zeros, by, None, None)
        elif (scale := _factor(by)) is not None:
            where = *lists(geometry), list(weight.codes.shape[2:])
            d_weight = kernel_of("integer_convolution_weight_gradient")(g.codes, x.codes, *zeros, scale, *where)
        else:
            d_weight = scaled_products.convolution_weight_gradient(
                g.codes, x.codes, *zeros, _steps(by), geometry, weight.codes.shape[2:]
            )
    if need[2]:  # the sum of each channel, exact but for one rounding and its scale
        rows = g.codes if g.codes.dim() == 2 else g.codes.permute(0, 2, 3, 1).reshape(-1, g.codes.shape[1])
        d_bias = _matmul(rows.new_ones(1, rows.shape[0]), rows, (0, zero), None, (step,), None).view(-1)
    return d_x, d_weight, d_bias


Factors = tuple[Floats | float, ...]


def _matmul(
    a: Tensor, b: Tensor, zeros: tuple[int, int], rows: Factors | None, columns: Factors | None, bias: Tensor | None
) -> Tensor:
    """Return the product of two matrices of codes, times the factors of its rows and columns."""
    # The sum is multiplied by the factor of its column first, which must leave room for that of its row.
    room = _LARGEST if rows is None else _LARGEST / (_BYTES * max(a.shape[1], 1))
    of_rows, of_columns = rows and _factor(rows), columns and _factor(columns, room)
    if (rows is None) == (of_rows is None) and (columns is None) == (of_columns is None):
        result: Tensor = kernel_of("integer_matmul")(a, b, *zeros, of_rows, of_columns, bias)
        return result
    by_row, by_column = (None if one is None else _steps(one) for one in (rows, columns))
    return scaled_products.matmul(a, b, *zeros, by_row, by_column, bias)


def _factor(factors: Factors, largest: float = _LARGEST) -> Tensor | None:
    """Return the product of steps as float32; None where it is not ordinary, which `scaled_products` takes care of.

    A step of zero is that of zeros alone, whose sums are zero whatever they are multiplied by.
    """
    first, *others = factors
    assert isinstance(first, np.ndarray)
    found = torch.from_numpy(first)
    for other in others:  # by PyTorch: NumPy would warn of overflow
        found = found * (torch.from_numpy(other) if isinstance(other, np.ndarray) else other)
    if others or largest < _LARGEST:
        low, high = (found, found) if found.numel() == 1 else found.aminmax() if found.numel() else (_TINY, _TINY)
        if not (float(low) >= _TINY and float(high) <= largest):
            zeros = [torch.as_tensor(one) == 0 for one in factors]
            if not bool((((found >= _TINY) & (found <= largest)) | zeros[0] | zeros[-1]).all()):
                return None
    return found


def _steps(factors: Factors) -> Steps:
    return Steps(tuple(torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in factors))


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
    scale = torch.from_numpy(weight.step) if fold is None else torch.tensor([fold.unit], dtype=torch.float32)
    step, rows = torch.from_numpy(g.step), (-1, *(1,) * (g.codes.dim() - 1))
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
        made = self._one_call.output(*operands, bias, geometry, (sites[0], sites[1])) if mode == INTEGER else None
        if made is not None:
            y, *others = made
            if geometry.stride and (len(call.x_shape) < 4 or not self.turned_output(call)):
                y = owned(laid_out(_flat(y, form.geometry), False))
            if self.packs(call):
                others[0] = in_nibbles(others[0])
            return y, *others
        before = [site.memory.clone() for site in sites if site is not None] if mode == UNDECIDED else []
        first, second = sites[0].levelled(operands[0]), sites[1].levelled(operands[1])
        levels = first.levels, second.levels
        if not (first.finite and second.finite):
            y = _dense_output(*operands, bias, geometry)
        else:
            if mode == UNDECIDED:
                mode = _choose_for_output(operands, bias, geometry, (sites[0], sites[1]), before, choice)
            if mode == INTEGER:
                y = output(*levels, bias, geometry)
            else:
                y = _dense_output(levels[0].decode(), levels[1].decode(), bias, geometry)
        x_codes = in_nibbles(levels[0].codes) if self.packs(call) else levels[0].codes
        y = laid_out(_flat(y, form.geometry), self.turned_output(call))
        return owned(y), x_codes, levels[0].parameters, levels[1].codes, levels[1].parameters

    def promise(self, call: Call) -> list[int]:
        """Return what `fake_output` has to know beside the tensors."""
        x, weight = self.layer.activations.at["output"], self.layer.weights.at["output"]
        by_row = x is not None and x.per_row and len(call.x_shape) == 2
        by_channel = weight is not None and weight.per_channel
        return [int(self.packs(call)), int(self.turned_output(call)), int(by_row), int(by_channel)]

    def backward(self, call: Call, g: Tensor, saved: Results) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the codes of its operands."""
        layer, form, need = self.layer, call.form, call.need
        passes = layer.passes(g, need)
        channels = form.geometry.groups * saved[2].shape[1]
        x = Levels(in_bytes(saved[0], channels, need[1]), saved[1])
        weight = Levels(saved[2], saved[3])
        if any(site is None for _, site, _, _ in passes):
            decoded: Gradients = layer.products_of_values(call, g, *self._decoded(form, x, weight))
            return decoded
        found: list[Tensor | None] = [None, None, None]
        geometry = form.geometry
        for name, site, contracted, wanted in passes:
            assert site is not None
            by_row = name == "weight_gradient.gradient"
            folds = layer.folds_rows and not geometry.stride if by_row else layer.folds
            choice = layer.choices[name]
            mode = choice.mode if layer.gradient.ready else PASSED_THROUGH
            now, operands = call._replace(need=wanted), (image(g), x, weight, planar(geometry), site)
            made: Any = self._one_call.gradient(*operands, now, folds) if mode == INTEGER else None
            if made is None:
                gradient = _Gradient(*operands, now, contracted, folds)
                made = gradient.by(gradient.choose(choice) if mode == UNDECIDED else mode)
            d_x, d_weight, d_bias = made
            if wanted[0]:
                found[0] = laid_out(_flat(d_x, geometry), call.x_turned)
            if wanted[1]:
                # dW of (outputs, inputs) is laid out as the weight in that orientation.
                turned = call.weight_turned != isinstance(form, Addmm)
                found[1] = form.as_stored(laid_out(_flat(d_weight, geometry), turned))
            if wanted[2]:  # where codes have the steps of rows in them, dbias has no use for these
                found[2] = d_bias if not folds or mode == PASSED_THROUGH else g.sum(0)
        return tuple(found)

    def _decoded(self, form: Form, x: Levels, weight: Levels) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return activations, weights and factors of the gradient, as products of values take them."""
        values = [one.decode() for one in (x, weight)]
        if len(form.geometry.stride) == 1:
            values = [one.squeeze(2) for one in values]
        fold = torch.from_numpy(fold_by(weight.step).factors) if self.layer.folds else None
        by_row = self.layer.folds_rows and not form.geometry.stride
        rows = torch.from_numpy(fold_by(x.step).factors) if by_row else None
        return values[0], form.as_stored(values[1]), fold, rows


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

    def gradient(
        self, g: Tensor, x: Levels, weight: Levels, geometry: Geometry, site: Site, call: Call, folds: bool
    ) -> tuple[Tensor | None, ...] | None:
        """Return dX, or dW and dbias, whichever is needed; None where this is not to be had."""
        need, matrix = call.need, not geometry.stride
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
        skips = g.shape[0] > 1 and g.numel() // g.shape[1] * weight.codes.numel() >= LEAST_WORK
        outcome = self._backward(
            need[1], shape, rule, native.view_address("g", g, torch.float32), g_last, native.own_address(met.codes),
            native.own_address(met.parameters), ranges, folds, skips, native.own_address(out), last,
            0 if d_bias is None else native.own_address(d_bias), torch.get_num_threads(),
        )  # fmt: skip
        if outcome == ELSEWHERE:
            return None
        if outcome == NOT_FINITE:
            return sparse.dense_products(g, *_decoded(g, x, weight, need), geometry, need)
        return (out, None, None) if need[0] else (None, out, d_bias)

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
    """A gradient, the codes that it meets, and the ways to compute its products."""

    def __init__(
        self, g: Tensor, x: Levels, weight: Levels, geometry: Geometry, site: Site, call: Call,
        contracted: tuple[int, ...], folds: bool,
    ) -> None:  # fmt: skip
        self.g, self.x, self.weight, self.geometry, self.need = g, x, weight, geometry, call.need
        self.site, self.call, self.contracted = site, call, contracted
        self.fold_dim = 1 if self.need[0] else 0
        self.fold = fold_by((weight if self.need[0] else x).step) if folds else None
        self.factors = None if self.fold is None else torch.from_numpy(self.fold.factors)

    def by(self, mode: int) -> Results:
        """Return dX, dW and dbias by a backend, and count."""
        if mode == PASSED_THROUGH:
            self.site.count_passed_through()
            return self.by_dense(self.g)
        if mode == INTEGER and (not self.need[1] or self.x.finite) and (not self.need[0] or self.weight.finite):
            found = self.site.levelled(self.g, self.contracted, self.factors, self.fold_dim)
            if not found.finite:
                return self.by_dense(self.g)
            arguments, index = self._arguments(found.levels)
            d_x, d_weight, d_bias = products(*arguments)
            return d_x if index is None or not self.need[0] else scattered(d_x, index, len(self.g)), d_weight, d_bias
        result, total = self._applied(self.site.memory)
        self.site.count(total, self.g.numel())
        return self._by_lists(result) if mode == SPARSE else self.by_dense(result)

    def choose(self, choice: Choice) -> int:
        """Time the backends that serve on the gradient at hand, and return the fastest; treating it is part of each."""
        memory, serving = self.site.memory, choice.serving
        if choice.is_too_small(self.g.numel() // self.g.shape[1] * self.weight.codes.numel()):
            return INTEGER if INTEGER in serving else DENSE
        if not (bool(self.g.isfinite().all()) and self.x.finite and self.weight.finite):
            return DENSE  # and not decided
        ways: dict[int, Callable[[], object]] = {
            DENSE: lambda: self.by_dense(self._applied(memory.clone()).result),
            SPARSE: lambda: self._by_lists(self._applied(memory.clone()).result),
            INTEGER: lambda: products(*self._arguments(self._levels(memory.clone()))[0]),
        }
        times = timed(**{NAMES[mode]: ways[mode] for mode in (DENSE, *serving)})
        if SPARSE in serving:
            times = times._replace(zeros=int(self._applied(memory.clone()).counts[0]) / self.g.numel())
        return choice.decide(times)

    def _arguments(self, levels: Levels) -> tuple[tuple[Any, ...], Tensor | None]:
        """Return the arguments of `products` for these codes, and the rows that they have; None where they have all."""
        own_zeros = levels.low is not None or levels.mixing is not None  # zeros have codes that are not the zero point
        index, x = None if own_zeros else rows_to_multiply(self.g, self.call), self.x
        if index is not None and len(index):
            codes = levels.codes.index_select(0, index)  # scales of columns are those of all rows
            levels = of_rows(levels, index) if self.site.per_row else levels._replace(codes=codes)
            x = of_rows(x, index)
        else:
            index = None
        return (levels, self.fold, x, self.weight, self.geometry, self._summed), index

    @property
    def _summed(self) -> Need:
        """The results that codes of the gradient give: with factors in them, they do not give dbias."""
        return self.need if self.fold is None else (*self.need[:2], False)

    def by_dense(self, g: Tensor) -> Results:
        """Return the dense products of a gradient."""
        index = rows_to_multiply(g, self.call)
        if index is None or not len(index):
            return sparse.dense_products(g, *_decoded(g, self.x, self.weight, self.need), self.geometry, self.need)
        met = _decoded(g, of_rows(self.x, index), self.weight, self.need)
        d_x, *others = sparse.dense_products(g.index_select(0, index), *met, self.geometry, self.need)
        return scattered(d_x, index, g.shape[0]) if self.need[0] else d_x, *others

    def _by_lists(self, g: Tensor) -> Results:
        met = _decoded(g, self.x, self.weight, self.need)
        return sparse.products(g, *met, self.geometry, None, self.site.key, self.need)[:3]

    def _levels(self, memory: Tensor) -> Levels:
        site = self.site
        given = self.g, site.treatments, site.numbers, site.key, memory, self.contracted, self.factors, self.fold_dim
        return levelled(*given).levels

    def _applied(self, memory: Tensor) -> Counted:
        site = self.site
        given = self.g, site.treatments, site.numbers, site.key, memory, self.contracted, self.factors
        return applied(*given, None, self.fold_dim)


def _decoded(g: Tensor, x: Levels, weight: Levels, need: Need) -> tuple[Tensor, Tensor]:
    """Return activations and weights as numbers; in the place of one that is not needed a tensor of its shape."""
    activations, weights = (
        levels.decode() if needed else g.new_empty(()).expand(levels.codes.shape)
        for levels, needed in ((x, need[1]), (weight, need[0]))
    )
    return activations, weights


def _choose_for_output(
    operands: tuple[Tensor, Tensor], bias: Tensor | None, geometry: Geometry, sites: tuple[Site, Site],
    memories: list[Tensor], choice: Choice,
) -> int:  # fmt: skip
    """Time both backends on the operands at hand, and return the faster; encoding is part of either."""
    if choice.is_too_small(operands[0].numel() // operands[0].shape[1] * operands[1].numel()):
        return INTEGER

    def coded() -> tuple[Levels, Levels]:
        x, weight = (
            levelled(operand, site.treatments, site.numbers, site.key, memory.clone()).levels
            for operand, site, memory in zip(operands, sites, memories, strict=True)
        )
        return x, weight

    def densely() -> None:
        x, weight = coded()
        _dense_output(x.decode(), weight.decode(), bias, geometry)

    return choice.decide(timed(dense=densely, integer=lambda: output(*coded(), bias, geometry)))


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


def unserved(shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Return why a layer with a weight of this shape has no integer products on any machine; None where it has.

    >>> unserved((32, 64, 3, 3))
    >>> unserved((64, 1, 3, 3), groups=64)
    'depthwise: each output sums over too few products to be worth integers'
    """
    depthwise = "each output sums over too few products to be worth integers"
    if reason := served.unserved("integer", depthwise, shape, groups, transposed):
        return reason
    if (summed := math.prod(shape[1:])) < SHORTEST_SUM:
        return f"each output sums over {summed} products; integer products pay from {SHORTEST_SUM} on"
    return None


def unserved_here(x: Tensor) -> str | None:
    """Return why tensors like this one have no integer products on this machine; None where they have."""
    return served.unserved_here("integer", (torch.float32,), x)
