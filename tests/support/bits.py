"""What the operators' tests share: bit equality, instruction sets and threads, awkward tensors in awkward layouts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from lograd import native
from lograd.ops.registry import Kernel, operators

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MACHINES = [("generic", 1), ("avx2", 1), ("avx2", 2), ("avx512", 2)]
"""Instruction sets and threads."""
IN_USE = next((one for one in MACHINES if (native.status().isa or "").startswith(one[0])), MACHINES[0])
"""The one that has the whole of a large table every day; the others have a part of it, and all with ./dev slow."""

_WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@contextmanager
def machine(isa: str, threads: int) -> Iterator[None]:
    """Native kernels of this instruction set on this many threads; skips where the CPU lacks it."""
    before = torch.get_num_threads()
    if not native.use_isa(isa):
        # ./dev says so where it saw a compiler: then the native module must be there.
        assert isa != "generic" or os.environ.get("LOGRAD_EXPECT_NATIVE") != "1", native.status().reason
        pytest.skip(f"no {isa} kernels here")
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        native.use_isa()


def plain(name: str) -> Kernel:
    """The kernel of an operator in plain PyTorch: its definition."""
    return operators[name].kernels["reference"]


def compiled(name: str) -> Kernel:
    """The kernel of an operator in native code."""
    return operators[name].kernels["cpu"]


keys = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62)).map(torch.tensor)
"""Any seed, and offsets that do not wrap."""


@st.composite
def any_bits(draw: st.DrawFn, most: int, rows: int = 1) -> Tensor:
    """Rows of any bit patterns of one type: all exponents are equally likely, and NaN come with payloads and signs."""
    dtype, columns = draw(st.sampled_from(DTYPES)), draw(st.integers(0, most))
    words, generator = _WORDS[dtype], torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    ends = torch.iinfo(words)
    patterns = torch.randint(ends.min, ends.max, (rows, columns), dtype=words, generator=generator)
    if draw(st.booleans()):  # without NaN and infinities, and within a few octaves
        patterns = torch.where((patterns.view(dtype).float().abs().log2().abs() < 6), patterns, 0)
    return patterns.view(dtype)


def words(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x.view(_WORDS[x.dtype]) if x.dtype in _WORDS else x


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.stride() == b.stride()
    different = (words(a) != words(b)).nonzero()
    if len(different):
        first = tuple(different[0].tolist())
        raise AssertionError(f"{len(different)} differ, first at {first}: {a[first]} and {b[first]}")


def assert_all_same_bits(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> None:
    assert len(a) == len(b)
    for first, second in zip(a, b, strict=True):
        assert_same_bits(first, second)


def awkward(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, spread: float = 3.0) -> Tensor:
    """Lognormal magnitudes of both signs, and among them zeros, subnormals, huge numbers, infinities and NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp(spread * torch.randn(shape, generator=generator))
    flat, draw = x.view(-1), torch.rand(x.numel(), generator=generator)
    finite = torch.finfo(dtype)
    specials = [0.0, -0.0, finite.smallest_normal / 4, -finite.smallest_normal, finite.max, -finite.max]
    for index, value in enumerate(specials):
        flat[(draw >= index * 0.01) & (draw < index * 0.01 + 0.004)] = value
    for index, value in enumerate([torch.nan, torch.inf, -torch.inf]):
        flat[(draw >= 0.5 + index * 0.01) & (draw < 0.5 + index * 0.01 + 0.001)] = value
    return x.to(dtype)


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers of a 4-dimensional tensor, laid out in different ways."""
    n, c, h, w = x.shape
    gaps = torch.empty(n, c, h, 2 * w, dtype=x.dtype)[..., ::2].copy_(x)
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "gaps": gaps,
        "expanded": x[:, :1].expand(n, c, h, w),
        "unaligned": torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(n, c, h, w).copy_(x),
    }
