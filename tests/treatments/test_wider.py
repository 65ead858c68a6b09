"""Sentences with more bits, which may stand in the place of others while a run goes on."""

import pytest
import torch

from lograd.treatments import (
    ALL_RECIPES,
    Integers,
    Interval,
    Luq,
    Prune,
    Quantize,
    StatQuant,
    apply,
    from_json,
    recipe,
    to_json,
    wider,
)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ((Integers(4, rounding="stochastic"),), (Integers(8, rounding="stochastic"),)),
        ((Integers(2, ranges="hindsight"),), (Integers(8, ranges="hindsight"),)),
        ((StatQuant(5, "bhq"),), (StatQuant(8, "bhq"),)),
        ((Interval(3, alpha=0.01),), None),  # it remembers how much to clip, which depends on the bits
        ((Quantize("int4", "2^3"),), None),
        ((Quantize("1-4-1:bias=100"),), None),
        ((Quantize("1-3-0"),), None),  # its numbers are levels, and those of 1-3-4 are not
        ((Quantize("1-4-1", "cosine"),), (Quantize("1-4-3", "cosine"),)),
        ((Quantize("int3"),), (Quantize("int8"),)),
        ((Quantize("1-5-2"),), None),
        ((Luq(4),), None),
        ((Prune(0.8), Quantize("1-5-0")), (Prune(0.8), Quantize("1-5-2"))),
        ((), None),
    ],
    ids=str,
)
def test_bits_are_filled_up_to_eight_where_the_same_products_take_them(narrow, wide):
    assert wider(narrow) == wide


@pytest.mark.parametrize("name", [entry.example for entry in ALL_RECIPES])
def test_for_every_recipe_more_bits_need_the_same_tensors_and_err_less(name):
    gradient = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).mul(1.5).exp()
    gradient /= gradient.max()  # which fp4-dynamic, whose scale is 1, needs to stay finite
    gradient *= torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).sign()
    treated = recipe(name)
    for product in (treated.input_gradient, treated.weight_gradient):
        narrow = product.gradient
        wide = wider(narrow)
        if wide is None:
            continue
        assert from_json(to_json(wide)) == wide
        assert wider(wide) is None
        assert [one.element_bits for one in wide if one.element_bits is not None] == [8]
        assert sum(one.memory_size for one in wide) == sum(one.memory_size for one in narrow)
        errors = [float((apply(one, gradient).result - gradient).norm()) for one in (narrow, wide)]
        assert errors[1] < errors[0]
