"""Thresholds that follow the noise that arrives within one pass, and the times that depend on their zeros."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy

from experiments.models import CifarResNet
from lograd import Plan
from lograd.engine.layers import candidates
from lograd.measure.passes import attached, settling
from lograd.measure.timing import Timer

SPARSITY = 0.9


def deep():
    torch.manual_seed(0)
    model, x, y = CifarResNet(14, 10, 4), torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    return model, lambda: cross_entropy(model(x), y)


def zeros_of(handle, loss):
    """Run a step and return the share of zeros in the first layer's gradient and the number of elements."""
    site = next(iter(next(iter(handle.layers.values())).gradient.sites.values()))
    before = site.counters.clone()
    loss().backward()
    handle.step()
    counted = (site.counters - before).tolist()
    return counted[0] / max(counted[4], 1), counted[4]


def test_zeros_are_those_asked_for_after_one_pass():
    model, loss = deep()
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        lagging, _ = zeros_of(handle, loss)
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        with settling(handle.layers, candidates(model)):
            settled, elements = zeros_of(handle, loss)
        after, _ = zeros_of(handle, loss)
    band = 4 * math.sqrt(SPARSITY * (1 - SPARSITY) / elements)
    assert abs(settled - SPARSITY) < band + 0.005  # histograms know magnitudes to a sixteenth
    assert lagging < SPARSITY - 0.05
    # The same thresholds with other random numbers, which change the noise that arrives.
    assert abs(after - SPARSITY) < abs(lagging - SPARSITY)


def test_gradients_without_a_law_leave_thresholds_alone():
    model, loss = deep()
    with attached(model, Plan.uniform("prune90"), "dense") as handle:
        zeros_of(handle, loss)
        before = [site.numbers.clone() for engine in handle.layers.values() for site in engine.gradient.sites.values()]
        with settling(handle.layers, candidates(model)):
            (loss() * 0.0).backward()
        after = [site.numbers for engine in handle.layers.values() for site in engine.gradient.sites.values()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_whole_steps_are_timed_apart_from_layers():
    model, loss = deep()
    modules = {name: module for name, module in candidates(model).items() if name in ("conv1", "fc")}
    timer = Timer(model, loss, modules, lambda count: None)
    whole, watched = timer._step(), timer._step(watched=True)
    assert whole.layers == {}
    assert math.isinf(watched.step)
    both = whole.least(watched).least(None)
    assert both == watched.least(whole)
    assert both.step == whole.step
    assert set(both.layers) == {"conv1", "fc"}
