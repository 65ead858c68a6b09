"""Linear, Conv1d and Conv2d of torch.nn whose three products are computed in exact integers.

Ranges in hindsight and the place in the random numbers are kept between steps, outside of the state_dict, which is
that of torch's own layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..engine.layer import LayerEngine
from ..engine.layers import reason_not_integer
from ..errors import InvalidValue
from ..ops.geometry import Geometry
from ..treatments import BACKWARD, SYMBOLS, Backend
from . import functional
from .engine import make_engine, treated_by


class _Integer(nn.Module):
    """The bits of a layer, and its engine, which is neither parameter nor buffer."""

    weight: Tensor

    def __init__(
        self, *arguments: Any, bits: int | str = 8, seed: int = 0, backend: Backend = "integer", **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.bits = bits
        self._seed, self._backend = seed, backend
        self._engine: LayerEngine | None = None
        self._made()

    def _made(self) -> LayerEngine:
        """Return the engine; that of a copy begins anew."""
        if self._engine is None:
            reason = reason_not_integer(self)
            self._engine = make_engine(treated_by(self.bits), reason, self.weight.device, self._seed, self._backend)
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
            self._made()
        return result

    def explain(self) -> str:
        """Return how the products are computed, with the measured times, or why they are dense."""
        engine = self._made()
        if not engine.coded:
            return f"dense products: {engine.why_simulated}"
        names = {f"{product}.gradient": SYMBOLS[product] for product in BACKWARD} | {"output": "Y"}
        return "; ".join(f"{names[name]}: {choice.words()}" for name, choice in engine.choices.items())

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which cannot read a backward of our own."""
        raise InvalidValue("torch.jit.script cannot read an integer layer; script a model of torch.nn layers instead.")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bits={self.bits}"


class Linear(_Integer, nn.Linear):
    """nn.Linear(..., bits=8, seed=0, backend="integer") with integer products.

    `bits` is 2 to 8, or the name of a recipe; `backend="auto"` takes the faster of dense and integer products.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of nn.Linear, from rounded operands."""
        return functional.apply_linear(input, self.weight, self.bias, self._made())


class _Convolution(_Integer, nn.modules.conv._ConvNd):
    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(self.stride)
        assert not isinstance(padding, str)
        geometry = Geometry(self.stride, padding, self.dilation, self.groups)
        return functional.apply_convolution(input, self.weight, self.bias, geometry, self._made())


class Conv1d(_Convolution, nn.Conv1d):
    """nn.Conv1d(..., bits=8, seed=0, backend="integer") with integer products; see `Linear`."""


class Conv2d(_Convolution, nn.Conv2d):
    """nn.Conv2d(..., bits=8, seed=0, backend="integer") with integer products; see `Linear`."""
