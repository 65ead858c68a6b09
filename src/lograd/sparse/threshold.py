"""A threshold that follows the gradient of a layer, for a sparsity: small tensors, and the operator that changes them.

Everything that changes is a tensor, so that nothing is compiled again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engine.autograd import Form, Gradients, Need
from ..engine.backends import sparse
from ..errors import InvalidValue
from ..ops import log_histogram
from ..ops.arguments import in_type_of
from ..ops.contracts import WIDE_FLOATS, Takes
from ..ops.registry import register
from ..treatments import Prune, Statistics

SAMPLE = 65536
"""Elements of a gradient that are counted: the sparsity that results is then within half a percent of the target."""
EARLY, EVERY = 20, 10
"""The threshold follows each of the first gradients, then each tenth."""


class Pruning(NamedTuple):
    """The engine of a layer with a sparse backward: by a threshold that is given, or by one that follows gradients."""

    threshold: Tensor | None
    key: Tensor
    sparsity: float = 0.0
    passes: Tensor | None = None
    """Gradients that came by; None where the threshold is given."""

    def hold(self, held: bool) -> None:
        """Do nothing: the operands of the output are not treated."""

    def learning(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the operands as they are: nothing is learned."""
        return x, weight

    def coder(self, x: Tensor, weight: Tensor) -> None:
        """Return None: the operands stay as they are."""
        return

    def for_output(self, x: Tensor, weight: Tensor, form: Form) -> tuple[None, None, None, None]:
        """Leave the operands of the output as they are."""
        return None, None, None, None

    def kept(self, x: Tensor, weight: Tensor, treated: object) -> tuple[Tensor, Tensor]:
        """Return activations and weights, for the backward to read."""
        return x, weight

    def backward(
        self, form: Form, g: Tensor, x: Any, weight: Any, need: Need, fold: Any = None, rows: Any = None
    ) -> Gradients:
        """Return dX, dW and dbias of the pruned gradient, by sparse products."""
        threshold, key = self.ready_for(g)
        d_x, d_weight, d_bias, _ = sparse.products(g, *form.operands(g, x, weight), form.geometry, threshold, key, need)
        return d_x, d_weight, d_bias

    def ready_for(self, g: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return threshold and key for this gradient; the threshold is a value of the gradient's type."""
        if self.passes is not None:
            torch.ops.lograd.follow_gradient.default(g, self.sparsity, self.threshold, self.key, self.passes)
        return None if self.threshold is None else in_type_of(g, self.threshold), self.key


def _follow(g: Tensor, sparsity: float, threshold: Tensor, key: Tensor, passes: Tensor) -> None:
    """Move the key on, and, where it is due, set the threshold that gives this gradient its sparsity."""
    passes += 1
    key[1] += g.numel()
    count = int(passes)
    if g.numel() == 0 or (count > EARLY and count % EVERY):
        return
    try:
        law = log_histogram(g.float() if g.dtype == torch.float64 else g, min(1.0, SAMPLE / g.numel())).law()
    except InvalidValue:  # nothing but zeros, or not all finite: the next gradient will do
        return
    threshold.fill_(Prune(sparsity).numbers(Statistics(law))["threshold"])


register(
    "follow_gradient(Tensor g, float sparsity, Tensor(a!) threshold, Tensor(b!) key, Tensor(c!) passes) -> ()",
    _follow,
    None,
    lambda g, *rest: None,
    takes={"g": Takes(WIDE_FLOATS), "passes": Takes((torch.int64,), 1)},
)
