"""What the tests of integer products share: codes at their extremes, and the products in int64, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from bits import machine
from hypothesis import strategies as st
from torch import Tensor

from lograd import native
from lograd.ops.coded import CodedTensor, Folded, Layout

WIDTHS = tuple(range(2, 9))
MACHINES = [
    ("generic", 1), ("generic", 2), ("avx2", 1), ("avx2", 2), ("avx2", 3), ("avx2vnni", 2), ("avx512", 2),
    ("avx512vnni", 1), ("avx512vnni", 3),
]  # fmt: skip
"""Instruction sets and threads."""
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 32, 33, 47, 64, 65, 97]))
"""Around the tails of tiles, and small ones."""


def machines() -> Iterator[tuple[str, int]]:
    """Those of `MACHINES` that this CPU has."""
    if not native.status().available:
        return
    for isa, threads in MACHINES:
        if native.use_isa(isa):
            native.use_isa()
            with machine(isa, threads):
                yield isa, threads


@st.composite
def codes(draw: st.DrawFn, shape: Sequence[int]) -> tuple[Tensor, int]:
    """Codes of 2 to 8 bits with a zero: signed (two's complement moved up, or symmetric), unsigned, or anywhere.

    All kinds of contents: any code, the two ends only, one end only.
    """
    most = 2 ** draw(st.sampled_from(WIDTHS)) - 1
    zero = draw(st.sampled_from([0, most // 2, most // 2 + 1, most, 255]))
    kind = draw(st.sampled_from(["any", "any", "ends", "lowest", "highest"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    if kind in ("lowest", "highest"):
        return torch.full(tuple(shape), 0 if kind == "lowest" else most, dtype=torch.uint8), zero
    found = torch.randint(0, most + 1 if kind == "any" else 2, tuple(shape), generator=generator)
    return (found if kind == "any" else found * most).to(torch.uint8), zero


def whole(x: Tensor, zero: int) -> Tensor:
    """code - zero, in int64."""
    return x.long() - zero


def scaled(sums: Tensor, columns: Tensor | None, rows: Tensor | None, bias: Tensor | None) -> Tensor:
    """Sums along whose last dimension `columns` and `bias` lie, as float32, in the order of the definition."""
    result = sums.to(torch.float32)
    for factor in (columns, None if rows is None else rows.reshape(-1, 1)):
        result = result if factor is None else result * factor
    return result if bias is None else result + bias


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of int64 matrices."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


class Taps:
    """A two-dimensional convolution in int64 as a sum over the taps of its kernel; the definition, read aloud."""

    def __init__(self, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> None:
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def _padded(self, x: Tensor) -> Tensor:
        (py, px) = self.padding
        return torch.nn.functional.pad(x, (px, px, py, py))

    def _window(self, padded: Tensor, tap: tuple[int, int], size: Sequence[int]) -> Tensor:
        """The pixels of the padded input that meet a tap, one for each pixel of the output."""
        y, x = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, self.dilation, size, self.stride, strict=True)
        )
        return padded[:, :, y, x]

    def _grouped(self, x: Tensor) -> Tensor:
        """(batch, channels, ...) as (batch, groups, channels / groups, ...)."""
        return x.unflatten(1, (self.groups, -1))

    def output(self, x: Tensor, weight: Tensor, size: Sequence[int]) -> Tensor:
        padded, result = self._padded(x), x.new_zeros((x.shape[0], weight.shape[0], *size))
        kernel = weight.unflatten(0, (self.groups, -1))
        for tap in _taps(weight):
            window = self._grouped(self._window(padded, tap, size))
            result += torch.einsum("ngchw,goc->ngohw", window, kernel[..., tap[0], tap[1]]).flatten(1, 2)
        return result

    def input_gradient(self, g: Tensor, weight: Tensor, size: Sequence[int]) -> Tensor:
        padded = self._padded(g.new_zeros((g.shape[0], self.groups * weight.shape[1], *size)))
        kernel = weight.unflatten(0, (self.groups, -1))
        for tap in _taps(weight):
            part = torch.einsum("ngohw,goc->ngchw", self._grouped(g), kernel[..., tap[0], tap[1]])
            self._window(padded, tap, g.shape[2:]).add_(part.flatten(1, 2))
        (py, px), (height, width) = self.padding, size
        return padded[:, :, py : py + height, px : px + width]

    def weight_gradient(self, g: Tensor, x: Tensor, size: Sequence[int]) -> Tensor:
        padded, result = self._padded(x), g.new_zeros((g.shape[1], x.shape[1] // self.groups, *size))
        for tap in _taps(result):
            window = self._grouped(self._window(padded, tap, g.shape[2:]))
            part = torch.einsum("ngohw,ngchw->goc", self._grouped(g), window)
            result[:, :, tap[0], tap[1]] = part.flatten(0, 1)
        return result


def _taps(weight: Tensor) -> list[tuple[int, int]]:
    return [(y, x) for y in range(weight.shape[2]) for x in range(weight.shape[3])]


def coded(x: Tensor, zero: int, scale: Tensor | float, fold: Tensor | None = None, dim: int = 1) -> CodedTensor:
    """Codes as a coded tensor of levels."""
    scale = torch.as_tensor(scale, dtype=torch.float32)
    layout = Layout(tuple(x.shape), tuple(torch.empty(x.shape).stride()), torch.float32)
    transform = () if fold is None else (Folded(fold, dim),)
    return CodedTensor(x, scale, "uint8", layout, torch.tensor(float(zero)), transform=transform)
