"""Layers from float32 to float32, quantizing included: forward with backward.

Both are what autograd runs: a module of `lograd.nn` against the same module of `torch.nn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

import lograd

from .cases import FP32, Call, Case, Make

BITS = (4, 6, 8)

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Linear:
    """A linear layer with bias."""

    rows: int
    inputs: int
    outputs: int

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"Linear {self.rows} x {self.inputs} -> {self.outputs}"

    @cached_property
    def x(self) -> Tensor:
        """Its input."""
        return torch.randn(self.rows, self.inputs)

    def plain(self) -> nn.Module:
        """The layer of torch."""
        torch.manual_seed(0)
        return nn.Linear(self.inputs, self.outputs)

    def integer(self, bits: int) -> nn.Module:
        """The layer of lograd."""
        torch.manual_seed(0)
        return lograd.nn.Linear(self.inputs, self.outputs, recipe=f"int{bits}-full")

    def layouts(self) -> dict[str, torch.memory_format]:
        """Memory formats by what they add to a name."""
        return {"": torch.contiguous_format}


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias, as those before a BatchNorm."""

    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1

    @property
    def name(self) -> str:
        """Its name in the table."""
        channels = f"{self.inputs} -> {self.outputs}" if self.inputs != self.outputs else f"{self.inputs}"
        return f"Conv {self.kernel}x{self.kernel}{'/2' * (self.stride == 2)} {channels} @ {self.size}x{self.size}"

    @cached_property
    def x(self) -> Tensor:
        """Its input, as a ReLU leaves it."""
        return torch.randn(self.batch, self.inputs, self.size, self.size).relu_()

    def plain(self) -> nn.Module:
        """The layer of torch."""
        torch.manual_seed(0)
        return nn.Conv2d(self.inputs, self.outputs, self.kernel, self.stride, self.kernel // 2, bias=False)

    def integer(self, bits: int) -> nn.Module:
        """The layer of lograd."""
        torch.manual_seed(0)
        return lograd.nn.Conv2d(
            self.inputs, self.outputs, self.kernel, self.stride, self.kernel // 2, bias=False,
            recipe=f"int{bits}-full",
        )  # fmt: skip

    def layouts(self) -> dict[str, torch.memory_format]:
        """Memory formats by what they add to a name."""
        return {"": torch.channels_last, ", NCHW": torch.contiguous_format}


Layer = Linear | Convolution

LAYERS: tuple[Layer, ...] = (
    Linear(2048, 768, 3072),
    Linear(2048, 3072, 768),
    Linear(512, 512, 512),
    Convolution(32, 64, 64, 32, 3),
    Convolution(32, 128, 128, 16, 3),
    Convolution(32, 256, 256, 8, 3),
    Convolution(32, 512, 512, 4, 3),
    Convolution(32, 64, 128, 32, 3, stride=2),
    Convolution(32, 128, 256, 16, 3, stride=2),
    Convolution(32, 256, 512, 8, 3, stride=2),
    Convolution(32, 256, 256, 8, 1),
    Convolution(32, 64, 64, 32, 1),
)
QUICK: tuple[Layer, ...] = (Linear(64, 64, 96), Convolution(4, 16, 16, 8, 3))


def trained(layer: Layer, build: Build, format: torch.memory_format, autocast: bool = False) -> Make:
    """Forward and backward of a module for one input and one gradient, both float32."""

    def make() -> Call:
        module, x = _in(build(), layer.x, format)
        x.requires_grad_()
        g = torch.randn_like(module(x))
        wanted = (x, *module.parameters())

        def call() -> object:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = module(x).float()
            return torch.autograd.grad(y, wanted, g)

        return call

    return make


def _in(module: nn.Module, x: Tensor, format: torch.memory_format) -> tuple[nn.Module, Tensor]:
    """A module and its input in a memory format; linear layers have one only."""
    if x.dim() == 4:
        module = module.to(memory_format=format)  # type: ignore[call-overload]
    return module.train(), x.clone(memory_format=format)


def _ways(layer: Layer) -> tuple[dict[str, Make], dict[str, Make]]:
    """Our ways and torch's own, in each layout."""
    ours, others = {}, {}
    for words, format in layer.layouts().items():
        others[f"{FP32}{words}"] = trained(layer, layer.plain, format)
        for bits in BITS:
            ours[f"{bits} bits{words}"] = trained(layer, partial(layer.integer, bits), format)
    first = next(iter(layer.layouts().values()))
    others["bfloat16"] = trained(layer, layer.plain, first, True)
    return ours, others


def cases(quick: bool) -> list[Case]:
    """All layers."""
    return [Case("layers", layer.name, *_ways(layer)) for layer in (QUICK if quick else LAYERS)]
