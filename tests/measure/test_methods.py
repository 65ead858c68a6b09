"""Methods by name: each is a plan of a layer with named backends."""

from __future__ import annotations

import pytest

from lograd.errors import InvalidType, InvalidValue
from lograd.measure.timing import DEFAULT_METHODS, check_methods, method, name_of
from lograd.plan import LayerPlan
from lograd.treatments import PRODUCTS, SYMBOLS, recipe

EXPECTED = {
    "dense": ("identity", {}, None, None),
    "int8": ("int8-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, 8, None),
    "int6": ("int6-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, 6, None),
    "int4": ("int4-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, 4, None),
    "int8-forward": ("int8wa", {"Y": "integer"}, 8, None),
    "prune80": ("prune80", {"dX": "sparse", "dW": "sparse"}, None, 0.8),
    "prune90": ("prune90", {"dX": "sparse", "dW": "sparse"}, None, 0.9),
    "prune95": ("prune95", {"dX": "sparse", "dW": "sparse"}, None, 0.95),
    "prune90-dW": ("identity/prune90", {"dW": "sparse"}, None, 0.9),
    "int8+prune90": ("int8wa+prune90", {"Y": "integer", "dX": "sparse", "dW": "sparse"}, 8, 0.9),
}
"""Recipe, backends that are not "auto", bits of the forward, sparsity."""


@pytest.mark.parametrize("name", DEFAULT_METHODS)
def test_a_method_is_a_recipe_with_named_backends(name):
    expected, backends, bits, sparsity = EXPECTED[name]
    found = method(name)
    assert found[0] == name
    assert (found.bits, found.sparsity) == (bits, sparsity)
    plain = LayerPlan.of(recipe(expected))
    for product in PRODUCTS:
        mine, theirs = getattr(found.plan, product), getattr(plain, product)
        assert (mine.gradient, mine.weights, mine.activations) == (theirs.gradient, theirs.weights, theirs.activations)
        assert mine.backend == backends.get(SYMBOLS[product], "auto")
    assert LayerPlan.from_dict(found.plan.to_dict()) == found.plan


def test_other_bits_and_sparsities_have_names_too():
    assert method("int5").bits == 5
    assert method("prune87.5").sparsity == 0.875
    assert check_methods(["prune85", "int5", "prune85"]) == ("dense", "prune85", "int5")
    assert check_methods(None) == DEFAULT_METHODS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["int9"], "'int9' is not a method; there are dense, intN.*Did you mean"),
        (["prune100"], "'prune100' is not a method"),
        (["int8 "], "'int8 ' is not a method"),
        (["prune\uff190"], "is not a method"),
    ],
)
def test_other_names_are_refused(given, words):
    with pytest.raises(InvalidValue, match=words):
        check_methods(given)


@pytest.mark.parametrize("given", ["int8", 3, [4]])
def test_what_is_no_list_of_names_is_refused(given):
    with pytest.raises(InvalidType):
        check_methods(given)


@pytest.mark.parametrize("name", [*DEFAULT_METHODS, "int3", "prune83", "int5+prune97.5"])
def test_a_plan_is_known_by_the_name_of_its_method(name):
    assert name_of(method(name).plan) == name


def test_a_plan_that_is_no_method_is_told_in_words():
    assert name_of(LayerPlan.of(recipe("fp6"))) == LayerPlan.of(recipe("fp6")).words()
