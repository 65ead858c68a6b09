"""Models that are converted while a plan is attached: what is treated then, one warning, and the truth in explain()."""

import copy
import warnings

import pytest
import torch
from torch import nn

import lograd
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning

FLOAT64 = "its weight is torch.float64, and float32, bfloat16 and float16 are treated"
KINDS = ["fp6", "prune85", "int6-full", "int4wa"]


def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Unflatten(1, (16, 4)), nn.Conv1d(16, 8, 1), nn.Flatten(), nn.Linear(32, 64),
        nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip


def train(model, handle, steps=2):
    """Some steps; the gradients of the last one."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model.zero_grad()
        found = torch.randn(32, 64, generator=generator)
        for layer in model:
            like = next(layer.parameters(), found)
            found = layer(found.to(like.device, like.dtype))
        found.square().mean().backward()
        if handle is not None:
            handle.step()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("recipe", "guard"), [*((name, False) for name in KINDS), ("prune85", True)])
def test_a_model_that_became_double_trains_as_a_plain_one_and_says_so_once(recipe, guard):
    model = make()
    handle = lograd.attach(model, Plan.uniform(recipe), guard=guard)
    train(model, handle)
    plain = copy.deepcopy(make()).double()
    model.double()
    model.load_state_dict(plain.state_dict())
    count = len(handle.layers)
    with pytest.warns(LogradWarning) as said:
        treated = train(model, handle, 3)
    assert len(said) == 1
    assert f"{count} of the {count} layers of the plan pass through unchanged" in str(said[0].message)
    assert f"{FLOAT64}; convert it back, or remove the plan." in str(said[0].message)
    assert said[0].filename == __file__
    assert all(torch.equal(a, b) for a, b in zip(treated, train(plain, None, 3), strict=True))
    explained = handle.explain()
    for name in handle.layers:
        assert explained.layers[name].startswith(f"not treated: {FLOAT64}")
        assert not any(word in explained.layers[name] for word in ("levels", "threshold", "scale", "cosine", "bits"))
    assert "or in a type that is not treated" in explained.summary
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.remove()
    assert handle.explain() == explained


@pytest.mark.parametrize("recipe", [name for name in KINDS if name != "int4wa"])  # it leaves gradients alone
def test_a_model_that_is_converted_back_is_treated_again(recipe):
    model = make()
    handle = lograd.attach(model, Plan.uniform(recipe))
    train(model, handle)
    model.double().float()
    before = handle.counters().total.treated
    train(model, handle)  # without a warning, as nothing passed through
    assert handle.counters().total.treated > before
    assert "not treated" not in handle.explain()
    handle.remove()


def test_a_single_layer_says_so_and_the_others_go_on():
    model = make()
    handle = lograd.attach(model, Plan.uniform("fp6"))
    train(model, handle)
    model[5].double()
    with pytest.warns(LogradWarning, match="1 of the 4 layers of the plan pass through unchanged .*, such as '5'"):
        train(model, handle)
    lines = handle.explain().layers
    assert lines["5"] == f"not treated: {FLOAT64}; 1 gradient treated before"
    assert all("1-4-1" in lines[name] and "not treated" not in lines[name] for name in ("0", "3", "7"))
    handle.remove()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["fp6", "prune85", "int6-full"])
def test_sixteen_bits_are_treated_and_integer_products_say_that_they_are_not_there(recipe, dtype):
    model = make()
    handle = lograd.attach(model, Plan.uniform(recipe))
    train(model, handle)
    model.to(dtype)
    if recipe == "int6-full" and lograd.native.status().available:  # at once, and not with the next forward
        assert f"bits are simulated: the tensors are {str(dtype)[6:]} on cpu" in handle.explain().layers["0"]
    before = handle.counters().layers["0"].treated
    train(model, handle)
    assert handle.counters().layers["0"].treated > before
    line = handle.explain().layers["0"]
    assert "not treated" not in line
    assert "bits are real" not in line
    assert "integer products" not in line
    handle.remove()


@pytest.mark.parametrize("recipe", ["fp6", "prune85", "int6-full"])
def test_what_is_on_the_meta_device_computes_nothing_and_says_so(recipe):
    model = make()
    handle = lograd.attach(model, Plan.uniform(recipe))
    train(model, handle)
    model.to("meta")
    train(model, handle)
    for name in handle.layers:
        assert (
            "not treated: its weight is on the meta device, where nothing is computed" in handle.explain().layers[name]
        )
    handle.remove()


def test_a_model_that_is_double_already_is_refused():
    with pytest.raises(InvalidValue, match="float64"):
        lograd.attach(make().double(), Plan.uniform("fp6"))


def test_without_a_step_the_warning_comes_at_the_end():
    model = make()
    handle = lograd.attach(model, Plan.uniform("fp6"))
    model.double()
    model(torch.randn(4, 64, dtype=torch.float64)).sum().backward()
    with pytest.warns(LogradWarning, match="pass through unchanged since the model was converted") as said:
        handle.remove()
    assert len(said) == 1
    handle.remove()
