"""Packets of tensors: what is decoded has the bits of what was encoded, for every type, layout and method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bits import awkward, layouts
from hypothesis import given
from hypothesis import strategies as st
from packets import gradient, same

import lograd
from lograd import ops, wire
from lograd.errors import InvalidType, InvalidValue, LogradError

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
OPTIONS: list[dict[str, Any]] = [{}, {"entropy": True}, {"alpha": 0.5}]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_decoded_was_encoded(dtype: torch.dtype, option: dict[str, Any]) -> None:
    shapes = [(), (0,), (3, 0, 2), (1,), (7,), (4095,), (4096,), (4097,), (3, 4, 1000), (2, 1, 1, 3, 1)]
    for shape in shapes:
        x = awkward(shape, torch.float32).to(dtype)
        pruned = ops.stochastic_prune(x.float(), 4.0).to(dtype)
        for each in (x, pruned, torch.zeros_like(x)):
            packet = lograd.encode(each, **option)
            assert packet.dtype == torch.uint8
            assert same(lograd.decode(packet), each), shape
            assert packet.numel() <= wire.largest(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_comes_back(dtype: torch.dtype) -> None:
    x = awkward((2, 5, 3, 7), dtype if dtype != torch.float64 else torch.float32).to(dtype)
    for name, laid in layouts(x).items():
        found = lograd.decode(lograd.encode(laid))
        assert same(found, laid), name
        if name not in ("gaps", "expanded"):
            assert found.stride() == laid.stride(), name
    assert same(lograd.decode(lograd.encode(torch._neg_view(x))), torch._neg_view(x).clone())


@given(st.data())
def test_any_bits_come_back(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES[:3]))
    words = torch.int32 if dtype == torch.float32 else torch.int16
    ends = torch.iinfo(words)
    some = data.draw(st.lists(st.integers(ends.min, ends.max), min_size=1, max_size=6))
    zeros = data.draw(st.integers(0, 300))
    pick = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    pool = torch.tensor(some + [0] * zeros, dtype=words)
    x = pool[torch.randint(len(pool), (data.draw(st.integers(0, 9000)),), generator=pick)].view(dtype)
    option = data.draw(st.sampled_from(OPTIONS))
    assert same(lograd.decode(lograd.encode(x, **option)), x)


def test_numbers_that_packets_are_proud_of_keep_their_bits() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal
    payload = torch.tensor([0x7F800001, 0x7FFFFFFF, -0x400001], dtype=torch.int32).view(torch.float32)
    x = torch.zeros(5000)
    x[::700] = torch.tensor([-0.0, math.inf, -math.inf, tiny / 8, -tiny / 2, 3.4e38, -1.0, 1.0])
    x[1:4] = payload
    for option in OPTIONS:
        assert same(lograd.decode(lograd.encode(x, **option)), x)


def test_a_packet_is_as_long_as_what_it_says() -> None:
    nothing = lograd.encode(torch.zeros(1 << 20))
    assert nothing.numel() == 28 + 9 + 2 * 256
    dense = torch.randn(10_000, dtype=torch.float64)
    assert lograd.encode(dense).numel() == 28 + 9 + 80_000
    noise = torch.randint(-(2**31), 2**31 - 1, (10_000,), dtype=torch.int32).view(torch.float32)
    assert lograd.encode(noise).numel() == 28 + 9 + 40_000
    assert lograd.encode(gradient(1 << 16, 30.0), entropy=True).numel() < lograd.encode(gradient(1 << 16, 30.0)).numel()


def test_only_kept_values_are_rounded() -> None:
    x = gradient(20_000).clamp(-6e4, 6e4)
    for dtype in DTYPES[:3]:
        g = x.to(dtype)
        alpha = g[g != 0].abs().min()
        for values, mantissa in (("bfloat16", 7), ("float8", 2)):
            found = lograd.decode(lograd.encode(g, values=values))  # type: ignore[arg-type]
            stay = g.abs() <= alpha
            assert torch.equal(found[stay], g[stay])
            error = ((found.double() - g.double()) / g.double()).abs()[~stay]
            own = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}[dtype]
            assert error.max() == 0 if own <= mantissa else 0 < error.max() <= 2.0 ** (-mantissa - 1)
            assert same(lograd.decode(lograd.encode(found, values=values, alpha=alpha)), found)  # type: ignore[arg-type]


def test_rounding_keeps_what_is_finite_finite_and_nan_nan() -> None:
    x = torch.tensor([0.0, 1.0, 3.4028e38, -3.4028e38, math.inf, -math.inf, math.nan, -0.0, 1e-45])
    x = torch.cat([x, torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)])
    for values in ("bfloat16", "float8"):
        found = lograd.decode(lograd.encode(x, values=values, alpha=1.0))  # type: ignore[arg-type]
        assert torch.equal(found.isnan(), x.isnan())
        assert torch.equal(found.isinf(), x.isinf())
        assert torch.equal(found.signbit()[:9], x.signbit()[:9])
    largest = float(torch.finfo(torch.bfloat16).max)
    found = lograd.decode(lograd.encode(x[:3], values="bfloat16"))
    assert torch.equal(found, x[:3].bfloat16().float().clamp(max=largest))


def test_pruning_on_the_way_gives_the_same_bytes() -> None:
    x = awkward((3, 5, 11, 40), torch.float32)
    for dtype in DTYPES[:3]:
        for laid in layouts(x.to(dtype)).values():
            for option in ({}, {"entropy": True}, {"values": "bfloat16"}):
                pruned = ops.stochastic_prune(laid, 2.3, seed=5, offset=9)
                alpha = torch.tensor(2.3).to(dtype)
                found = wire.prune_and_encode(laid, 2.3, seed=5, offset=9, **option)
                assert torch.equal(found, lograd.encode(pruned, alpha=alpha, **option))
    assert same(lograd.decode(wire.prune_and_encode(x, 0.0)), ops.stochastic_prune(x, 0.0))


def test_a_gradient_is_not_recorded() -> None:
    x = torch.ones(3, requires_grad=True)
    assert not lograd.encode(x).requires_grad
    assert not lograd.decode(lograd.encode(x)).requires_grad


REFUSED: list[tuple[Any, type[LogradError], str]] = [
    (lambda: lograd.encode([1.0]), InvalidType, "x must be a tensor or a coded tensor; got an object of type list"),
    (lambda: lograd.encode(torch.arange(3)), InvalidType, "float32, bfloat16, float16 or float64; got int64"),
    (lambda: lograd.encode(torch.ones(3).to_sparse()), InvalidType, "a dense tensor"),
    (lambda: lograd.encode(torch.ones([1] * 40)), InvalidValue, "at most 32 dimensions"),
    (lambda: lograd.encode(torch.ones(3), values="float16"), InvalidValue, "Did you mean 'bfloat16'"),
    (lambda: lograd.encode(torch.ones(3), entropy=1), InvalidValue, "entropy must be true or false"),
    (lambda: lograd.encode(torch.ones(3), alpha=-1.0), InvalidValue, "alpha must be finite and zero or positive"),
    (lambda: lograd.encode(torch.ones(3).double(), values="bfloat16"), InvalidValue, "is stored as it is"),
    (lambda: lograd.encode(ops.pack_per_tensor(torch.ones(3), 4), entropy=True), InvalidValue, "packed as it is"),
    (lambda: lograd.decode(b"LGRD"), InvalidType, "packet must be a uint8 tensor"),
    (lambda: lograd.decode(torch.ones(3)), InvalidType, "packet must be a vector of uint8"),
    (lambda: lograd.decode(lograd.encode(torch.ones(3)), limit=-1), InvalidType, "limit must be a whole number"),
    (lambda: wire.prune_and_encode(torch.arange(3), 1.0), InvalidType, "x must be float32"),
    (lambda: wire.prune_and_encode(torch.ones(3), math.nan), InvalidValue, "threshold must be finite"),
]


@pytest.mark.parametrize(("ask", "kind", "words"), REFUSED)
def test_what_is_refused_gets_a_sentence(ask: Any, kind: type[LogradError], words: str) -> None:
    with pytest.raises(kind) as caught:
        ask()
    assert words in str(caught.value)
