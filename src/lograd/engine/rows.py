"""Rows of a gradient that are zero, or that `Rows` drops, are not multiplied: the others are gathered first.

A row is a token or sample of a linear layer, a sample of a convolution, or a pixel of a convolution of one pixel.  It
stands alone in dX, and dW is a sum over rows, so what is left is the backward of a smaller batch, by whatever backend
the layer has.

Rows that are zero are skipped behind the treatments of the gradient: their codes and random numbers are those of the
whole tensor.  Rows that `Rows` drops are dropped in front of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.row_pruning import KeptRows, expected_rows, keep_rows, nonzero_rows, row_norms, row_threshold
from ..treatments import BACKWARD
from .autograd import CODES, Call
from .backends.choice import LEAST_WORK
from .forms import ConvolutionForm, Gradients, LinearForm, Need, empty
from .site import COUNTERS, Levels, Site

FEWEST = 0.1
"""Share of rows of zeros from which products of the others are faster, gathering included: at 0.06 a product of 960 x
384 x 384 gains nothing, at 0.17 a tenth (AVX2, one thread)."""
FEWEST_PIXELS, FEWEST_CHANNELS = 0.7, 128
"""Share of pixels of zeros, and channels on either side, from which a convolution of one pixel is faster as a product
of the other pixels: with 256 x 1024 channels it takes as long at 0.6, 0.7 of the time at 0.7 and a quarter at 0.9; with
32 or 64 it gains nothing, as most of its time is that of reading and writing images (one thread)."""
ELEMENTS, ZEROS_BEFORE, ZEROS_AFTER, TREATED, PRUNED, ROWS, ROWS_ZERO, ROWS_KEPT = map(
    COUNTERS.index,
    ("elements", "zeros_before", "zeros_after", "treated", "pruned", "rows", "rows_zero", "rows_kept"),
)


# --------------------------------------------------------------------------------------------- rows that are zero


def rows_to_multiply(g: Tensor, call: Call) -> Tensor | None:
    """Return the indices of the rows that are not zero; None where multiplying all of them takes no longer.

    Args:
        g: the gradient; NaN is not zero.
    """
    if g.shape[0] < 2 or g.numel() // g.shape[1] * math.prod(call.weight_shape) < LEAST_WORK:
        return None
    index = nonzero_rows(g)
    return index if len(index) <= (1 - FEWEST) * g.shape[0] else None


def without_zeros(call: Call, g: Tensor, x: Any, weight: Any, skips: bool = True) -> Gradients:
    """Return dX, dW and dbias by dense products of the rows of the gradient that are not zero.

    Args:
        g, x, weight: the gradient, and what it meets.
        skips: False for the products of all rows.
    """
    if skips and (at := _pixels_to_multiply(g, call)) is not None:
        return _products_of_pixels(call, g, x, weight, at)
    index = rows_to_multiply(g, call) if skips else None
    if index is None:
        return call.form.products(g, x, weight, call.need)
    if not len(index):
        return nothing(call, g)
    taken = None if x is None else x.index_select(0, index)
    d_x, *others = call.form.products(g.index_select(0, index), taken, weight, call.need)
    return scattered(d_x, index, g.shape[0]) if call.need[0] and d_x is not None else None, *others


def _pixels_to_multiply(g: Tensor, call: Call) -> tuple[Tensor, ...] | None:
    """Return the samples and places of pixels that are not zero; None where multiplying all takes no longer."""
    form, channels = call.form, call.weight_shape[:2]
    if not isinstance(form, ConvolutionForm) or not form.is_pixelwise(call.weight_shape):
        return None
    total = g.numel() // g.shape[1]
    if min(channels) < FEWEST_CHANNELS or total * math.prod(channels) < LEAST_WORK:
        return None
    at = (g.abs().amax(1) != 0).flatten(1).nonzero().unbind(1)
    return at if len(at[0]) <= (1 - FEWEST_PIXELS) * total else None


def _products_of_pixels(call: Call, g: Tensor, x: Tensor, weight: Tensor, at: tuple[Tensor, ...]) -> Gradients:
    """Return dX, dW and dbias of some pixels; the others are zero."""
    form, taken = LinearForm(False, False, weight.shape[1]), x.flatten(2).mT[at] if call.need[1] else None
    d_x, d_weight, d_bias = form.products(g.flatten(2).mT[at], taken, weight.flatten(1), call.need)
    if d_x is not None:
        whole = empty(g, call.x_shape, call.x_turned).zero_()
        whole.flatten(2).mT[at] = d_x
        d_x = whole
    return d_x, None if d_weight is None else d_weight.view(call.weight_shape), d_bias


def nothing(call: Call, g: Tensor) -> Gradients:
    """Return the products of a gradient without rows that are not zero."""
    shapes = call.x_shape, call.weight_shape, (g.shape[1],)
    return tuple(g.new_zeros(shape) if wanted else None for shape, wanted in zip(shapes, call.need, strict=True))


def scattered(d_x: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return dX of all rows from that of some; the others are zero."""
    if len(index) == rows:
        return d_x
    last = d_x.dim() == 4 and d_x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    whole = torch.empty((rows, *d_x.shape[1:]), dtype=d_x.dtype, device=d_x.device, memory_format=layout)
    return whole.zero_().index_copy_(0, index, d_x)


