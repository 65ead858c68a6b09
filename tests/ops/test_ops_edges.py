"""Operators at the edges: PyTorch's defaults and modes, memory that overlaps, numbers at the ends of a type."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from bands import assert_in_band
from bits import MACHINES, assert_same_bits, machine
from torch import Tensor
from torch._subclasses import FakeTensorMode

from lograd import FloatFormat, InvalidType, InvalidValue, ops
from lograd.formats import CATALOGUE
from lograd.ops import elementwise as reference
from lograd.ops.coded import Householder
from lograd.ops.elementwise import grid_of

E4M3 = FloatFormat(4, 3)


def gradient(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    return x * torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").exp()


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "stochastic_prune": lambda x: ops.stochastic_prune(x, 0.7, 3),
    "dither": lambda x: ops.dither(x, 0.3, 3),
    "quantize": lambda x: ops.quantize(x, E4M3, 0.7, "stochastic", 3),
    "luq": lambda x: ops.luq(x, 4, 3).result,
    "per tensor": lambda x: ops.quantize_per_tensor(x, 4, seed=3),
    "per sample": lambda x: ops.quantize_per_sample(x, 4, seed=3),
    "packed per sample": lambda x: ops.pack_per_sample(x, 4, seed=3).decode(),
    "block Householder": lambda x: ops.quantize_block_householder(x, 4, seed=3),
    "interval": lambda x: ops.quantize_interval(x, 4, 0.6, seed=3).result,
    "blocks": lambda x: ops.quantize_blocks(x, CATALOGUE["mxfp4"], "stochastic", "unbiased", 3),
    "nvfp4": lambda x: ops.quantize_blocks(
        x, CATALOGUE["nvfp4"], tensor_scale=ops.tensor_scale_of(x, CATALOGUE["nvfp4"])
    ),
    "codes": lambda x: ops.dequantize_codes(ops.quantize_codes(x, E4M3), E4M3),
    "hadamard": lambda x: ops.hadamard(x, 32, 3),
    "kth": lambda x: ops.kth_magnitude(x, sparsity=0.0) + ops.kth_magnitude(x, 3),
    "histogram": lambda x: ops.log_histogram(x).counts,
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
def test_the_default_dtype_and_device_change_nothing(name: str, default: torch.dtype) -> None:
    x = gradient(8, 64)
    expected = OPERATORS[name](x)
    with default_dtype(default), torch.device("meta"):
        found = OPERATORS[name](x)
    with default_dtype(default):
        again = OPERATORS[name](x)
    assert found.dtype == again.dtype == expected.dtype
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_fake_tensors_leave_nothing_behind() -> None:
    x = gradient(64)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert ops.threshold_prune(fake, 0.123).shape == x.shape
        assert ops.dither(fake, 0.321, 9, 8).shape == x.shape
    assert torch.equal(ops.threshold_prune(x, 0.123), torch.where(x.abs() > 0.123, x, 0.0))
    ops.dither(x, 0.321, 9, 8)


def test_importing_under_another_default_device() -> None:
    """In a process of its own: what is plain is decided at import."""
    code = (
        "import torch; torch.set_default_device('meta'); from lograd import ops; torch.set_default_device(None); "
        "print(ops.threshold_prune(torch.ones(3, device='meta'), 0.5).device, ops.threshold_prune(torch.ones(3), 0.5))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "meta tensor([1., 1., 1.])\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tracers_transforms_and_subclasses_see_the_operators() -> None:
    x, threshold = gradient(64), torch.tensor(0.5)
    expected = ops.threshold_prune(x, threshold)
    traced = torch.jit.trace(lambda y: ops.threshold_prune(y, threshold), (x,), check_trace=False)
    assert torch.equal(traced(x), expected)

    class Named(Tensor):
        seen: ClassVar[list[str]] = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            cls.seen.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    ops.threshold_prune(x.as_subclass(Named), threshold)
    assert any("threshold_prune" in name for name in Named.seen)


# ------------------------------------------------------------------------------------------------------------- autograd


def test_no_gradient_is_recorded() -> None:
    x = gradient(8, 64).requires_grad_()
    for name, operator in OPERATORS.items():
        assert not operator(x).requires_grad, name


# --------------------------------------------------------------------------------------------------------------- memory


def test_householder_groups_are_checked_before_they_become_addresses() -> None:
    coded = ops.pack_block_householder(gradient(6, 32), 4, seed=1)
    (step,) = coded.transform
    outside = step.groups.clone()
    outside[0, 0] = 1000
    for groups, stretch, message in (
        (step.groups.int(), step.stretch, "groups of lograd::dequantize_block_householder must be int64"),
        (outside, step.stretch, "groups must list every row once"),
        (step.groups[:, :3], step.stretch, "groups must be int64 of shape"),
        (step.groups, step.stretch[:2], "stretch must be float32 of shape"),
    ):
        with pytest.raises((InvalidType, InvalidValue), match=message):
            replace(coded, transform=(Householder(groups, stretch),)).decode()


# -------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_offsets_wrap_at_64_bits(isa: str, threads: int) -> None:
    x = gradient(1000)
    for offset in (2**64 - 20, 2**64 - 500, -1, -133, 2**63 - 100, 2**64 - 8):
        wrapped = (offset + 2**63) % 2**64 - 2**63
        plain = reference._stochastic_prune(x, torch.tensor(1.0), torch.tensor([3, wrapped]))[0]
        with machine(isa, threads):
            assert_same_bits(ops.stochastic_prune(x, 1.0, 3, offset), plain)


@pytest.mark.parametrize(("isa", "threads"), MACHINES[:3])
@pytest.mark.parametrize("scale", [math.nan, 0.0, math.inf, -1.0, 1e-45, 3e38])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_scale_tensors_that_make_no_sense_give_what_the_definition_gives(
    isa: str, threads: int, scale: float, rounding: str
) -> None:
    x = torch.tensor([1.0, 2.0, math.inf, 0.0, -0.0, -3.0, math.nan, 1e-30] * 5)
    factor, key = torch.tensor(scale), torch.tensor([3, 0])
    plain = reference.round_to_grid(x, factor, grid_of(E4M3), rounding == "stochastic", key)[0]
    with machine(isa, threads):
        found = ops.quantize(x, E4M3, factor, rounding, 3)
    assert torch.equal(found.isnan(), plain.isnan())
    assert_same_bits(found.nan_to_num(7.0), plain.nan_to_num(7.0))


@pytest.mark.parametrize("number", [1e-60, 1e300, math.nan, math.inf, -1.0, 0.0])
def test_numbers_are_checked_as_float32(number: float) -> None:
    with pytest.raises(InvalidValue, match="scale must be finite and positive in float32; got"):
        ops.quantize(torch.ones(3), E4M3, number)
    assert torch.equal(ops.quantize(torch.ones(3), E4M3, np.float32(0.5)), torch.ones(3))


@pytest.mark.parametrize("seed", [0.7, "1", True, torch.tensor(0.5), torch.tensor([1, 2, 3])])
def test_seeds_are_whole_numbers(seed: object) -> None:
    if seed is True:
        pytest.skip("a bool is an int")
    with pytest.raises((InvalidValue, InvalidType), match="seed must be a whole number or an integer tensor"):
        ops.dither(torch.ones(3), 0.5, seed)  # type: ignore[arg-type]
    assert torch.equal(ops.dither(torch.ones(9), 0.3, torch.tensor([5, 2])), ops.dither(torch.ones(9), 0.3, 5, 2))


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_finite_stays_finite_in_16_bits(isa: str, threads: int) -> None:
    x = torch.tensor([65504.0, -40000.0, 100.0, 60000.0] * 40, dtype=torch.float16)
    with machine(isa, threads):
        assert ops.quantize_per_tensor(x, 2, "nearest").isfinite().all()
        assert ops.quantize(x, E4M3, 2.0**-8).isfinite().all()
        assert ops.stochastic_prune(x, 70000.0, 3).isfinite().all()
        brain = torch.full((40,), 3.3e38, dtype=torch.bfloat16)
        assert ops.quantize_per_tensor(brain, 2, "nearest").isfinite().all()
        assert ops.threshold_prune(torch.tensor([math.inf], dtype=torch.float16), 1.0).isinf().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_pruning_is_unbiased_in_16_bits(dtype: torch.dtype) -> None:
    x = torch.full((4_000_000,), 0.09, dtype=dtype)
    draws = ops.stochastic_prune(x, 0.1, 3).double().numpy()
    assert_in_band(float(x[0]), draws)


def test_a_flushing_thread_gets_the_same_bits() -> None:
    x = gradient(1 << 17) * 1e-38
    before, threads = torch.get_num_threads(), (1, 2)
    expected = ops.quantize(x, E4M3, 1e38, "stochastic", 3)
    try:
        torch.set_flush_denormal(True)
        for count in threads:
            torch.set_num_threads(count)
            assert torch.equal(ops.quantize(x, E4M3, 1e38, "stochastic", 3), expected)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@pytest.mark.parametrize(("variable", "value"), [("LOGRAD_ISA", "avx51"), ("LOGRAD_NATIVE", "off")])
def test_a_setting_that_means_nothing_is_said(variable: str, value: str) -> None:
    code = f"import os; os.environ[{variable!r}] = {value!r}; import lograd.native"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{variable} must be" in done.stderr
