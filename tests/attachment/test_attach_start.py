"""The step at which attach begins to treat: nothing before it, and the same after a resume."""

import contextlib

import pytest
import torch
from networks import mlp, vector_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning


@pytest.mark.parametrize("name", ["prune80", "topk80", "saw80"], ids=["numbers", "no numbers", "operands"])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_nothing_is_treated_before_the_first_step_that_was_asked_for(name, start):
    plain, model = mlp(), mlp()
    handle = lograd.attach(model, Plan.uniform(name), start=start)
    begins = max(start, 1) if name == "prune80" else start
    for step, (x, y) in enumerate(vector_batches(6, size=64)):
        gradients = []
        for network in (plain, model):
            network.zero_grad()
            cross_entropy(network(x), y).backward()
            gradients.append([parameter.grad.clone() for parameter in network.parameters()])
        same = all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
        assert same == (step < begins), step
        if name == "prune80":
            assert handle.gradients["0"].collecting == (step >= begins - 1)
        handle.step()
    handle.remove()


def test_a_run_that_was_saved_before_its_start_begins_at_the_same_step():
    model = mlp()
    handle = lograd.attach(model, Plan.uniform("prune80"), start=4)
    batches = vector_batches(8, size=64)

    def run(network, handle, batches):
        found = []
        for x, y in batches:
            network.zero_grad()
            cross_entropy(network(x), y).backward()
            found.append([parameter.grad.clone() for parameter in network.parameters()])
            handle.step()
        return found

    run(model, handle, batches[:2])
    other = mlp()
    resumed = lograd.attach(other, Plan.uniform("prune80"), start=4)
    resumed.load_state_dict(handle.state_dict())
    for one, again in zip(run(model, handle, batches[2:]), run(other, resumed, batches[2:]), strict=True):
        assert all(map(torch.equal, one, again))
    assert handle.counters().total.passed_through == 2 * 4
    with pytest.raises(InvalidValue, match="start"):
        lograd.attach(mlp(), Plan.uniform("prune80"), start=-1)


def test_a_layer_that_a_state_lacks_warms_up_after_a_late_start_and_the_start_is_saved():
    handle = lograd.attach(mlp(), Plan.uniform("prune80"), start=2, refresh="epoch")
    for _ in range(6):
        handle.step()
    state = handle.state_dict()
    state["layers"].pop("2"), state["statistics"].pop("2")
    model = mlp()
    resumed = lograd.attach(model, Plan.uniform("prune80"), start=50, refresh="epoch")
    resumed.load_state_dict(state)
    assert resumed.start == 2
    for x, y in vector_batches(3, size=64):
        cross_entropy(model(x), y).backward()
        resumed.step()
    assert resumed.counters().layers["2"].passed_through == 1


def test_a_run_that_ends_before_its_start_is_not_scolded_and_a_forgotten_step_is():
    batches = vector_batches(6, size=64)
    for start, backwards, forgotten in ((6, 1, False), (2, 1, True), (6, 3, False)):
        model = mlp()
        handle = lograd.attach(model, Plan.uniform("prune80"), start=start)
        assert handle.explain().layers["0"].endswith(f"treated from step {start} on")
        for x, y in batches:
            for _ in range(backwards):  # gradients are accumulated
                cross_entropy(model(x), y).backward()
            if not forgotten:
                handle.step()
        with pytest.warns(LogradWarning, match="no gradient was treated") if forgotten else contextlib.nullcontext():
            handle.remove()
