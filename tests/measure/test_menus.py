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
        "0": {
            "dense": Candidate("dense", 0.001, 0.002),
            "int8-full": Candidate("int8-full", 0.0005, 0.001, 0.0, 0.01, 0.25),
        },
        "2": {
            "dense": Candidate("dense", 0.001, 0.001),
            "int8-full": Candidate("int8-full", 0.002, 0.001, 0.02, 0.02, 0.5),
        },
    },
    0.0075,
    {"int8-full": 0.007},
    2,
)


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mlp(), vector_batches(1), cross_entropy)


EXPECTED = {
    "dense": ("identity", {}, None),
    "int8-full": ("int8-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, None),
    "int6-full": ("int6-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, None),
    "int4-full": ("int4-full", {"Y": "integer", "dX": "integer", "dW": "integer"}, None),
    "int8wa": ("int8wa", {"Y": "integer"}, None),
    "prune80": ("prune80", {"dX": "sparse", "dW": "sparse"}, 0.8),
    "prune90": ("prune90", {"dX": "sparse", "dW": "sparse"}, 0.9),
    "prune95": ("prune95", {"dX": "sparse", "dW": "sparse"}, 0.95),
    "identity/prune90": ("identity/prune90", {"dW": "sparse"}, 0.9),
    "int8wa+prune90": ("int8wa+prune90", {"Y": "integer", "dX": "sparse", "dW": "sparse"}, 0.9),
}
"""Recipe, backends that are not "auto", sparsity."""


def test_a_profile_keeps_menus_in_its_file(profile, tmp_path):
    assert Profile.load(profile.save(tmp_path / "old.npz")).menus is None
    profile = replace(profile, menus=MENUS)
    assert Profile.load(profile.save(tmp_path / "new.npz")).menus == MENUS


def test_the_table_marks_the_fastest_method_of_each_layer():
    text = str(MENUS.table())
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()[:1] in (["0"], ["2"])}
    assert rows == {"0": ["3.00", "*1.50"], "2": ["*2.00", "3.00"]}
    assert "Times of 2 layers with 2 threads" in text
    assert MENUS.rest == pytest.approx(0.0025)


@pytest.mark.parametrize("name", DEFAULT_METHODS)
def test_a_method_is_a_recipe_with_named_backends(name):
    expected, backends, sparsity = EXPECTED[name]
    found = method(name)
    assert found[0] == name
    bits = next((int(digit) for digit in "864" if f"int{digit}" in name), None)
    assert (found.bits, found.sparsity) == (bits, sparsity)
    plain = LayerPlan.of(recipe(expected))
    for product in PRODUCTS:
        mine, theirs = getattr(found.plan, product), getattr(plain, product)
        assert (mine.gradient, mine.weights, mine.activations) == (theirs.gradient, theirs.weights, theirs.activations)
        assert mine.backend == backends.get(SYMBOLS[product], "auto")
    assert LayerPlan.from_dict(found.plan.to_dict()) == found.plan


def test_other_bits_and_sparsities_have_names_too():
    assert method("int8x6-full-rows").plan.output.backend == "integer"
    assert method("fp6").plan.weight_gradient.backend == "auto"
    assert method("prune87.5").sparsity == 0.875
    assert check_methods(["prune85", "int5-full", "prune85"]) == ("dense", "prune85", "int5-full")
    assert check_methods(None) == DEFAULT_METHODS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["int9-full"], "'int9-full'.*Did you mean"),
        (["prune100"], "'prune100'"),
        (["prune\uff190"], "prune"),
    ],
)
def test_other_names_are_refused(given, words):
    with pytest.raises(InvalidValue, match=words):
        check_methods(given)


@pytest.mark.parametrize("given", ["int8-full", 3, [4]])
def test_what_is_no_list_of_names_is_refused(given):
    with pytest.raises(InvalidType):
        check_methods(given)
