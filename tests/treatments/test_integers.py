"""The treatment `Integers`: ranges in hindsight, folded factors, its JSON form, and the recipes intN-full."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bits import assert_same_bits
from torch import Tensor

from lograd import ops
from lograd.treatments import Integers, ProductPlan, Treatment, recipe, stages
from lograd.treatments.treatment import Setting


def setting(one: Treatment, memory: Tensor | None = None, **options: Any) -> Setting:
    memory = torch.zeros(one.memory_size, dtype=torch.float64) if memory is None else memory
    return Setting({}, torch.tensor([7, 3]), memory, (), **options)


HINDSIGHT = Integers(4, ranges="hindsight")


@pytest.mark.parametrize("encode", [False, True])
def test_each_range_is_that_of_the_tensors_before(encode: bool) -> None:
    """low_t = 0.9 low_(t-1) + 0.1 min x_(t-1), and the same of high; the first tensor has its own range."""
    generator = torch.Generator().manual_seed(0)
    memory = torch.zeros(3, dtype=torch.float64)
    low = high = 0.0
    for step in range(6):
        x = torch.randn(50, generator=generator) * (1 + step)
        ends = float(x.min()), float(x.max())
        if step == 0:
            low, high = ends
        expected = ops.quantize_integers(x, 4, range=torch.tensor([low, high]), counted=True)
        now = setting(HINDSIGHT, memory)
        if encode:
            coded, counts = HINDSIGHT.encode(x, now)
            result = coded.decode()
        else:
            result, counts = HINDSIGHT.apply(x, now)
        assert_same_bits(result, expected.result)
        assert torch.equal(counts, expected.counts)
        if step:
            low, high = 0.9 * low + (1 - 0.9) * ends[0], 0.9 * high + (1 - 0.9) * ends[1]
            assert int(counts[2]) > 0  # these tensors grow faster than their ranges
        assert memory.tolist() == [low, high, step + 1]
        assert HINDSIGHT.memory_words(memory.tolist()) == {"low": low, "high": high}


def test_zeros_and_wrong_numbers_leave_the_range_as_it_is() -> None:
    memory = torch.zeros(3, dtype=torch.float64)
    for bad in (torch.zeros(5), torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 2.0]), torch.zeros(0)):
        HINDSIGHT.apply(bad, setting(HINDSIGHT, memory))
        assert memory.tolist() == [0, 0, 0]
        assert HINDSIGHT.memory_words(memory.tolist()) == {}
    HINDSIGHT.apply(torch.tensor([0.5, 2.0]), setting(HINDSIGHT, memory))
    assert memory.tolist() == [0.5, 2.0, 1]
    HINDSIGHT.apply(torch.tensor([math.nan, 9.0]), setting(HINDSIGHT, memory))
    assert memory.tolist() == [0.5, 2.0, 1]


def test_ranges_behind_a_relu_are_unsigned() -> None:
    memory = torch.zeros(3, dtype=torch.float64)
    for _ in range(3):
        coded = HINDSIGHT.encode(torch.randn(100).relu(), setting(HINDSIGHT, memory)).coded
        assert float(coded.zero) == 0
        assert coded.format == "uint4"


def test_the_range_of_gradients_follows_the_loss_scale() -> None:
    memory = torch.tensor([-1.0, 2.0, 5.0], dtype=torch.float64)
    assert HINDSIGHT.rescaled(memory, 8.0).tolist() == [-8.0, 16.0, 5.0]
    assert Integers(4).rescaled(torch.zeros(0, dtype=torch.float64), 8.0).numel() == 0


def test_a_sentence_hands_factors_on() -> None:
    """Only the treatment that rounds to levels reads them."""
    sentence = (*recipe("prune85").input_gradient.gradient, Integers(8, rounding="stochastic"))
    factors = torch.tensor([0.5, 1.0, 4.0])
    named: list[dict[str, Tensor]] = [{"threshold": torch.tensor(0.1)}, {}]
    settings = stages(sentence, named, torch.tensor([1, 2]), torch.zeros(0, dtype=torch.float64), (), factors, 2)
    assert all(one.fold is factors and one.fold_dim == 2 for one in settings)
    coded = sentence[1].encode(torch.randn(4, 5, 3), settings[1]).coded
    assert coded.transform[0].factors is factors
    assert coded.transform[0].dim == 2


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_folded_and_not_decode_alike_up_to_steps(rounding: Any) -> None:
    one = Integers(8, rounding=rounding)
    x, factors = torch.randn(20, 3), torch.tensor([0.25, 1.0, 2.0])
    plain, folded = one.encode(x, setting(one)).coded, one.encode(x, setting(one, fold=factors)).coded
    steps = (1 if rounding == "stochastic" else 0.5) * 1.001
    assert bool(((plain.decode() - x).abs() <= steps / plain.scale).all())
    assert bool(((folded.decode() - x).abs() <= steps / folded.scale / factors).all())
    assert_same_bits(one.apply(x, setting(one, fold=factors)).result, folded.decode())


@pytest.mark.parametrize(
    "one",
    [
        HINDSIGHT,
        Integers(6, "channel", symmetric=True),
        Integers(8, rounding="stochastic"),
        Integers(4, ranges="hindsight", power_of_two=True),
    ],
    ids=str,
)
def test_plain_tensors_are_those_of_the_coded_tensor(one: Integers) -> None:
    memories = [torch.zeros(one.memory_size, dtype=torch.float64) for _ in range(2)]
    for step in range(3):
        x, factors = (
            torch.randn(20, 3) * (1 + step),
            None if one.scales == "channel" else torch.tensor([0.25, 1.0, 2.0]),
        )
        coded, counts = one.encode(x, setting(one, memories[0], fold=factors))
        plain = one.level_codes(x, setting(one, memories[1], fold=factors))
        assert coded.zero is not None
        for a, b in zip(
            (coded.codes, coded.scale, coded.zero, counts, memories[0]),
            (plain.codes, *plain.parameters, plain.counts, memories[1]),
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_recipes_code_the_gradient_for_each_product_and_other_operands_once(bits: int) -> None:
    found = recipe(f"int{bits}-full")
    activations, weights = (Integers(bits, ranges="hindsight"),), (Integers(bits, "channel", symmetric=True),)
    gradient = (Integers(bits, symmetric=bits == 8, rounding="stochastic"),)
    assert found.output == ProductPlan(activations=activations, weights=weights)
    assert found.input_gradient == ProductPlan(gradient, weights=weights)
    by_output = (Integers(bits, "column", symmetric=True, rounding="stochastic"),)
    assert found.weight_gradient == ProductPlan(by_output, activations=activations)
