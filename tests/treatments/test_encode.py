"""Encoded tensors: decode() of `encode` is `apply`, bit for bit, for every recipe that quantizes, type and layout."""

from __future__ import annotations

import math

import pytest
import torch
from bits import DTYPES, assert_same_bits, awkward, layouts, words
from torch import Tensor
from torch.utils._pytree import tree_map

from lograd.errors import InvalidValue
from lograd.laws import Empirical
from lograd.ops.coded import CodedTensor
from lograd.treatments import Statistics, Treatment, coder, recipe
from lograd.treatments.recipes import ALL_RECIPES
from lograd.treatments.treatment import Setting

EXTRA = (
    "fp4-luq-nearest", "int4-psq-nearest", "int4-interval-nearest", "mxfp4-nearest", "mxfp6-e2m3", "mxfp8-e5m2", "fp8",
    "mxfp4-rht", "nvfp4-ht", "int5-bhq-rht", "int4-interval-rht", "fp4-luq-rht", "int2-psq", "int8-bhq",
)  # fmt: skip


def treatments() -> dict[str, Treatment]:
    """Every treatment of every recipe, once, by its words."""
    names = [*(entry.example for entry in ALL_RECIPES), *EXTRA]
    return {str(one): one for name in names for part in recipe(name).sentences() for one in part}


ALL = treatments()
ENCODED = [words for words, one in ALL.items() if one.can_encode]


def setting(one: Treatment, g: Tensor, contracted: tuple[int, ...] = (1,)) -> Setting:
    finite = g[g.isfinite() & (g != 0)].float()
    numbers = one.numbers(Statistics(Empirical.fit(finite))) if one.number_names else {}
    tensors = {name: torch.tensor(numbers[name], dtype=torch.float32) for name in one.number_names}
    memory = torch.zeros(one.memory_size, dtype=torch.float64)
    return Setting(tensors, torch.tensor([7, 3]), memory, contracted)


def without_signs_of_zero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, x)


def same(coded: CodedTensor, expected: Tensor) -> None:
    """Bits, but for the payload of NaN and for what the format has no code for: -0.0 in integers and "fnuz" formats."""
    found = coded.decode()
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found.isnan(), expected.isnan())
    if (coded.zero is None and coded.format.startswith("int")) or "fnuz" in coded.format:
        found, expected = without_signs_of_zero(found), without_signs_of_zero(expected)
    known = ~expected.isnan()
    assert torch.equal(words(found)[known], words(expected)[known])


def finite(dtype: torch.dtype) -> Tensor:
    """Numbers of many sizes, with zeros of both signs and subnormals, without NaN and infinities."""
    return awkward((4, 6, 5, 9), dtype, seed=2, spread=1.5).nan_to_num(0.25, 3.0, -3.0).clamp(-1e4, 1e4)


def test_every_quantizer_can_be_encoded() -> None:
    """All others are there to make zeros, or turn overflow into infinity."""
    for one in ALL.values():
        quantizes = not one.makes_zeros
        overflows = "overflows" in str(one)
        assert one.can_encode == (quantizes and not overflows), one
        assert (coder((one,)) is one) == one.can_encode


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ENCODED)
def test_decoded_is_applied(name: str, dtype: torch.dtype) -> None:
    one = ALL[name]
    for g in layouts(finite(dtype)).values():
        for contracted in ((1,), (0, 2, 3)):
            before, after = setting(one, g, contracted), setting(one, g, contracted)
            applied, (coded, counts) = one.apply(g, before), one.encode(g, after)
            same(coded, applied.result)
            assert torch.equal(before.memory, after.memory)
            assert counts.tolist()[1:3] == applied.counts.tolist()[1:3]
            if coded.block_scales is None:
                assert counts[0] == applied.counts[0]


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("shape", [(), (1,), (17,), (3, 0), (0, 4), (5, 33)], ids=str)
def test_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    one = ALL[name]
    g = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    numbers = setting(one, torch.ones(3, 4), ()).numbers
    before, after = (setting(one, torch.ones(3, 4), ())._replace(numbers=numbers) for _ in range(2))
    same(one.encode(g, after).coded, one.apply(g, before).result)


@pytest.mark.parametrize("name", ENCODED)
def test_codes_have_as_many_bits_as_the_treatment_says(name: str) -> None:
    one, g = ALL[name], finite(torch.float32)
    coded = one.encode(g, setting(one, g)).coded
    assert coded.codes.dtype == torch.uint8
    assert one.element_bits is not None
    bits = math.floor(one.element_bits)  # a block's scale is a fraction of a bit
    assert int(coded.codes.max()) < 2**bits
    assert not any(part.is_floating_point() and part.numel() >= g.numel() for part in tensors_of(coded))
    if bits <= 4:
        packed = coded.in_nibbles()
        assert packed.codes.numel() <= (coded.codes.numel() + coded.codes.shape[0] * 40) // 2
        assert_same_bits(packed.decode(), coded.decode())
        assert packed.nbytes < coded.nbytes
    else:
        with pytest.raises(InvalidValue, match="at most 4 bits"):
            coded.in_nibbles()


def tensors_of(coded: CodedTensor) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(lambda part: found.append(part), coded)
    return found


# ---------------------------------------------------------------------------------------------------- NaN and infinity


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ENCODED)
def test_no_nan_is_lost(name: str, dtype: torch.dtype) -> None:
    """NaN has a code, or all that shares its scale is NaN; infinities saturate as in `apply`."""
    one, g = ALL[name], finite(dtype)
    g[1, 2, 3, 4], g[2, 0, 0, 0], g[3, 5, 4, 8] = math.nan, math.inf, -math.inf
    applied = one.apply(g, setting(one, g)).result
    decoded = one.encode(g, setting(one, g)).coded.decode()
    assert decoded.isnan()[applied.isnan()].all()
    known = ~decoded.isnan()
    found, expected = without_signs_of_zero(decoded[known]), without_signs_of_zero(applied[known])
    assert torch.equal(words(found), words(expected))


def test_infinities_alone_keep_their_signs_in_s2fp8() -> None:
    one, g = ALL["S2FP8"], torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    coded, counts = one.encode(g, setting(one, torch.ones(3)))
    same(coded, one.apply(g, setting(one, torch.ones(3))).result)
    assert counts.tolist() == [2, 1, 0]


# -------------------------------------------------------------------------------------------------------- a plain value


def test_a_scale_that_changes_later_changes_nothing() -> None:
    g = finite(torch.float32)
    for name in ("fp6", "int8", "hfp8"):
        one = recipe(name).input_gradient.gradient[0]
        at = setting(one, g)
        coded = one.encode(g, at).coded
        expected = coded.decode()
        for number in at.numbers.values():
            number.fill_(1e-3)
        assert_same_bits(coded.decode(), expected)
