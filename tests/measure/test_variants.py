"""The plans that are compared with each other."""

from dataclasses import replace

import pytest

from lograd import LayerPlan, Plan
from lograd.measure.variances import SAVED, _exact, _forward_only, _one_at_a_time
from lograd.treatments import recipe

BACKWARD_ONLY = ["int5-bhq", "prune85", "saw80", "hfp8", "mxfp4-rht"]


@pytest.mark.parametrize("name", BACKWARD_ONLY)
def test_the_exact_backward_of_a_plain_forward_treats_nothing(name):
    layer = LayerPlan.of(recipe(name))
    assert not _exact(layer).treats
    assert not layer.output.treats


def test_the_exact_backward_takes_what_the_output_takes():
    layer = LayerPlan.of(recipe("int6-full"))
    found = _exact(layer)
    assert found.output == layer.output
    assert found.input_gradient.weights == layer.output.weights
    assert found.weight_gradient.activations == layer.output.activations
    assert found.input_gradient.gradient == found.weight_gradient.gradient == ()
    assert _exact(found) == found
    assert layer.output.treats


def test_one_layer_at_a_time():
    layers = {"0": LayerPlan.of(recipe("int6-full")), "2": _exact(LayerPlan.of(recipe("int6-full")))}
    plan = replace(Plan(layers), attention=8, saved=6)
    found = _one_at_a_time(plan, layers)
    assert list(found) == ["0", SAVED], "layer 2 adds nothing"
    assert found["0"].layers["0"] == layers["0"]
    assert found["0"].saved is None
    assert found[SAVED].saved == 6
    assert found[SAVED].layers == _forward_only(plan, layers).layers
    assert all(one.attention == 8 for one in found.values())
