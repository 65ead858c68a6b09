"""Planted explosions are caught before the loss leaves the band of dense runs, and quiet runs are left alone."""

import pytest
from guarded import band, mobile_net, resnet8, trained

SEEDS = (1, 2, 3, 4)


def test_a_deep_narrow_network_pruned_from_its_first_step():
    dense = [trained(mobile_net, None, 40, seed) for seed in SEEDS]
    plain, guarded = (trained(mobile_net, "prune85", 40, guard=guard) for guard in (False, True))
    for first, last in ((10, 20), (20, 30), (30, 40)):
        limit = band(dense, first, last)
        assert guarded.mean(first, last) < limit
        assert plain.mean(first, last) > limit, "else nothing was planted"
    assert 0 < len(guarded.guard.waiting) < 20, "some layers were let in, and not all"
    assert guarded.guard.references
    assert guarded.guard.noise <= 1


@pytest.mark.slow
def test_a_learning_rate_ten_times_too_high():
    dense = [trained(mobile_net, None, 40, seed, lr=0.5) for seed in SEEDS]
    plain, guarded = (trained(mobile_net, "prune85", 40, lr=0.5, guard=guard) for guard in (False, True))
    limit = band(dense, 30, 40)
    assert guarded.mean(30, 40) < limit < plain.mean(30, 40)


@pytest.mark.parametrize("plan", ["int8-full", "fp6"])
def test_a_quiet_run_is_never_touched_after_letting_in(plan):
    run = trained(resnet8, plan, 90, guard=True)
    assert run.said == []
    assert run.guard.waiting == []
    assert {(change.step, change.cause) for change in run.guard.changes} == {(0, "fits")}, "all fit at once"
    assert run.guard.references == 0
