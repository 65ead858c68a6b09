"""Menus as values: their file, methods by name, predictions and the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import mlp, vector_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidType, InvalidValue, Profile
from lograd.measure.timing import DEFAULT_METHODS, Candidate, Menus, check_methods, method
from lograd.plan import LayerPlan
from lograd.treatments import PRODUCTS, SYMBOLS, recipe

MENUS = Menus(
    {
        "0": {"dense": Candidate("dense", 0.001, 0.002), "int8": Candidate("int8", 0.0005, 0.001, 0.0, 0.01, 0.25)},
        "2": {"dense": Candidate("dense", 0.001, 0.001), "int8": Candidate("int8", 0.002, 0.001, 0.02, 0.02, 0.5)},
    },
    0.0075,
    {"int8": 0.007},
    2,
)


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mlp(), vector_batches(1), cross_entropy)


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


def test_seconds_of_a_choice_are_those_of_its_layers_and_the_rest():
    assert MENUS.rest == pytest.approx(0.0025)
    assert MENUS.seconds({}) == pytest.approx(MENUS.step)
    assert MENUS.seconds({"0": "int8"}) == pytest.approx(0.006)
    assert MENUS.seconds({"0": "int8", "2": "int8"}) == pytest.approx(0.007)
    for choice in ({"5": "int8"}, {"0": "prune90"}):
        with pytest.raises(InvalidValue, match="was not timed for"):
            MENUS.seconds(choice)


def test_a_profile_keeps_menus_in_its_file(profile, tmp_path):
    assert Profile.load(profile.save(tmp_path / "old.npz")).menus is None
    profile = replace(profile, menus=MENUS)
    assert Profile.load(profile.save(tmp_path / "new.npz")).menus == MENUS


def test_the_table_marks_the_fastest_method_of_each_layer():
    text = str(MENUS.table())
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()[:1] in (["0"], ["2"])}
    assert rows == {"0": ["3.00", "*1.50"], "2": ["*2.00", "3.00"]}
    assert "Times of 2 layers with 2 threads" in text
    assert "Normalization saves 0.1 ms." in text
    assert "int8 -0.001" in text


@pytest.mark.parametrize(
    ("name", "value"), [("step", -1), ("threads", 0), ("layers", {"0": []}), ("uniform", {"x": 1})]
)
def test_menus_that_cannot_be_are_refused(name, value):
    with pytest.raises(InvalidValue):
        Menus.from_dict(MENUS.to_dict() | {name: value})


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
