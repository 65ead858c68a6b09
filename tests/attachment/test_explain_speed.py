"""What `explain` says of speed: times that were measured, what follows from them, and nothing where nothing was."""

import re
import time

import pytest
import torch
from torch import nn

import lograd
from lograd import Plan
from lograd.attachment.speed import Saving, saving
from lograd.engine.backends.choice import DENSE_TIME, MODE, SPARSE, SPARSE_TIME, ZEROS
from lograd.engine.clock import BACKWARD, RECENT, StepClock

TIMES = re.compile(r"(backward|step) ([\d.]+) times faster \(measured \1 ([\d.]+) ms; .*? would take ([\d.]+) ms\)")


def wide():
    """Two layers large enough to be timed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


def train(model, handle, steps, passes=1, rows=256):
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        for _ in range(passes):
            model(x).square().mean().backward()
        model.zero_grad()
        handle.step()


def set_times(handle, dense, sparse):
    for layer in handle.layers.values():
        for choice in layer.choices.values():
            for slot, value in ((MODE, SPARSE), (DENSE_TIME, dense * 1e6), (SPARSE_TIME, sparse * 1e6), (ZEROS, 85e4)):
                choice.tensor[slot] = int(value)


def test_backward_and_step_are_summed_up_from_what_was_measured():
    model = wide()
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        train(model, handle, 6)
        set_times(handle, dense=5.0, sparse=2.0)
        text = str(handle.explain())
        known = saving(handle.layers, handle.steps, handle._clock)
    assert known.saved == pytest.approx(9.0)
    assert (known.timed, known.sparse) == (3, 3)
    found = {name: [float(value) for value in values] for name, *values in TIMES.findall(text)}
    assert set(found) == {"backward", "step"}
    for faster, measured, dense in found.values():
        assert dense == pytest.approx(measured + 9.0, rel=0.01)
        assert faster == pytest.approx(dense / measured, rel=0.02)
    assert found["backward"][1] <= found["step"][1], "a backward is a part of a step"
    assert "3 of 3 timed layers have sparse products" in text
    assert "take 6 ms a step, and 15 ms if all were dense" in text


def test_a_layer_that_runs_twice_in_a_step_counts_twice():
    model = wide()
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        train(model, handle, 4, passes=2)
        set_times(handle, dense=5.0, sparse=2.0)
        assert saving(handle.layers, handle.steps, handle._clock).saved == pytest.approx(18.0)


def test_what_was_not_measured_is_said():
    model = wide()
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        assert "Speed: not measured yet." in str(handle.explain())
    with lograd.attach(model, Plan.uniform("prune90"), backend="sparse") as handle:
        train(model, handle, 3)
        assert "Speed: not measured; sparse products were asked for" in str(handle.explain())
    with lograd.attach(model, Plan.uniform("fp6")) as handle:
        train(model, handle, 3)
        assert "Speed" not in str(handle.explain()), "rounding saves no time"
    times = Saving(dense=4.0, chosen=4.0, timed=1, sparse=0, fixed=0, backward=None, step=None)
    assert times.words().endswith("backward and step not measured yet")


def test_a_resumed_handle_measures_anew():
    model = wide()
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        train(model, handle, 5)
        state = handle.state_dict()
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        handle.load_state_dict(state)
        assert handle._clock.step_time is None
        assert "backward and step not measured yet" in str(handle.explain())
        train(model, handle, 3)
        assert handle._clock.step_time > 0


def test_forwards_between_backward_passes_are_not_counted():
    model, wait = wide(), 0.05
    x = torch.randn(64, 128)
    with lograd.attach(model, Plan.uniform("prune90"), backend="dense") as handle:
        for _ in range(3):
            model(x).square().mean().backward()
            time.sleep(wait)
            model(x).square().mean().backward()
            handle.step()
    clock = handle._clock
    assert clock.step_time > 1e3 * wait
    assert clock.step_time - clock.backward_time > 1e3 * wait


def test_steps_that_time_products_and_steps_without_backward_do_not_count():
    clock = StepClock()
    BACKWARD.read()
    clock.step()
    assert (clock.step_time, clock.backward_time) == (None, None)
    model, x = wide(), torch.randn(256, 128)
    with lograd.attach(model, Plan.uniform("prune90")) as handle:
        for _ in range(2):  # the second times both ways
            model(x).square().mean().backward()
            handle.step()
    assert any(choice.times for layer in handle.layers.values() for choice in layer.choices.values())
    assert handle._clock.step_time is None


def test_the_median_is_that_of_recent_steps(monkeypatch):
    clock = StepClock()
    now = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr("lograd.engine.clock.time.perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(BACKWARD, "read", lambda: 0.25)
    for _ in range(3 * RECENT):
        clock.step()
    assert clock.step_time == pytest.approx(1.0)
    assert len(clock._steps) == RECENT
    assert clock.backward_time == 0.25


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled_steps_are_timed_as_well():
    torch._dynamo.reset()
    model = wide()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with lograd.attach(model, Plan.uniform("prune90"), backend="sparse") as handle:
        train(compiled, handle, 4)
    assert 0 < handle._clock.backward_time < handle._clock.step_time
