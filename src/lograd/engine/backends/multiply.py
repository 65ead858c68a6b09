"""One operator for the products of a gradient that has zeros: it prunes, counts, and takes the backend in force.

Sparse products sum in another order than dense ones, so the backend is part of what a resumed run needs: it is a small
tensor, read and written here, where torch.compile does not look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...ops.arguments import in_type_of
from ...ops.contracts import FLOAT_TYPES, Takes
from ...ops.geometry import Geometry
from ...ops.layouts import dense as in_memory
from ...ops.layouts import flat
from ...ops.registry import call, register
from ...ops.sparse_products import check_convolution, check_linear
from ..slots import COUNTERS, READY, count_passed_through, count_treated
from . import dense, sparse
from .choice import DENSE, MODE, SLOTS, SPARSE, TOO_SMALL, UNDECIDED, ZEROS, decide, timed

PART = 2**20
"""Elements that are pruned at a time while both backends are timed."""
LEAST_WORK = 2**22
"""Multiply-adds of one product, a tenth of a millisecond: below there is nothing to gain, and nothing is timed."""
Need = tuple[bool, bool, bool]


def _multiply(
    g: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int, threshold: Tensor | None, control: Tensor, key: Tensor, counters: Tensor, choice: Tensor, *need: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return dX, dW and dbias of a gradient, which is pruned and counted on the way if there is a threshold.

    Args:
        g: the gradient of a layer's output.
        x, weight: what it meets; one that is not needed may be any tensor of its shape.
        stride, padding, dilation, groups: the geometry of a convolution; empty for a linear layer.
        threshold: one element; None takes the gradient as it is.
        control, key, counters: those of the gradient and its site; see `slots`.
        choice: the tensor of a `Choice`; it is timed and set here if it is undecided.
        need: which of the three are wanted; the others have no elements.
    """
    geometry, wanted = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups), (need[0], need[1], need[2])
    ready = bool(control.tolist()[READY]) and g.dtype in FLOAT_TYPES
    limit = None if threshold is None or not ready else in_type_of(g, threshold.reshape(()))
    mode = choice.tolist()[MODE] if ready else DENSE
    if mode == UNDECIDED and g.numel() * weight[0].numel() < LEAST_WORK:
        mode = DENSE
        choice[ZEROS] = TOO_SMALL
    elif mode == UNDECIDED:
        mode = _choose(g, x, weight, geometry, limit, key, choice, wanted)
    if mode == SPARSE:
        *results, counts = sparse.products(g, x, weight, geometry, limit, key, wanted)
    else:
        pruned, counts = (g, key) if limit is None else call("stochastic_prune", g, limit, key, True)
        results = list(dense.products(pruned, x, weight, geometry, wanted))
    if limit is not None:
        count_treated(counters, key, counts, g.numel())
    elif threshold is not None:
        count_passed_through(counters)
    return tuple(
        _laid_out(result, like) if is_wanted else result
        for result, like, is_wanted in zip(results, (x, weight, results[2]), need, strict=True)
    )


def _choose(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, limit: Tensor | None, key: Tensor, choice: Tensor,
    need: Need,
) -> int:  # fmt: skip
    """Time both backends on the gradient at hand, and return the faster."""

    def by_lists() -> Any:
        return sparse.products(g, x, weight, geometry, limit, key, need)

    def densely() -> None:
        """Run dense products without a pruned copy of the gradient: a step that times both needs no more memory."""
        for part in () if limit is None else torch.split(flat(in_memory(g)), PART):
            call("stochastic_prune", part, limit, key, True)
        dense.products(g, x, weight, geometry, need)

    times = timed(dense=densely, sparse=by_lists)
    share = int(by_lists()[3][0]) / g.numel()  # dense products do not count the zeros of a gradient taken as it is
    return decide(choice, times._replace(zeros=share))


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """Return the result in the layout that tracers were promised: that of `like` where it is dense, as results are."""
    if result.stride() == like.stride():
        return result
    expected = torch.empty_like(like, device="meta")
    return result if result.stride() == expected.stride() else torch.empty_like(like).copy_(result)


def _check(
    g: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int, *rest: object,
) -> None:  # fmt: skip
    if stride or padding or dilation:
        check_convolution(g, x, weight, None, None, stride, padding, dilation, groups)
    else:
        check_linear(g, x, weight)


def _fake(g: Tensor, x: Tensor, weight: Tensor, *rest: object) -> tuple[Tensor, ...]:
    need_x, need_weight, need_bias = rest[-3:]
    return (
        torch.empty_like(x) if need_x else g.new_empty(0),
        torch.empty_like(weight) if need_weight else g.new_empty(0),
        g.new_empty(weight.shape[0]) if need_bias else g.new_empty(0),
    )


register(
    "multiply(Tensor g, Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups,"
    " Tensor? threshold, Tensor control, Tensor(a!) key, Tensor(b!) counters, Tensor(c!) choice, bool need_x,"
    " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
    _multiply,
    _multiply,
    _fake,
    _check,
    {
        "g": Takes(),
        "x": Takes(),
        "weight": Takes(),
        "control": Takes((torch.int64,), 2, anywhere=True),
        "counters": Takes((torch.int64,), len(COUNTERS)),
        "choice": Takes((torch.int64,), SLOTS, anywhere=True),
    },
)
