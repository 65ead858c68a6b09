"""The names of recipes: parts, endings and sides, plans of each as files, and names that are refused."""

import re

import pytest
import torch
from methods import NAMES

import lograd
from lograd import Plan, cli
from lograd.cli import citations
from lograd.errors import InvalidValue
from lograd.treatments import ALL_RECIPES, Hadamard, Prune, Quantize, Treated, gradients, recipe, recipes


def test_every_recipe_has_a_name_a_line_and_a_reference():
    known = {entry.key for entry in citations()} | {"lograd"}
    for entry in ALL_RECIPES:
        assert entry.reference in known, entry
        assert re.fullmatch(entry.pattern, entry.example), entry
        assert len(entry.words) <= 90
        assert entry.words[0].islower() or entry.words[:6] == "meProp" or entry.words[:2] == "NN", entry.words


@pytest.mark.parametrize("name", NAMES)
def test_plans_of_recipes_survive_their_files(name, tmp_path):
    plan = Plan.uniform(name)
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert str(plan)
    assert isinstance(recipe(name), Treated)


def test_parts_endings_and_sides():
    assert recipe("int5-bhq").weight_gradient.gradient == recipe("int8-ptq").input_gradient.gradient
    assert recipe("identity/prune85") == gradients((), (Prune(0.85),))
    assert recipe("mxfp4-rht").input_gradient.gradient == (Hadamard(recipe("mxfp4").input_gradient.gradient[0]),)
    assert recipe("mxfp4-nearest-rht") == recipe("mxfp4-rht-nearest")
    assert recipe("prune97.5").input_gradient.gradient == (Prune(0.975),)
    assert recipe("mxfp8-e4m3") == recipe("mxfp8")
    assert recipe("mxfp4/int5-bhq").weight_gradient.gradient == recipe("int5-bhq").input_gradient.gradient
    assert (
        Plan.uniform("topk85").override("fc", sparsity=0.5).layers["fc"].input_gradient.gradient
        == recipe("topk50").input_gradient.gradient
    )
    assert recipe("nvfp4-full/nvfp4-full") == recipe("nvfp4-full")
    assert recipe("mxfp4-full/nvfp4-full") == recipe("mxfp4-full")._replace(
        weight_gradient=recipe("nvfp4-full").weight_gradient
    )
    for found in recipe("nvfp4-full-ht").sentences():
        (one,) = found
        assert one.rotation in ((64, False), (16, False)), "a transform that is there keeps its block"
    assert recipe("mxfp4-full-rht").weight_gradient == recipe("mxfp4-full").weight_gradient
    assert not Plan.uniform("mxfp4").every.shares("gradient")
    assert Plan.uniform("int8-ptq").every.shares("gradient")
    changed = Plan.uniform("saw80").override("fc", sparsity=0.5)
    assert changed.layers["fc"].input_gradient.weights == recipe("saw80").input_gradient.weights


@pytest.fixture
def _own_names(monkeypatch):
    monkeypatch.setattr(recipes, "registered", {})


@pytest.mark.usefixtures("_own_names")
def test_a_registered_recipe_serves_wherever_a_recipe_does(capsys):
    lograd.register_recipe("mine", Prune(0.5))
    assert recipe("mine") == recipe("prune50")
    lograd.register_recipe("mine", (Prune(0.5), Quantize("1-5-2")))  # a cell of a notebook runs twice
    assert recipe("mine") == recipe("prune50+fp8")
    lograd.register_recipe("mine-6", recipe("int6-full"))
    assert recipe("mine-6/prune85") == recipe("int6-full/prune85")
    cli.recipes_command()
    assert "mine-6" in capsys.readouterr().out
    model, twin = (_trained("mine-6"), _trained("int6-full"))
    assert torch.equal(model, twin)
    with pytest.raises(InvalidValue, match="Did you mean 'mine-6'"):
        recipe("mine-7")
    layer = lograd.nn.Linear(8, 4, recipe="mine-6")
    assert layer(torch.ones(2, 8)).shape == (2, 4)


def _trained(name):
    """The gradient that a layer has after two steps under a recipe."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 4), torch.randn(16, 8)
    with lograd.attach(model, Plan.uniform(name, keep=())) as handle:
        for _ in range(2):
            model.zero_grad()
            model(x).square().sum().backward()
            handle.step()
    return model.weight.grad
