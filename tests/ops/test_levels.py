"""Levels of formats: whole numbers times a power of two, against the format's own values; and what has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from operators import MX, NV

from lograd import FloatFormat, IntFormat, InvalidValue, ops, parse_format
from lograd.ops.codes import levels_of, reason_without_levels

INTEGERS = [str(IntFormat(bits, symmetric, signed)) for bits in range(2, 9) for symmetric, signed in
            ((False, True), (True, True), (False, False))]  # fmt: skip
FLOATS = ["1-3-0", "1-2-1", "1-2-0", "1-2-2", "1-2-3", "1-1-2", "0-3-0", "0-2-3"]


@pytest.mark.parametrize("format", [*INTEGERS, *FLOATS, "1-2-1:bias=5", "0-2-0:bias=-3"])
def test_every_code_has_the_level_of_its_value(format: str) -> None:
    levels, element = levels_of(format), parse_format(format)
    assert isinstance(element, FloatFormat | IntFormat)
    for code in range(2**element.bits):
        value = element.decode(code)
        if value == value:  # a symmetric integer leaves a code out
            assert (levels.table[code] - levels.zero) * levels.factor == value
    assert len(levels.table) == 256


def test_known_ones() -> None:
    assert (levels_of("int4").zero, levels_of("int4").factor) == (8, 1.0)
    assert (levels_of("uint8").zero, levels_of("uint8").identity) == (0, True)
    assert (levels_of("1-3-0").zero, levels_of("1-3-0").factor) == (64, 0.25)
    assert (levels_of("e2m1").zero, levels_of("e2m1").factor) == (12, 0.5)
    assert levels_of(MX) == levels_of(NV) == levels_of("1-2-1")


@pytest.mark.parametrize("shape", [(7, 5), (33, 64), (16, 3, 5, 7), (5, 130, 1, 1), (3, 8, 9), (0, 4)])
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf])
def test_the_largest_magnitude_of_each_column(shape: tuple[int, ...], bad: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x.view(-1)[: min(1, x.numel())] = bad
    for laid in (x, x.contiguous(memory_format=torch.channels_last)) if x.dim() == 4 else (x,):
        found = torch.ops.lograd.column_largest(laid, None)
        expected = np.abs(x.numpy()).max(tuple(dim for dim in range(x.dim()) if dim != 1), initial=0.0)
        np.testing.assert_array_equal(found.numpy(), expected)
    if x.dim() == 2:
        rows = torch.linspace(0.0, 2.0, len(x))
        with np.errstate(invalid="ignore"):
            expected = np.abs(x.numpy() * rows.numpy()[:, None]).max(0, initial=0.0)
        np.testing.assert_array_equal(torch.ops.lograd.column_largest(x, rows).numpy(), expected)


REFUSED = {
    "1-4-3": "the numbers of 1-4-3 span 491520 of its smallest steps; integer products take formats of at most 255.",
    "1-4-0": "the numbers of 1-4-0 span 32768 of its",
    "1-3-1": "the numbers of 1-3-1 span 384 of its",
    "e3m2": "the numbers of 1-3-2 span 896 of its",
    "1-2-1:fnuz": "1-2-1:fnuz has codes for NaN or infinity, so its codes are no whole numbers",
    "e8m0": "has no zero, so its codes are no whole numbers",
    "int9": "integer products take formats of at most 8 bits; got int9.",
    "ideal-2-1": "integer products take formats of at most 8 bits; got ideal-2-1.",
}


@pytest.mark.parametrize("format", REFUSED)
def test_what_has_no_levels_says_so(format: str) -> None:
    with pytest.raises(InvalidValue) as error:
        levels_of(format)
    assert REFUSED[format] in str(error.value)
    assert str(error.value).endswith(".")
    assert reason_without_levels(format) == str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", ["int4", "1-3-0", "e2m3"])
def test_levels_decode_as_the_codes_do(format: str, dtype: torch.dtype) -> None:
    x = torch.randn(7, 9).to(dtype)
    coded = ops.pack_codes(x, parse_format(format), 4.0)  # type: ignore[arg-type]
    levels = levels_of(format)
    codes = torch.ops.lograd.code_levels(coded.codes, format)
    found = torch.ops.lograd.dequantize_levels(
        codes, coded.scale / levels.factor, torch.tensor(float(levels.zero)), dtype
    )
    assert torch.equal(found, coded.decode())
