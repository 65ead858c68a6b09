"""How operators are reached (at once, by PyTorch's dispatcher, compiled), and sizes that small tests do not see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bits import MACHINES, assert_same_bits, machine
from rows import METHODS
from torch import Tensor
from torch._subclasses import FakeTensorMode

from lograd import FloatFormat, IntFormat, native, ops
from lograd.formats import CATALOGUE
from lograd.ops import elementwise as reference
from lograd.ops.elementwise import grid_of
from lograd.ops.registry import call, operators

E4M3, INT8 = FloatFormat(4, 3), IntFormat(8)


def gradient(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.randn(count, generator=generator).mul(2).exp()


# ------------------------------------------------------------------------------------------------------------- the call


CALLS = {
    "stochastic_prune": lambda x: ops.stochastic_prune(x, 0.7, 3, 5),
    "quantize": lambda x: ops.quantize(x, E4M3, 0.5, "stochastic", 3, 5),
    "log_histogram": lambda x: ops.log_histogram(x).table,
    "kth_magnitude": lambda x: ops.kth_magnitude(x, 10),
    "quantize_per_sample": lambda x: ops.quantize_per_sample(x.view(4, -1), 4, seed=1),
    "quantize_per_tensor": lambda x: ops.quantize_per_tensor(x, 4, seed=1),
    "quantize_interval": lambda x: ops.quantize_interval(x, 4, 0.5, seed=1).result,
    "quantize_block_householder": lambda x: ops.quantize_block_householder(x.view(4, -1), 4, seed=1),
    "quantize_blocks": lambda x: ops.quantize_blocks(x, CATALOGUE["mxfp4"]),
    "quantize_codes": lambda x: ops.quantize_codes(x, E4M3),
    "hadamard": lambda x: ops.hadamard(x, 32, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_short_way_and_the_dispatcher_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gradient(256)
    short = CALLS[name](x)
    monkeypatch.setitem(operators[name].kernels, "cpu", _refuse)
    if native.status().available:
        with pytest.raises(AssertionError, match="the short way"):
            CALLS[name](x)
    monkeypatch.delitem(operators[name].kernels, "cpu")
    assert torch.equal(CALLS[name](x), short)


def _refuse(*arguments: object) -> None:
    raise AssertionError("the short way was taken")


@pytest.mark.skipif(not native.status().available, reason="plain PyTorch has one way only")
def test_the_dispatcher_is_used_where_it_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x, threshold = gradient(64), torch.tensor(0.5)
    monkeypatch.setitem(operators["threshold_prune"].kernels, "cpu", _refuse)

    def prune(y: Tensor) -> Tensor:
        result: Tensor = call("threshold_prune", y, threshold, False)[0]
        return result

    with FakeTensorMode() as mode:
        assert call("threshold_prune", mode.from_tensor(x), mode.from_tensor(threshold), False)[0].shape == x.shape
    with torch.profiler.profile() as profile:
        prune(x)
    assert "lograd::threshold_prune" in {event.key for event in profile.key_averages()}
    with torch.inference_mode():
        assert torch.equal(prune(torch.randn(0)), torch.empty(0))


E2M1, MXFP4, NVFP4 = CATALOGUE["e2m1"], CATALOGUE["mxfp4"], CATALOGUE["nvfp4"]


def _of_elements(x: Tensor, seed: Tensor) -> list[Tensor]:
    codes = ops.quantize_codes(x, E2M1, 2.0, "stochastic", seed, 5)
    back = ops.dequantize_codes(ops.unpack_nibbles(ops.pack_nibbles(codes), x.shape[-1]), E2M1, 2.0)
    threshold = ops.kth_magnitude(x, sparsity=0.8)
    return [back, ops.threshold_prune(x, threshold), ops.log_histogram(x, 0.5).table, *ops.luq(x, 4, seed)]


def _of_rows(x: Tensor, seed: Tensor) -> list[Tensor]:
    found = [quantize(x, 4, "stochastic", seed) for quantize, _ in METHODS.values()]
    found += [pack(x, 5, "stochastic", seed).decode() for _, pack in METHODS.values()]
    clipped = ops.quantize_interval(x, 4, x.abs().mean().clamp(max=1.0), "stochastic", seed)
    return [*found, clipped.result, clipped.share]


def _of_blocks(x: Tensor, seed: Tensor) -> list[Tensor]:
    turned = ops.hadamard(x, 32, seed)
    coded = ops.quantize_block_codes(x, NVFP4, "stochastic", seed=seed, tensor_scale=ops.tensor_scale_of(x, NVFP4))
    rounded = ops.quantize_blocks(x, MXFP4, "stochastic", "unbiased", seed)
    return [turned, ops.hadamard_inverse(turned, 32, seed), rounded, coded.decode(), coded.block_scales]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("function", [_of_elements, _of_rows, _of_blocks])
def test_compiled_without_a_break_the_bits_are_the_same(function: Callable[[Tensor, Tensor], list[Tensor]]) -> None:
    compiled = torch.compile(function, fullgraph=True)
    for seed in (1, 2):
        x = gradient(6 * 4 * 5 * 96, seed).view(6, 4, 5, 96).to(memory_format=torch.channels_last)
        for one, other in zip(compiled(x, torch.tensor(seed)), function(x, torch.tensor(seed)), strict=True):
            assert_same_bits(one, other)


# ---------------------------------------------------------------------------------------------------------------- sizes


@pytest.fixture(scope="module")
def large() -> list[tuple[Callable[..., Tensor], Tensor]]:
    """Operators with what plain PyTorch gives."""
    x, key = gradient((1 << 20) + 37), torch.tensor([11, 5])
    x[1000], x[70_000] = torch.nan, -torch.inf
    one = torch.tensor(1.0)
    cases: list[tuple[Callable[..., Tensor], Tensor]] = [
        (lambda: ops.stochastic_prune(x, 1.0, 11, 5), reference._stochastic_prune(x, one, key)[0]),
        (lambda: ops.dither(x, 1.0, 11, 5), reference._dither(x, one, key)[0]),
    ]
    for format in (E4M3, INT8):
        plain = reference.round_to_grid(x, one, grid_of(format), True, key)[0]
        cases.append((lambda f=format: ops.quantize(x, f, 1.0, "stochastic", 11, 5), plain))
    return cases


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_large_tensors_written_past_the_cache(
    large: list[tuple[Callable[..., Tensor], Tensor]], isa: str, threads: int
) -> None:
    """From 4 MB on results are streamed to memory, and ties, 1 in 65536, are mended there."""
    with machine(isa, threads):
        for operator, plain in large:
            assert_same_bits(operator(), plain)


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_the_counter_may_overflow_its_lower_word(isa: str, threads: int) -> None:
    """Block 2^32 of the random numbers begins at element 2^35."""
    x = gradient(1000)
    for start in (2**35 - 500, 2**35 - 8, 2**35 - 133, 2**35 * 7 - 64):
        plain = reference._stochastic_prune(x, torch.tensor(1.0), torch.tensor([3, start]))[0]
        with machine(isa, threads):
            assert_same_bits(ops.stochastic_prune(x, 1.0, 3, start), plain)


@pytest.mark.slow
@pytest.mark.skipif(not native.status().available, reason="plain PyTorch needs 100 GB for this")
def test_more_than_2_to_the_31_elements() -> None:
    """A position's random numbers do not depend on the size, so the end can be checked by itself."""
    count, last = 2**31 + 1003, 1003
    x = torch.zeros(count, dtype=torch.bfloat16)
    end = x[-last:]
    end.copy_(gradient(last))
    start = count - last
    pruned = ops.stochastic_prune(end.clone(), 1.0, 4, start)
    rounded = ops.quantize(pruned, E4M3, 1.0, "stochastic", 5, start)
    histogram = ops.log_histogram(x)
    assert histogram.zeros == start + int((end == 0).sum())
    assert ops.kth_magnitude(x, 7) == ops.kth_magnitude(end, 7)
    x = ops.stochastic_prune(x, 1.0, 4)
    assert_same_bits(x[-last:], pruned)
    x = ops.quantize(x, E4M3, 1.0, "stochastic", 5)
    assert_same_bits(x[-last:], rounded)
    assert not x[:-last].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "format", [FloatFormat(4, 3), FloatFormat(5, 2), FloatFormat(3, 2), FloatFormat(2, 1)], ids=str
)
def test_qpytorch_differs_only_in_ties(format: FloatFormat) -> None:
    """QPyTorch rounds ties away from zero, we to the even code; among normal numbers nothing else differs."""
    qtorch = pytest.importorskip("qtorch.quant", reason="pip install lograd[bench] installs QPyTorch")
    steps = torch.arange(0, 2**12, dtype=torch.float32) / 2**12
    normal = torch.cat([(1 + steps) * 2.0**e for e in range(format.emin, format.emax)])
    x = torch.cat([normal, -normal])
    theirs = qtorch.float_quantize(x, exp=format.exponent, man=format.mantissa, rounding="nearest")
    ours = ops.quantize(x, format)
    differs = theirs != ours
    scaled = torch.ldexp(x.abs(), format.mantissa - (torch.frexp(x).exponent - 1))
    tie = scaled - scaled.floor() == 0.5
    assert differs.any()
    assert not (differs & ~tie).any()
    assert (theirs[differs].abs() > ours[differs].abs()).all()
