"""Planted explosions are caught before the loss leaves the band of dense runs, and quiet runs are left alone."""

import pytest
import torch
from everyday import daily
from guarded import band, mobile_net, resnet8, trained

from lograd import Guard

SEEDS = (1, 2, 3, 4)


def test_a_deep_narrow_network_pruned_from_its_first_step():
    dense = [trained(mobile_net, None, 40, seed) for seed in SEEDS]
    plain, guarded = (trained(mobile_net, "prune85", 40, guard=guard) for guard in (False, True))
    for first, last in ((10, 20), (20, 30), (30, 40)):
        limit = band(dense, first, last)
        assert guarded.mean(first, last) < limit
        assert plain.mean(first, last) > limit, "else nothing was planted"
    assert 0 < len(guarded.watch.waiting) < 20, "some layers were let in, and not all"
    assert guarded.watch.references


@pytest.mark.slow
def test_a_learning_rate_ten_times_too_high():
    dense = [trained(mobile_net, None, 40, seed, lr=0.5) for seed in SEEDS]
    plain, guarded = (trained(mobile_net, "prune85", 40, lr=0.5, guard=guard) for guard in (False, True))
    limit = band(dense, 30, 40)
    assert guarded.mean(30, 40) < limit < plain.mean(30, 40)


def blown_up(factor):
    """Multiply a layer in front of a BatchNorm: outputs stay, and its own gradient is so many times less."""

    def event(model, step):
        if step == 40:
            with torch.no_grad():
                model.blocks[1].conv1.weight.mul_(factor)

    return event


@pytest.fixture(scope="module")
def limit():
    return band([trained(resnet8, None, 60, seed, event=blown_up(1e6)) for seed in SEEDS], 45, 60)


@pytest.mark.parametrize("factor", daily([1e4, 1e6], [1e4]))
def test_a_layer_scaled_in_the_middle_of_a_run(factor, limit):
    """A few elements of 1e4 times their size are noise.  Of 1e6 times their size hardly one is left: no gradient."""
    options = {"event": blown_up(factor), "refresh": "epoch", "start": 20}
    large = Guard(budget=10.0)  # all layers are treated by then
    plain, guarded = (trained(resnet8, "prune50", 60, guard=guard, **options) for guard in (False, large))
    assert guarded.mean(45, 60) < limit
    zeros = [run.handle.counters().layers["blocks.1.conv1"].sparsity for run in (plain, guarded)]
    assert zeros[0] > zeros[1] + 0.1, "else nothing was planted"
    if factor < 1e6:
        assert plain.mean(45, 60) > limit
    assert [text for text in guarded.said if "'blocks.1.conv1' has another size" in text]
    assert guarded.watch.places["blocks.1.conv1"].outside <= 2, "then it has new statistics"


@pytest.mark.parametrize(("plan", "start"), [("int8-full", 0), ("prune80", 40)])
def test_a_quiet_run_is_never_touched_after_letting_in(plan, start):
    run = trained(resnet8, plan, 90, guard=True, start=start)
    assert run.said == []
    assert {change.cause for change in run.watch.changes} == {"fits"}
    assert len(run.watch.waiting) < 5, "most layers were let in"
    assert sum(place.falls + place.outside for place in run.watch.places.values()) == 0
    if plan == "int8-full":
        assert run.watch.waiting == []
        assert [change.step for change in run.watch.changes] == [0] * 8, "all fit at once, even if noise adds up"
        assert run.watch.references == 0
