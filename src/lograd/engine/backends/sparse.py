"""Products of a gradient with zeros: by lists of the elements that are not zero, or dense, whichever is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...ops.arguments import in_type_of
from ...ops.contracts import FLOAT_TYPES
from ...ops.geometry import Geometry
from ...ops.layouts import dense as in_memory
from ...ops.layouts import flat
from ...ops.registry import call
from ...ops.sparse_products import Products, Results, convolution_products, linear_products
from ..site import Operand, Site
from . import choice as served
from .choice import DENSE, SPARSE, UNDECIDED, Choice, timed

PART = 2**20
"""Elements that are pruned at a time while both backends are timed."""
Need = tuple[bool, bool, bool]


def dense_products(g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, need: Need) -> Products:
    """Return dX, dW and dbias of a gradient by the operators of PyTorch; what is not needed has no elements."""
    if not geometry.stride:
        return linear_products(g, x, weight, need)
    return convolution_products(g, x, weight, geometry, need)


def products(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, threshold: Tensor | None, key: Tensor, need: Need
) -> Results:
    """Return dX, dW, dbias and counts of a gradient, which is pruned on the way if there is a threshold."""
    name, shape = ("sparse_convolution_backward", geometry) if geometry.stride else ("sparse_linear_backward", ())
    result: Results = call(name, g, x, weight, threshold, key, *shape, *need)
    return result


def multiply(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, operand: Operand, site: Site, threshold: Tensor | None,
    choice: Choice, need: Need,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return dX, dW and dbias by the backend in force, with the gradient pruned and counted if there is a threshold.

    Args:
        g: the gradient of a layer's output.
        x, weight: what it meets; one that is not needed may be any tensor of its shape.
        operand, site: those of the gradient.
        threshold: one element; None takes the gradient as it is.
        choice: timed and set here if it is undecided.
    """
    ready = operand.ready and g.dtype in FLOAT_TYPES
    limit = None if threshold is None or not ready else in_type_of(g, threshold.reshape(()))
    mode = choice.mode if ready else DENSE
    if mode == UNDECIDED and choice.is_too_small(g.numel() * weight[0].numel()):
        mode = DENSE
    elif mode == UNDECIDED:
        mode = _choose(g, x, weight, geometry, limit, site.key, choice, need)
    if mode == SPARSE:
        *results, counts = products(g, x, weight, geometry, limit, site.key, need)
    else:
        pruned, counts = (g, g) if limit is None else call("stochastic_prune", g, limit, site.key, True)
        results = list(dense_products(pruned, x, weight, geometry, need))
    if limit is not None:
        site.count(counts, g.numel())
    elif threshold is not None:
        site.count_passed_through()
    return tuple(results)


def _choose(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, limit: Tensor | None, key: Tensor, choice: Choice,
    need: Need,
) -> int:  # fmt: skip
    """Time both backends on the gradient at hand, and return the faster."""

    def by_lists() -> Any:
        return products(g, x, weight, geometry, limit, key, need)

    def densely() -> None:
        """Run dense products without a pruned copy of the gradient: a step that times both needs no more memory."""
        for part in () if limit is None else torch.split(flat(in_memory(g)), PART):
            call("stochastic_prune", part, limit, key, True)
        dense_products(g, x, weight, geometry, need)

    times = timed(dense=densely, sparse=by_lists)
    share = int(by_lists()[3][0]) / g.numel()  # dense products do not count the zeros of a gradient taken as it is
    return choice.decide(times._replace(zeros=share))


def unserved(shape: Sequence[int], groups: int = 1, transposed: bool = False) -> str | None:
    """Return why a layer with a weight of this shape has no sparse products on any machine; None where it has.

    >>> unserved((32, 64, 3, 3))
    >>> unserved((64, 1, 3, 3), groups=64)
    'depthwise: a gradient element meets too few weights to be worth a list'
    """
    depthwise = "a gradient element meets too few weights to be worth a list"
    return served.unserved("sparse", depthwise, shape, groups, transposed)


def unserved_here(x: Tensor) -> str | None:
    """Return why tensors like this one have no sparse products on this machine; None where they have."""
    return served.unserved_here("sparse", FLOAT_TYPES, x)
