"""The guard over time: layers return to what was asked for, falls are said, and references are never wasted."""

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Guard, Plan
from lograd.attachment.refresh import Drift
from lograd.attachment.travel import Bound
from lograd.engine.limits import HIGH, OUTSIDE, sampled_size
from lograd.engine.slots import READY
from lograd.errors import LogradWarning
from lograd.ops.registry import call


def spread(factor):
    """Weights of samples, of mean 1: the larger the factor, the wider the law of gradients, and the less noise."""
    weights = torch.randn(256, 1, generator=torch.Generator().manual_seed(0)).mul(factor).exp()
    return weights / weights.mean()


def run(model, x, handle, weight, steps):
    for _ in range(steps):
        model.zero_grad()
        (model(x).square() * weight).mean().backward()
        handle.step()


def test_a_fall_is_said_and_layers_return_to_all_zeros_while_nothing_is_measured():
    """All noise fits by its bound at first and at last, so that no step is a reference there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 4))
    x = torch.randn(256, 32)
    handle = lograd.attach(model, Plan.uniform("prune85", keep=()), backend="dense", guard=True)
    run(model, x, handle, spread(3), 20)
    assert not handle.guard.measures
    with pytest.warns(LogradWarning, match="guard noise is .* above the budget of 1; falling back"):
        run(model, x, handle, spread(1), 30)
    fallen = {name: place.status for name, place in handle.guard.places.items()}
    assert "dense" in fallen.values(), "the test is of a layer that stays as it is"
    assert any("at most" in status for status in fallen.values()), "and of one with fewer zeros"
    run(model, x, handle, spread(3), 80)
    assert {place.status for place in handle.guard.places.values()} == {"treated"}
    handle.remove()


def test_a_reference_takes_all_elements_where_drift_asks_for_a_sample():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), torch.randn(256, 64)
    handle = lograd.attach(
        model, Plan.uniform("prune80"), backend="dense", guard=Guard(1.0), refresh=Drift(every=1, sample=0.5)
    )
    run(model, x, handle, 1.0, 60)
    assert handle.guard.measures
    assert handle.guard.references
    last = max(place.clean_step for place in handle.guard.places.values())
    assert last > 20, "references after the steps that take full statistics in any case"
    handle.remove()


def test_no_noise_arrives_at_layers_without_gradients():
    """The last layer alone has noise of its own, and hands none to frozen ones in front."""
    torch.manual_seed(0)
    head, x = nn.Linear(32, 32), torch.randn(256, 32)
    model = nn.Sequential(*(nn.Linear(32, 32).requires_grad_(False) for _ in range(3)), head)
    found = []
    for trained in (head, model):
        handle = lograd.attach(trained, Plan.uniform("prune80", keep=()), backend="dense", guard=Guard(0.9))
        run(trained, model[:3](x) if trained is head else x, handle, 1.0, 8)
        found.append((handle.guard.noise, [place.status for place in handle.guard.places.values()][-1]))
        handle.remove()
    assert found[0] == found[1]
    assert found[0][1].startswith("treated")


def test_words_say_that_a_gradient_passes_through_as_a_reference():
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), torch.randn(256, 64)
    handle = lograd.attach(model, Plan.uniform("prune80"), backend="dense", guard=Guard(1.0))
    for _ in range(60):
        run(model, x, handle, 1.0, 1)
        treated = [name for name, place in handle.guard.places.items() if place.statistics.treats]
        if treated and not handle.layers[treated[0]].gradient.ready:
            break
    text = str(handle.explain())
    assert "passes through in this step, a reference for the guard" in text
    assert "until handle.step() has statistics" not in text
    assert "passed through without statistics or by the guard" in text
    handle.remove()


def test_the_noise_of_a_very_deep_network_is_a_float():
    with np.errstate(all="raise"):
        deep = Bound()
        noise = np.full(300, 30.0)
        assert np.isfinite(deep.total(deep.shares(deep.growth(noise), noise, noise)))


# -- sizes --


def judged(gradient):
    """Return whether a gradient is treated, with limits around a size of 1, and how many were outside."""
    control, limits = torch.tensor([1, 0]), torch.tensor([0.01, 100.0, 0.0], dtype=torch.float64)
    assert limits[HIGH] == 100
    call("check_size", gradient, control, limits)
    return bool(control[READY]), int(limits[OUTSIDE])


def test_a_gradient_that_lies_in_few_elements_has_the_size_of_all_of_it():
    gradient = torch.full((1000, 1000), 1e-6)
    gradient[:, 999] = 1000.0
    assert sampled_size(gradient) < 0.01, "the sample sees none of the large ones"
    assert judged(gradient) == (True, 0)
    assert judged(gradient / 1e6) == (False, 1)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_values_that_are_not_finite_say_nothing_of_a_size(bad):
    """Loss scaling brings them about; whoever looks for them finds them in the treated gradient too."""
    gradient = torch.ones(64)
    gradient[3] = bad
    assert judged(gradient) == (True, 0)
    assert judged(torch.full((64,), 1e6)) == (False, 1)
    assert judged(torch.zeros(64)) == (True, 0)


def test_what_is_clipped_in_the_first_step_after_a_resumption_counts():
    batch = image_batches(1)[0]
    plan = Plan.uniform("int4", keep=())
    handles = [lograd.attach(conv_net(), plan, backend="dense", guard=Guard(1e6), refresh="epoch") for _ in range(2)]

    def step(handle, factor=1.0):
        handle.model.zero_grad()
        (factor * cross_entropy(handle.model(batch[0]), batch[1])).backward()
        handle.step()

    for _ in range(25):
        step(handles[0])
    handles[1].load_state_dict(handles[0].state_dict())
    for handle in handles:
        with pytest.warns(LogradWarning, match="was clipped by a scale that is out of date"):
            step(handle, 50.0)
        assert {change.after for change in handle.guard.changes if change.cause == "clipped"} == {"statistics anew"}
