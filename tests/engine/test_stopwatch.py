"""The stopwatch: whose time is counted where, by a clock that only the tested layers move."""

from __future__ import annotations

import time
from contextlib import nullcontext

import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Plan
from lograd.engine import stopwatch
from lograd.engine.layers import candidates
from lograd.engine.stopwatch import LayerSeconds, Stopwatch, seconds

FORWARD, BACKWARD = 5.0, 7.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for the layers of a test."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "seconds", lambda: now[0])
    return now


class Waiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock[0] += FORWARD
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.clock[0] += BACKWARD
        return g, None


class Slow(nn.Linear):
    """A layer that moves the clock in its forward and in its backward."""

    def __init__(self, clock):
        super().__init__(4, 4)
        self.clock = clock

    def forward(self, x):
        return Waiting.apply(super().forward(x), self.clock)


def test_each_layer_has_its_own_time_and_one_that_runs_twice_the_sum(clock):
    once, twice, free = Slow(clock), Slow(clock), nn.Linear(4, 4)
    watch = Stopwatch({"once": once, "twice": twice, "free": free})
    with watch.running():
        x = twice(free(once(twice(torch.randn(3, 2, 4)))).relu_())
        x.sum().backward()
    found = watch.read()
    assert found == {
        "once": LayerSeconds(FORWARD, BACKWARD), "twice": LayerSeconds(2 * FORWARD, 2 * BACKWARD),
        "free": LayerSeconds(0.0, 0.0),
    }  # fmt: skip
    assert watch.read()["once"].total == 0  # begun anew


def test_only_what_runs_inside_is_timed_and_no_hook_stays(clock):
    layer = Slow(clock)
    watch = Stopwatch({"layer": layer})
    with pytest.raises(RuntimeError, match="own"), watch.running():
        raise RuntimeError("the user's own")
    layer(torch.randn(2, 4)).sum().backward()
    assert watch.read()["layer"].total == 0
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks


def test_what_a_layer_reads_from_other_modules_is_not_its_time(clock):
    """The nodes behind a layer's input and behind a weight that was made elsewhere were there before its forward."""
    before, layer = Slow(clock), nn.Linear(4, 4, bias=False)
    watch = Stopwatch({"layer": layer})
    made = Waiting.apply(layer.weight, clock)
    del layer.weight
    layer.weight = made
    with watch.running():
        layer(before(torch.randn(2, 4))).sum().backward()
    assert watch.read()["layer"] == LayerSeconds(0.0, 0.0)


@pytest.mark.parametrize("name", ["identity", "int8-full", "prune80", "int8wa"])
def test_attached_layers_are_timed_and_results_stay_as_they_are(name):
    (batch,) = image_batches(1)

    def gradients(timed):
        model = conv_net()
        watch = Stopwatch(candidates(model))
        with lograd.attach(model, Plan.uniform(name, keep=()), backend="dense") as handle:
            for _ in range(2):
                model.zero_grad()
                with watch.running() if timed else nullcontext():
                    cross_entropy(model(batch[0]), batch[1]).backward()
                handle.step()
        assert all((one.forward > 0 and one.backward > 0) == timed for one in watch.read().values())
        return [parameter.grad for parameter in model.parameters()]

    assert all(torch.equal(one, other) for one, other in zip(gradients(True), gradients(False), strict=True))


def test_other_threads_and_waiting_do_not_count_where_one_thread_computes():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        start = seconds()
        time.sleep(0.05)
        assert seconds() - start < 0.05
        torch.set_num_threads(2)
        start = seconds()
        time.sleep(0.01)
        assert seconds() - start >= 0.01
    finally:
        torch.set_num_threads(threads)
