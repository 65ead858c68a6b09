"""The plans that are compared with each other."""

from dataclasses import replace

import pytest
from lograd.measure.variants import SAVED, exact, forward_only, layer_plans, one_at_a_time, treats_forward, whole
from networks import mlp
from torch import nn

from lograd import LayerPlan, Plan
from lograd.treatments import recipe

BACKWARD_ONLY = ["int5-bhq", "prune85", "saw80", "hfp8", "mxfp4-rht"]


@pytest.mark.parametrize("name", BACKWARD_ONLY)
def test_the_exact_backward_of_a_plain_forward_treats_nothing(name):
    layer = LayerPlan.of(recipe(name))
    assert not exact(layer).treats
    assert not treats_forward(Plan(), {"0": layer})


def test_the_exact_backward_takes_what_the_output_takes():
    layer = LayerPlan.of(recipe("int6-full"))
    found = exact(layer)
    assert found.output == layer.output
    assert found.input_gradient.weights == layer.output.weights
    assert found.weight_gradient.activations == layer.output.activations
    assert found.input_gradient.gradient == found.weight_gradient.gradient == ()
    assert exact(found) == found
    assert treats_forward(Plan(), {"0": layer})


def test_one_layer_at_a_time():
    layers = {"0": LayerPlan.of(recipe("int6-full")), "2": exact(LayerPlan.of(recipe("int6-full")))}
    plan = replace(Plan(layers), attention=8, saved=6)
    found = one_at_a_time(plan, layers)
    assert list(found) == ["0", SAVED], "layer 2 adds nothing"
    assert found["0"].layers["0"] == layers["0"]
    assert found["0"].saved is None
    assert found[SAVED].saved == 6
    assert found[SAVED].layers == forward_only(plan, layers).layers
    assert all(one.attention == 8 for one in (*found.values(), whole(plan, layers)))
    assert whole(plan, layers).saved == 6


def test_a_layer_is_known_by_any_of_its_names():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    plan = Plan({"2": LayerPlan.of(recipe("fp6"))})
    assert layer_plans(plan, model, {"0": None}) == {"0": plan.layers["2"]}
    uniform = Plan.uniform("fp6")
    assert layer_plans(uniform, mlp(), {"0": None, "2": None}) == dict.fromkeys(("0", "2"), uniform.every)
    assert layer_plans(Plan(), mlp(), {"0": None}) == {}