def of_rows(x: Levels, index: Tensor, by_column: bool = False) -> Levels:
    """Return some rows of coded activations or gradients; these may have a scale each, or one for each column."""
    codes, parameters = x.codes, x.parameters
    taken = codes.index_select(0, index) if codes.stride(0) else codes[:1].expand(len(index), *codes.shape[1:])
    return Levels(taken, parameters if by_column or parameters.shape[1] == 1 else parameters.index_select(1, index))


# ------------------------------------------------------------------------------------------- rows that are dropped


class Kept(NamedTuple):
    """Rows of a gradient that a product takes."""

    places: Tensor
    """Their indices in the gradient."""
    rows: Tensor
    """The rows themselves, times their factors."""
    norms: Tensor
    """The norms of the rows before they were multiplied by their factors."""
    factors: Tensor
    """float32: 1 over the probability with which each was kept."""

    def some(self, drawn: KeptRows) -> Kept:
        """Return those of these rows that were drawn from them."""
        at, more = drawn.places, drawn.factors
        column = (-1, *(1,) * (self.rows.dim() - 1))
        rows = self.rows.index_select(0, at) * more.to(self.rows.dtype).reshape(column)
        return Kept(self.places[at], rows, self.norms[at], self.factors[at] * more)


def backward_of_rows(layer: Any, call: Call, g: Tensor, operands: tuple[Any, ...]) -> Gradients:
    """Return dX, dW and dbias of a layer whose gradient has `Rows` first in a sentence.

    Rows for dX are drawn by their norms, and rows for dW from those, so that both are unbiased.  What is left of each
    goes through the rest of the sentence and the backend of the layer.  dbias is the sum of all rows.

    Args:
        layer: the engine.
        operands: what the layer saved of activations and weights, as `Call.mode` says.
    """
    sites = [layer.gradient.at[product] for product in BACKWARD]
    rules = [None if site is None else site.rows for site in sites]
    if call.form.geometry.stride and any(rule is not None and rule.of == "row" for rule in rules):
        return _backward_of_pixels(layer, call, g, operands)
    need, total = call.need, g.shape[0]
    found: list[Tensor | None] = [None, None, None]
    if need[2]:
        found[2] = g.sum((0, *range(2, g.dim())))
    index = nonzero_rows(g)
    rows = g if len(index) == total else g.index_select(0, index)
    norms = row_norms(rows.flatten(1))
    nonzero = Kept(index, rows, norms, norms.new_ones(len(norms), dtype=torch.float32))

    def multiply(kept: Kept, x_and_weight: tuple[Any, ...], wanted: Need) -> None:
        """Write the products of some rows, and count these."""
        made: Gradients
        for site in {id(site): site for site, one in zip(sites, wanted, strict=False) if one}.values():
            _count(site, g, len(index), len(kept.places))
        if len(kept.places):
            smaller = call._replace(x_shape=torch.Size((len(kept.places), *call.x_shape[1:])), need=wanted)
            d_x, d_weight, _ = layer.by_mode(smaller, kept.rows, x_and_weight)
            made = scattered(d_x, kept.places, total) if wanted[0] else None, d_weight
        else:
            made = nothing(call, g)[:2]
        found[:2] = [new if one else old for old, new, one in zip(found, made, wanted, strict=False)]

    for_input = nonzero
    if need[0] and rules[0] is None:
        found[0] = layer.by_mode(call._replace(need=(True, False, False)), g, operands)[0]
    elif need[0]:
        for_input = _drawn(rules[0], nonzero, norms, sites[0], call, total)
    if need[1] and rules[1] is None:
        found[1] = layer.by_mode(call._replace(need=(False, True, False)), g, operands)[1]
    met = _operands_of_rows(call, operands, for_input.places)
    if need[1] and rules[1] is not None:
        again = need[0] and rules[0] == rules[1]
        base, own = (for_input, met) if again else (nonzero, _operands_of_rows(call, operands, index))
        if again and rules[1].weigh == "norm":
            multiply(for_input, met, (True, True, False))
            return tuple(found)
        weights = base.norms
        if rules[1].weigh == "norm x input" and len(base.places):
            weights = weights * row_norms(layer.activations_of(call, own).flatten(1))
        for_weight = _drawn(rules[1], base, weights, sites[1], call, total)
        places = torch.searchsorted(base.places, for_weight.places)
        smaller = call._replace(x_shape=torch.Size((len(base.places), *call.x_shape[1:])))
        multiply(for_weight, _operands_of_rows(smaller, own, places), (False, True, False))
    if need[0] and rules[0] is not None:
        multiply(for_input, met, (True, False, False))
    return tuple(found)


