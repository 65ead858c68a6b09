"""Weights as codes: exact to decode, rounded without bias, never clipped unseen."""

from __future__ import annotations

import math

import pytest
import torch
from everyday import daily
from hypothesis import given, settings
from hypothesis import strategies as st

from lograd import IntFormat, InvalidType, InvalidValue, parse_format
from lograd.weights import LowPrecisionTensor
from lograd.weights.coding import check_weight_format, fresh_spacing
from lograd.weights.tensor import GROWN, LOST

FORMATS = ("int8", "int8:symmetric", "int4", "e4m3fn", "e4m3", "e5m2", "1-3-2", "bfloat16")


def weights(seed: int = 0, size: float = 1.0) -> torch.Tensor:
    """Rows of very different magnitude."""
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(6, 40, generator=generator) * torch.logspace(-4, 1, 6)[:, None]


def low(values: torch.Tensor, format: str, seed: int) -> LowPrecisionTensor:
    return LowPrecisionTensor.of(values, check_weight_format(format), seed)


@pytest.mark.parametrize("format", FORMATS)
def test_decoded_numbers_keep_their_codes(format: str) -> None:
    stored = low(weights(), format, seed=1)
    before = stored.codes.clone()
    assert torch.equal(low(stored.decode(), format, seed=2).decode(), stored.decode())
    for _ in range(20):
        stored.write_(stored.decode())
    assert torch.equal(stored.codes, before)
    assert stored.rounded == 20 * 240
    assert not stored.ledger[GROWN:].any()


@settings(max_examples=60)
@given(
    largest=st.floats(1e-25, 1e25),
    format=st.sampled_from([one for one in FORMATS if one != "bfloat16"]),
)
def test_fresh_spacings_are_the_narrowest_that_hold_the_largest(largest: float, format: str) -> None:
    of_weights = check_weight_format(format)
    values = torch.tensor([[largest, -largest / 3]])
    spacing = fresh_spacing(values, torch.ones(1, 1), of_weights)
    reach = float(spacing) * of_weights.max
    assert float(values.max()) <= reach < float(values.max()) * (1.001 if "int" in format else 2.0)
    assert float(fresh_spacing(torch.tensor([[reach]]), torch.ones(1, 1), of_weights)) == float(spacing)
    codes = torch.arange(0, 127) if "int8" in format else torch.arange(4)
    exact = codes.double() * spacing.double()
    assert torch.equal(exact.float().double(), exact)


@pytest.mark.parametrize("format", daily(FORMATS, ("int8", "e4m3fn")))
def test_the_mean_of_what_is_stored_is_the_update(format: str) -> None:
    draws, start = 700, weights(3)
    wanted = start + 0.01 * start.abs().amax(1, keepdim=True) * torch.sin(torch.arange(40.0))
    stored = low(start, format, seed=7)
    found = torch.empty(draws, 6, 40, dtype=torch.float64)
    for draw in found:
        stored.write_(wanted.clone())
        draw.copy_(stored.decode())
    below, above = found.amin(0), found.amax(0)
    assert not bool(((found != below) & (found != above)).any())  # nothing but the two neighbours
    share = (wanted.double() - below) / (above - below)  # the chance of the upper one
    variance = share * (1 - share)
    often = draws * variance > 5  # where both were seen, and the mean is near to a normal number
    sigma = (above - below) * (variance / draws).sqrt()
    z = ((found.mean(0) - wanted.double()) / sigma)[often]
    assert len(z) > 150
    assert float(z.abs().max()) < 4
    assert abs(float(z.mean())) < 4 / len(z) ** 0.5
    assert 0.8 < float(z.std()) < 1.2


def test_random_numbers_belong_to_seed_write_and_element() -> None:
    values = weights(1)
    one, same, other = (low(weights(), "int8", seed) for seed in (5, 5, 6))
    for each in (one, same, other):
        each.write_(values.clone())
    assert torch.equal(one.codes, same.codes)
    assert not torch.equal(one.codes, other.codes)
    before = one.codes.clone()
    one.write_(values.clone())
    assert not torch.equal(one.codes, before)


def test_threads_change_no_bit() -> None:
    values = torch.randn(64, 5000, generator=torch.Generator().manual_seed(0))
    found, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        for format in ("int8", "e4m3fn", "bfloat16"):
            stored = low(values, format, seed=3)
            stored.write_(values * 1.01)
            found.append(stored.decode())
    torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(found[:3], found[3:], strict=True))


@pytest.mark.parametrize("format", [one for one in FORMATS if one != "bfloat16"])
def test_rows_grow_before_a_weight_is_clipped_and_shrink_when_it_has_become_small(format: str) -> None:
    stored = low(weights(), format, seed=1)
    spacing = stored.spacing.clone()
    larger = stored.decode()
    larger[2] *= 3.0
    stored.write_(larger.clone())
    assert stored.ledger[GROWN:].tolist() == [1, 0, 0]
    assert float(stored.decode()[2].abs().max()) >= float(larger[2].abs().max()) * 0.8
    assert torch.equal(stored.spacing[[0, 1, 3, 4, 5]], spacing[[0, 1, 3, 4, 5]])
    smaller = larger.clone()
    smaller[4] *= 0.01
    stored.write_(smaller)
    assert stored.ledger[GROWN:].tolist() == [1, 1, 0]
    assert float(stored.spacing[4]) < float(spacing[4]) / 8


def test_bfloat16_is_one_of_the_two_neighbours() -> None:
    values = weights(5)
    stored = low(values, "bfloat16", seed=1)
    assert torch.equal(stored.decode(), values.bfloat16().float())
    stored.write_(values.clone())
    down = (values.view(torch.int32) & -65536).view(torch.float32)
    up = ((values.view(torch.int32) & -65536) + 65536).view(torch.float32)
    assert bool(((stored.decode() == down) | (stored.decode() == up)).all())
    assert stored.bytes == 2 * values.numel()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_nan_or_infinity_is_never_a_number_and_is_counted(format: str, bad: float) -> None:
    stored = low(weights(), format, seed=1)
    before, broken = stored.decode(), weights()
    broken[1, 3] = bad
    stored.write_(broken.clone())
    now = stored.decode()
    if format == "bfloat16":
        assert torch.equal(now[1, 3], torch.tensor(bad)) or (math.isnan(bad) and math.isnan(now[1, 3]))
    else:
        assert bool(now[1].isnan().all())
    assert bool(now[[0, 2, 3, 4, 5]].isfinite().all())
    assert int(stored.ledger[LOST]) == 1
    stored.write_(before.clone())  # numbers again, with a spacing of their own
    assert bool(stored.decode().isfinite().all())


@pytest.mark.parametrize(("format", "kind", "said"), [
    (8, InvalidType, "format must be int2 to int8, a float format of at most 8 bits such as 'e4m3fn'"),
    (parse_format("mxfp4"), InvalidType, "format must be int2 to int8"),
    ("float16", InvalidValue, "or 'bfloat16'; got '1-5-10:ieee'."),
    (IntFormat(8, signed=False), InvalidValue, "format must have a sign, as weights have; got uint8."),
    ("e8m0", InvalidValue, "with a sign, a zero and subnormals"),
    ("int9", InvalidValue, "got 'int9'."),
])  # fmt: skip
def test_other_formats_are_refused_in_a_sentence(format: object, kind: type, said: str) -> None:
    with pytest.raises(kind) as caught:
        check_weight_format(format)  # type: ignore[arg-type]
    assert said in str(caught.value)
