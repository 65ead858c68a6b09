"""Linear, Conv1d and Conv2d of torch.nn with a recipe: integer products, or a backward that skips pruned zeros.

`Linear(768, 3072, recipe="int6-full")` computes its three products in exact integers, `recipe="prune85"` prunes the
gradient to 85 % zeros.  What changes between steps is kept outside of the state_dict, which is that of torch's layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..engine import autograd
from ..engine.autograd import Call
from ..engine.backends.integer import reason_not_coded
from ..engine.forms import ConvolutionForm, Gradients, cast_as_autocast_would
from ..engine.layer import LayerEngine
from ..engine.layers import reason_unserved, row_units
from ..errors import InvalidValue
from ..ops import log_histogram
from ..ops.contracts import FLOATS
from ..ops.geometry import Geometry
from ..plan import LayerPlan
from ..treatments import BACKWARD, PRODUCTS, SYMBOLS, Backend, Prune, Statistics, recipe
from ..treatments.products import check_backend

SAMPLE = 65536
"""Elements of a gradient that are counted: the sparsity that results is then within half a percent of the target."""
EARLY, EVERY = 20, 10
"""The threshold follows each of the first gradients, then each tenth."""


def make_engine(name: str, module: nn.Module, seed: int, backend: Backend | None) -> LayerEngine:
    """Return the engine of a layer outside of any plan; recipes that need more than its own tensors are refused."""
    plan = LayerPlan.of(recipe(name))
    device = next(module.parameters()).device
    engine = LayerEngine(plan, device, None, row_units(module))
    sentences = {site.sentence for site in engine.gradient.sites.values()}
    pruning = next(iter(sentences))[0] if len(sentences) == 1 else None
    if isinstance(pruning, Prune) and engine.sites == engine.gradient.sites and engine.gradient.shared:
        engine, natural = _PruningEngine(plan, device, pruning), "sparse"
    elif (reason := reason_not_coded(engine)) is not None:
        raise InvalidValue(f"a layer takes a pruning or operands that are levels, as in 'int6-full': {reason}.")
    elif any(operand.has_statistics for operand in engine.operands.values()):
        raise InvalidValue(f"recipe {name!r} takes statistics of earlier steps; attach a plan with it instead.")
    else:
        natural = "integer"
    chosen = check_backend(natural if backend is None else backend)
    engine.choose(
        chosen, dict.fromkeys(PRODUCTS, "auto"), reason_unserved(module, "sparse"), reason_unserved(module, "integer")
    )
    seeds = np.random.SeedSequence(seed % 2**64).generate_state(len(engine.sites), np.uint64)
    for site, one in zip(engine.sites.values(), seeds.astype(np.int64).tolist(), strict=True):
        site.key[0] = one
    return engine


class _PruningEngine(LayerEngine):
    """The engine of a layer whose gradient is pruned by a threshold that follows the gradient itself."""

    def __init__(self, plan: LayerPlan, device: torch.device, pruning: Prune) -> None:
        super().__init__(plan, device, None)
        self._pruning, self._site = pruning, next(iter(self.gradient.sites.values()))
        self.seen_gradients = torch.zeros((), dtype=torch.int64, device=device)
        self.gradient.set_ready(True)

    def compute_backward(self, call: Call, g: Tensor, saved: Sequence[Any]) -> Gradients:
        """Return dX, dW and dbias of the pruned gradient."""
        if g.dtype in FLOATS:
            self._follow(g)
        return super().compute_backward(call, g, saved)

    def _follow(self, g: Tensor) -> None:
        """Count a gradient and, where it is due, set the threshold that gives it its sparsity."""
        self.seen_gradients += 1
        count = int(self.seen_gradients)
        if g.numel() == 0 or (count > EARLY and count % EVERY):
            return
        try:
            found = log_histogram(g, min(1.0, SAMPLE / g.numel())).law()
        except InvalidValue:  # nothing but zeros, or not all finite: the next gradient will do
            return
        self._site.numbers.fill_(self._pruning.numbers(Statistics(found))["threshold"])


class _Layer(nn.Module):
    """The recipe of a layer, and its engine, which is neither parameter nor buffer."""

    weight: Tensor

    def __init__(
        self, *arguments: Any, recipe: str = "int8-full", seed: int = 0, backend: Backend | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.recipe = recipe
        self._seed, self._backend = seed, backend
        self._engine: LayerEngine | None = None
        self._own_engine()

    def _own_engine(self) -> LayerEngine:
        """Return the engine; that of a copy begins anew."""
        if self._engine is None:
            self._engine = make_engine(self.recipe, self, self._seed, self._backend)
        return self._engine

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the engine: a pickle begins anew."""
        return {**vars(self), "_engine": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the layer, and begin anew where it goes to another device or type."""
        before = self.weight.device, self.weight.dtype
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before != (self.weight.device, self.weight.dtype):
            self._engine = None
            self._own_engine()
        return result

    def explain(self) -> str:
        """Return how the products are computed, with the measured times, or why they are dense."""
        engine = self._own_engine()
        if not engine.choices:
            return f"dense products: {engine.why_dense or engine.why_simulated}"
        names = {f"{product}.gradient": SYMBOLS[product] for product in BACKWARD}
        names |= {"output": "Y", "gradient": "dX and dW"}
        return "; ".join(f"{names[name]}: {choice.words()}" for name, choice in engine.choices.items())

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which cannot read a backward of our own."""
        raise InvalidValue("torch.jit.script cannot read a layer of lograd.nn; script a model of torch.nn instead.")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe!r}"


class Linear(_Layer, nn.Linear):
    """nn.Linear(..., recipe="int8-full", seed=0, backend=None).

    Args:
        recipe: "intN-full" and other recipes whose operands are levels, or a pruning such as "prune85".
        seed: of stochastic rounding and pruning.
        backend: None for integer or sparse products, as the recipe has them; "auto" takes the faster of these and
            dense ones, "dense" only rounds or prunes.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of nn.Linear, from operands as the recipe treats them."""
        return autograd.linear(*cast_as_autocast_would(input, self.weight, self.bias), self._own_engine())


class _ConvolutionForm(_Layer, nn.modules.conv._ConvNd):
    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(self.stride)
        assert not isinstance(padding, str)
        form = ConvolutionForm(Geometry(self.stride, padding, self.dilation, self.groups))
        return autograd.convolution(*cast_as_autocast_would(input, self.weight, self.bias), form, self._own_engine())


class Conv1d(_ConvolutionForm, nn.Conv1d):
    """nn.Conv1d(..., recipe="int8-full", seed=0, backend=None); see `Linear`."""


class Conv2d(_ConvolutionForm, nn.Conv2d):
    """nn.Conv2d(..., recipe="int8-full", seed=0, backend=None); see `Linear`."""