def _backward_of_pixels(layer: Any, call: Call, g: Tensor, operands: tuple[Any, ...]) -> Gradients:
    """Return dX, dW and dbias of a convolution of one pixel: a linear layer, whose rows are pixels."""

    def rows_of(one: Any) -> Any:
        return one if one is None or one.dim() < 3 else one.movedim(1, -1).reshape(-1, one.shape[1])

    outputs, inputs = call.weight_shape[:2]
    samples, pixels = g.shape[0], g.shape[2:].numel()
    form = LinearForm(fused=False, by_column=False, inputs=inputs, length=pixels)
    shapes = torch.Size((samples * pixels, inputs)), torch.Size((outputs, inputs))
    place = 2 if call.mode == CODES else 1
    met = [one.flatten(1) if at == place and one is not None else rows_of(one) for at, one in enumerate(operands)]
    if call.mode == CODES:  # where rows would have scales, all pixels have one
        met[1] = met[1].expand(2, samples * pixels) if layer.folds_rows else met[1]
    linear = Call(call.mode, form, call.need, *shapes, False, False, call.learns)
    d_x, d_weight, d_bias = backward_of_rows(layer, linear, rows_of(g), tuple(met))
    return (
        None if d_x is None else d_x.reshape(samples, *g.shape[2:], inputs).movedim(-1, 1),
        None if d_weight is None else d_weight.reshape(call.weight_shape),
        d_bias,
    )


def _drawn(rule: Any, base: Kept, weights: Tensor, site: Site, call: Call, total: int) -> Kept:
    """Return rows drawn from some that may have been drawn themselves; `weights` are what they would count in all.

    With p the probability of a row so far, m its weight and a the threshold, it is kept with min(p, m / a) in all: the
    weight of what is left of it is m / p, and a row with less than a is kept with m / (p a).
    """
    if rule.noise == 0 or not len(weights):
        return base
    length = getattr(call.form, "length", 1) if rule.of == "sample" else 1
    shares = base.factors.double()
    if length > 1:
        sample, count = base.places.div(length, rounding_mode="floor"), total // length
        sums = weights.new_zeros(count).index_add_(0, sample, weights * weights)
        weights, shares = sums.sqrt(), weights.new_zeros(count).index_copy_(0, sample, shares).clamp(min=1.0)
    threshold = row_threshold(weights, sparsity=rule.sparsity, noise=rule.noise, counts=shares, total=total // length)
    if rule.most < 1 and expected_rows(weights * shares, threshold) > rule.most * (total // length):
        return base
    key = torch.stack([~site.key[0], site.key[1]])  # not the numbers that round what is left
    drawn = keep_rows(weights * shares, threshold, key)
    if length > 1:
        factors = drawn.factors.new_zeros(total // length).index_copy_(0, drawn.places, drawn.factors)[sample]
        at = factors.nonzero()[:, 0]
        drawn = KeptRows(at, factors[at])
    return base.some(drawn)


def _operands_of_rows(call: Call, operands: tuple[Any, ...], index: Tensor) -> tuple[Any, ...]:
    """Return what a layer has saved, for some rows of the activations."""
    if len(index) == call.x_shape[0]:
        return operands
    x, *others = operands
    if call.mode == CODES:
        return *of_rows(Levels(x, others[0]), index)[:2], *others[1:]
    taken = x if x is None else x.index_select(0, index)
    if len(others) > 2 and others[2] is not None:  # factors of rows
        others[2] = others[2].index_select(0, index)
    return taken, *others


def _count(site: Site, g: Tensor, nonzero: int, kept: int) -> None:
    """Count rows, and the elements of those that are not treated any further."""
    rows, columns = g.shape[0], math.prod(g.shape[1:])
    done = not site.treatments or not kept
    added = [0] * len(COUNTERS)
    added[ROWS], added[ROWS_ZERO], added[ROWS_KEPT] = rows, rows - nonzero, kept
    added[ELEMENTS] = (rows if done else rows - kept) * columns
    added[ZEROS_BEFORE], added[ZEROS_AFTER] = (rows - nonzero) * columns, (rows - kept) * columns
    added[PRUNED], added[TREATED] = (nonzero - kept) * columns, int(done)
    site.counters += torch.tensor(added, device=site.counters.device)
    site.key[1] += rows
