"""The ways that PyTorch has beside FP32: `_int_mm`, bfloat16, and int8 linear layers and convolutions of inference.

The int8 layers have no backward.  They take and return float32, so that quantizing is part of their time as it is part
of ours; their weights are packed once, which is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .cases import Call, Make

ENGINES = ("fbgemm", "onednn")
"""Engines of PyTorch's int8 layers; "x86" is one of these two, depending on the shapes."""

_quantized: Any = torch.ops.quantized


def int_mm(rows: int, inner: int, columns: int) -> Make:
    """int8 x int8 to int32, without scales."""

    def make() -> Call:
        a = torch.randint(-128, 128, (rows, inner), dtype=torch.int8)
        b = torch.randint(-128, 128, (inner, columns), dtype=torch.int8)
        return lambda: torch._int_mm(a, b)

    return make


def bfloat16_mm(rows: int, inner: int, columns: int) -> Make:
    """A product of two bfloat16 matrices."""

    def make() -> Call:
        a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
        return lambda: nn.functional.linear(a, b)

    return make


def dynamic_linear(x: Tensor, weight: Tensor, bias: Tensor | None, engine: str) -> Make:
    """torch's dynamic quantized linear layer: the range of x is taken in each call."""

    def make() -> Call:
        with _engine(engine):
            packed = _quantized.linear_prepack(_quantized_weight(weight), bias)
        return lambda: _quantized.linear_dynamic(x, packed, True)

    return make


def int8_convolution(x: Tensor, weight: Tensor, stride: int, padding: int, engine: str) -> Make:
    """torch's int8 convolution with scales that are known beforehand, between quantize and dequantize."""

    def make() -> Call:
        last = x.contiguous(memory_format=torch.channels_last)
        reference = torch.conv2d(last, weight, None, stride, padding)
        step, result_step = (float(one.abs().max()) / 127 for one in (last, reference))
        two = [stride, stride], [padding, padding], [1, 1]
        with _engine(engine):
            packed = _quantized.conv2d_prepack(_quantized_weight(weight), None, *two, 1)

        def call() -> Tensor:
            codes = torch.quantize_per_tensor(last, step, 128, torch.quint8)
            result: Tensor = _quantized.conv2d(codes, packed, result_step, 128).dequantize()
            return result

        return call

    return make


def _quantized_weight(weight: Tensor) -> Tensor:
    scales = weight.abs().flatten(1).amax(1) / 127
    return torch.quantize_per_channel(weight, scales, torch.zeros(len(scales), dtype=torch.int64), 0, torch.qint8)


@contextmanager
def _engine(name: str) -> Iterator[None]:
    """Pack weights for one of PyTorch's engines."""
    backend: Any = torch.backends.quantized
    before = backend.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the quantized types are announced to move to another package
        backend.engine = name
        try:
            yield
        finally:
            backend.engine = before
