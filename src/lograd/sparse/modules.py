"""Linear, Conv1d and Conv2d of torch.nn with a sparse backward.

A share `sparsity` of each gradient becomes zero, by a threshold from a sample of these gradients.  What is kept between
steps is not part of the state_dict, which is that of torch's own layer.  `sparsity=0` skips only the zeros that are
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InvalidValue
from ..ops.geometry import Geometry
from ..treatments import Prune
from . import functional
from .threshold import Pruning


class _Sparse(nn.Module):
    """The sparsity of a layer, and its pruning as buffers that move with it and keep their types."""

    weight: Tensor
    threshold: Tensor
    key: Tensor
    passes: Tensor

    def __init__(self, *arguments: Any, sparsity: float = 0.85, seed: int = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sparsity = Prune(sparsity).sparsity if sparsity else 0.0
        self._seed = seed
        for name, tensor in self._beginning(self.weight.device).items():
            self.register_buffer(name, tensor, persistent=False)

    def _beginning(self, device: torch.device) -> dict[str, Tensor]:
        return {
            "threshold": torch.zeros((), dtype=torch.float32, device=device),
            "key": torch.tensor([self._seed, 0], device=device),
            "passes": torch.zeros((), dtype=torch.int64, device=device),
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the layer; a cast of its parameters leaves the pruning as it is, in type and value.

        From the meta device it begins anew: what `to_empty` gives holds whatever was in memory.
        """
        own = {id(self._buffers[name]): name for name in ("threshold", "key", "passes")}

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            if id(tensor) not in own:
                return result
            if tensor.is_meta and not result.is_meta:
                return self._beginning(result.device)[own[id(tensor)]]
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, recurse)  # type: ignore[no-untyped-call]

    @property
    def _pruning(self) -> Pruning:
        if not self.sparsity:
            return Pruning(None, self.key)
        return Pruning(self.threshold, self.key, self.sparsity, self.passes)

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which cannot read a backward of our own."""
        raise InvalidValue("torch.jit.script cannot read a sparse layer; script a model of torch.nn layers instead.")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sparsity={self.sparsity:g}"


class Linear(_Sparse, nn.Linear):
    """nn.Linear(..., sparsity=0.85, seed=0) with a sparse backward."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output of nn.Linear."""
        return functional.apply_linear(input, self.weight, self.bias, self._pruning)


class _Convolution(_Sparse, nn.modules.conv._ConvNd):
    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(self.stride)
        assert not isinstance(padding, str)
        geometry = Geometry(self.stride, padding, self.dilation, self.groups)
        return functional.apply_convolution(input, self.weight, self.bias, geometry, self._pruning)


class Conv1d(_Convolution, nn.Conv1d):
    """nn.Conv1d(..., sparsity=0.85, seed=0) with a sparse backward."""


class Conv2d(_Convolution, nn.Conv2d):
    """nn.Conv2d(..., sparsity=0.85, seed=0) with a sparse backward."""
