"""Products of a linear layer whose operands are levels in blocks, as in MXFP4 and NVFP4.

Blocks lie along the dimension that a product sums over, so each product encodes its own two operands, and autograd
saves the operands as they are.  Operands under one Hadamard transform meet as they were transformed.

A block that is not finite has no codes.  The product is then a dense one of the decoded operands, where all that the
block reaches is NaN, and counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import ops
from ...ops.coded import CodedTensor, Layout, Rotated
from ...treatments import OPERANDS, PRODUCTS, SYMBOLS
from ..autograd import BLOCKS, Call
from ..forms import Gradients, laid_out
from ..site import NAN, Site
from .choice import DENSE, INTEGER, RAGGED, UNDECIDED, ZEROS, Choice, timed
from .integer import owned, reason_not_served

Layer = Any
"""A `LayerEngine`, which imports this module."""


class BlockProducts:
    """Computes a layer from levels in blocks, encoding the two operands of each product for it alone.

    Args:
        layer: its engine; `reason_not_blocks` has none.
    """

    mode = BLOCKS

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.refused = ""
        """The reason for which the last tensors were not coded; empty if they were."""

    def serves(self, x: Tensor, weight: Tensor) -> bool:
        """Return True if these tensors can be coded now."""
        if not (self.layer.activations.ready and self.layer.weights.ready):
            return False
        if weight.dim() != 2:
            self.refused = "convolutions of blocks have no integer kernel"
            return False
        self.refused = reason_not_served(x, weight)
        return not self.refused and x.numel() > 0

    def output(self, call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        """Return Y; the backward encodes the operands anew."""
        return (self._product("output", x, call.form.oriented(weight), bias, (1, 1))[0],)

    def promise(self, call: Call) -> list[int]:
        """Return nothing: the shape of Y follows from the tensors."""
        return []

    def backward(self, call: Call, g: Tensor, saved: tuple[Tensor, ...]) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the operands."""
        (x, weight), form, need = saved, call.form, call.need
        d_x = d_weight = d_bias = None
        if need[0]:
            found, _ = self._product("input_gradient", g, form.oriented(weight), None, (1, 0))
            d_x = laid_out(found, call.x_turned)
        if need[1]:
            found, d_bias = self._product("weight_gradient", g, x, None, (0, 0), need[2])
            d_weight = laid_out(form.oriented(found), call.weight_turned)
        elif need[2]:
            d_bias = self.layer.gradient.treated(g, "weight_gradient", (0,)).sum(0)
        return d_x, d_weight, d_bias

    def _product(
        self, product: str, a: Tensor, b: Tensor, bias: Tensor | None, summed: tuple[int, int], sums: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the product of two treated matrices, plus a bias, and the sums of the first over its summed dimension.

        Args:
            a, b: float32; a is that operand which comes to the product last: activations, or the gradient.
            summed: the dimension of each that the product sums over.
            sums: True if the sums are wanted.
        """
        layer = self.layer
        operand, other = (layer.operands[name] for name in OPERANDS[product])
        site, met, aligned = operand.at[product], other.at[product], layer.aligned[product]
        assert site is not None
        assert met is not None
        first = _Side(a, summed[0], site, operand.control, None)
        # The key moves on when a is counted, which leaves the seed and so the signs.
        second = _Side(b, summed[1], met, other.control, site.key if aligned else None)
        choice = layer.choices[product if product == "output" else f"{product}.gradient"]
        whole = not aligned or first.whole
        if not site.held and (not whole or int(choice.slots[ZEROS]) == RAGGED):
            choice.slots[ZEROS] = 0 if whole else RAGGED
        mode = choice.mode_for(site.held) if operand.ready and whole else DENSE
        if mode == UNDECIDED:
            mode = _choose(first, second, bias, choice)
        values: Tensor | None = None
        if mode == INTEGER:
            coded, others = first.codes(), second.codes()
            if coded[1] and others[1]:
                result = _integer(coded[0], others[0], first, second, bias)
            else:
                values = coded[0].decode()
                result = _dense(values, others[0].decode(), first, second, bias)
        else:
            values = first.values()
            result = _dense(values, second.values(), first, second, bias)
        if not sums:
            return owned(result), None
        return owned(result), _sums(coded[0]) if values is None else values.sum(summed[0])


class _Side(NamedTuple):
    """One operand of a product, and the ways to treat it."""

    x: Tensor
    summed: int
    site: Site
    control: Tensor
    signs: Tensor | None

    @property
    def whole(self) -> bool:
        """True if the summed dimension is whole blocks of the Hadamard transform.

        Else it is filled up, and what rounding leaves where it was is cut off when it is transformed back.
        """
        rotation = self.site.rotation
        return rotation is None or self.x.shape[self.summed] % rotation[0] == 0

    def codes(self) -> tuple[CodedTensor, bool]:
        """Return the operand as codes, and True if all are of finite elements; count it."""
        coded, counts = self.site.codes(self.x, (self.summed,), None, self.signs)
        finite = not int(counts[NAN])
        self.site.count(counts, self.x.numel(), fell_back=not finite)
        return coded, finite

    def values(self) -> Tensor:
        """Return the treated operand, or a copy before it is treated, and count it."""
        return self.site.treat(self.x, (self.summed,), self.control, None, self.signs)


def _choose(first: _Side, second: _Side, bias: Tensor | None, choice: Choice) -> int:
    """Time both backends on the operands at hand, and return the faster; treating them is part of each."""
    if choice.is_too_small(first.x.numel() * (second.x.numel() // second.x.shape[second.summed])):
        return INTEGER
    if not (bool(first.x.isfinite().all()) and bool(second.x.isfinite().all())):
        return DENSE  # and not decided

    def densely() -> None:
        _dense(first.values(), second.values(), first, second, bias)

    def by_codes() -> None:
        _integer(first.codes()[0], second.codes()[0], first, second, bias)

    first.site.held = second.site.held = True
    try:
        return choice.decide(timed(dense=densely, integer=by_codes))
    finally:
        first.site.held = second.site.held = False


def _dense(a: Tensor, b: Tensor, first: _Side, second: _Side, bias: Tensor | None) -> Tensor:
    rows, columns = a if first.summed else a.t(), b.t() if second.summed else b
    return rows.mm(columns) if bias is None else torch.addmm(bias, rows, columns)


def _integer(a: CodedTensor, b: CodedTensor, first: _Side, second: _Side, bias: Tensor | None) -> Tensor:
    """Return the product of codes: Y where both sum over inputs, dX over outputs, dW over samples."""
    a, b = _as_transformed(a), _as_transformed(b)
    if second.summed:
        return ops.integer_linear(a, b, bias)
    d_x, d_weight, _ = ops.integer_linear_backward(
        a, None if first.summed else b, b if first.summed else None, (bool(first.summed), not first.summed, False)
    )
    result = d_x if first.summed else d_weight
    assert result is not None
    return result


def _sums(coded: CodedTensor) -> Tensor:
    """Return the sums over the dimension that the product sums over, without transforming all elements back.

    The sum of a row is its product with ones, and that of transformed rows is one with transformed ones.
    """
    rows = replace(_as_transformed(coded), layout=Layout.of(torch.empty(coded.codes.shape, device="meta"))).decode()
    ones = rows.new_ones(1, rows.shape[1])
    for step in coded.transform:
        if isinstance(step, Rotated):
            ones = ops.hadamard(ones, step.block, None if step.key is None else step.key[:1])
    return rows.mv(ones[0])


def _as_transformed(coded: CodedTensor) -> CodedTensor:
    """Return the coded tensor of the transformed operand, which is not transformed back."""
    return replace(coded, transform=tuple(step for step in coded.transform if not isinstance(step, Rotated)))


def reason_not_blocks(layer: Layer) -> str | None:
    """Return why the operands of a layer do not meet as levels in blocks; None if they do."""
    for product in PRODUCTS:
        sites = {operand: layer.operands[operand].at[product] for operand in OPERANDS[product]}
        for operand, site in sites.items():
            if site is None or not site.block_levels:
                return f"{operand} of {SYMBOLS[product]} are not rounded to blocks of levels"
        first, second = (site.rotation for site in sites.values())
        if first != second:
            return f"one operand of {SYMBOLS[product]} is under a Hadamard transform that the other is not under"
    return None
