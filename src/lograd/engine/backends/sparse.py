"""Products of a gradient with zeros: by lists of the elements that are not zero, or dense, whichever is faster."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...ops.arguments import in_type_of
from ...ops.contracts import FLOAT_TYPES
from ...ops.geometry import Geometry
from ...ops.registry import call as call_operator
from ...ops.sparse_products import Results
from ..autograd import Call
from ..forms import Gradients, Need
from ..rows import without_zeros
from ..site import Operand, Site
from .choice import DENSE, SPARSE, UNDECIDED, Choice, timed


def list_products(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, threshold: Tensor | None, key: Tensor, need: Need
) -> Results:
    """Return dX, dW, dbias and counts of a gradient, which is pruned on the way if there is a threshold."""
    name, shape = ("sparse_convolution_backward", geometry) if geometry.stride else ("sparse_linear_backward", ())
    result: Results = call_operator(name, g, x, weight, threshold, key, *shape, *need)
    return result


def multiply(call: Call, g: Tensor, x: Any, weight: Any, operand: Operand, site: Site, choice: Choice) -> Gradients:
    """Return dX, dW and dbias by the backend in force; a single pruning is done, and counted, on the way.

    Args:
        g: the gradient of a layer's output; treated already, unless its site has a threshold.
        x, weight: what it meets; None for one that is not needed.
        operand, site: those of the gradient.
        choice: timed and set here if it is undecided.
    """
    form, need, threshold = call.form, call.need, site.threshold
    ready = operand.ready and g.dtype in FLOAT_TYPES
    limit = None if threshold is None or not ready else in_type_of(g, threshold.reshape(()))
    by_lists = partial(list_products, g, *form.operands(g, x, weight), form.geometry, limit, site.key, need)
    prune = (lambda: (g, g)) if limit is None else partial(call_operator, "stochastic_prune", g, limit, site.key, True)
    mode = choice.mode if ready else DENSE
    if mode == UNDECIDED and choice.is_too_small(g.numel() // g.shape[1] * torch.Size(call.weight_shape).numel()):
        mode = DENSE
    elif mode == UNDECIDED:
        times = timed(dense=lambda: without_zeros(call, prune()[0], x, weight), sparse=by_lists)
        # Dense products do not count the zeros of a gradient taken as it is.
        mode = choice.decide(times._replace(zeros=int(by_lists()[3][0]) / g.numel()))
    if mode == SPARSE:
        d_x, d_weight, d_bias, counts = by_lists()
        found: Gradients = d_x, form.oriented(d_weight) if need[1] else None, d_bias
    else:
        pruned, counts = prune()
        found = without_zeros(call, pruned, x, weight)
    if limit is not None:
        site.count(counts, g.numel())
    elif threshold is not None:
        site.count_passed_through()
    return found
