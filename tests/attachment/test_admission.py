"""Which layers a guard lets in, and when, with planted noise: nothing is trained, and nothing is random."""

import numpy as np
import pytest
import torch
from torch import nn

import lograd
from lograd import Guard, Plan
from lograd.attachment.place import Place
from lograd.attachment.refresh import OperandStatistics


class Planted:
    """A guard over layers whose noise is planted, step by step; a level of less pruning halves it."""

    def __init__(self, monkeypatch, layers, budget=1.0, recipe="int8"):
        self.noise = np.full(layers, 0.0)
        self.energy = 1.0
        model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
        self.handle = lograd.attach(model, Plan.uniform(recipe, keep=()), backend="dense", guard=Guard(budget))
        self.watch, self.step = self.handle.guard, -1
        numbers = {name: index for index, name in enumerate(self.watch.places)}
        monkeypatch.setattr(
            Place, "_predicted", lambda place, scale: (self.noise[numbers[place.name]] / 2**place.level,) * 2
        )
        monkeypatch.setattr(OperandStatistics, "set_numbers", lambda *given: None)

    def judge(self, noise, energy=1.0, steps=1):
        """Make steps whose statistics have this noise and energy; return the layers that wait after each."""
        self.noise[:] = noise
        found = []
        for _ in range(steps):
            self.step += 1
            for place in self.watch.places.values():
                place.statistics.step, place.statistics.energy = self.step, energy
                place.statistics.table = torch.ones(1)  # so that it may be treated
            self.watch.judge(self.step, 1.0)
            self.watch.prepare(self.step + 1)
            found.append(len(self.watch.waiting))
        return found


@pytest.mark.parametrize("layers", [1, 20, 50])
def test_layers_with_little_noise_come_in_at_once(monkeypatch, layers):
    planted = Planted(monkeypatch, layers)
    assert planted.judge(0.1 / layers) == [0]
    assert planted.watch.references == 0


def test_layers_with_more_noise_come_in_twice_as_many_each_time(monkeypatch):
    """The sum of all fits the budget, but four times it would not: those beyond a quarter of it come 1, 2, 4, ..."""
    planted = Planted(monkeypatch, 40)
    waiting = planted.judge(0.5 / 40, steps=8)
    came = -np.diff([40, *waiting])
    free = int(came[0]) - 1
    assert 5 < free < 25
    assert came[1:4].tolist() == [2, 4, 8]
    assert waiting[-1] == 0
    assert planted.watch.references == 0


@pytest.mark.parametrize("recipe", ["int8", "prune85"])
@pytest.mark.parametrize("energy", [1.0, 1000.0])
@pytest.mark.parametrize("spike", [0.03, 0.0])
@pytest.mark.parametrize("steps", range(8, 13))
def test_a_single_batch_with_little_noise_does_not_let_layers_in(monkeypatch, recipe, energy, spike, steps):
    """Its gradients lie in few elements, where pruning adds little noise; the usual ones still have much."""
    planted = Planted(monkeypatch, 8, recipe=recipe)
    usual = 60.0
    assert planted.judge(usual, steps=steps) == [8] * steps
    assert planted.judge(spike, energy=energy) == [8]
    planted.judge(usual, steps=3)
    assert planted.watch.waiting == list(planted.watch.places)
    for place in planted.watch.places.values():
        assert place.noise > 0.2 * usual / 2**place.level, "the spike is forgotten soon"


def test_layers_that_come_in_with_more_zeros_are_looked_at(monkeypatch):
    """With few zeros the layer is free; with all of them it is not, and so it counts as one that is let in."""
    planted = Planted(monkeypatch, 1, recipe="prune85")
    (place,) = planted.watch.places.values()
    planted.judge(30.0, steps=2)
    assert place.level > 0
    looked = []
    for _ in range(40):
        before = planted.watch.made
        planted.judge(0.6)
        if planted.watch.made > before and planted.watch.noise > 0.25:
            looked.append(planted.watch._look == planted.step + 1)
    assert (place.level, planted.watch.waiting) == (0, [])
    assert looked
    assert all(looked)


def test_a_level_changes_all_noise_that_was_seen(monkeypatch):
    planted = Planted(monkeypatch, 1, recipe="prune85")
    (place,) = planted.watch.places.values()
    planted.judge(30.0, steps=4)
    place.set_level(0, 1.0)
    full = (place.noise, place.noise_weight, place.peak)
    place.set_level(2, 1.0)
    assert place.noise == pytest.approx(full[0] / 4)
    assert place.peak == pytest.approx((full[2][0] / 4, full[2][1] / 4))
    place.set_level(0, 1.0)
    assert (place.noise, place.noise_weight) == pytest.approx(full[:2])
    planted.noise[:] = 0.0  # nothing is known of how much less it would be
    place.set_level(2, 1.0)
    assert place.peak == pytest.approx(full[2])


def test_noise_that_stays_low_lets_them_in(monkeypatch):
    planted = Planted(monkeypatch, 8)
    assert planted.judge(3.0, steps=4)[-1] == 8
    assert planted.judge(0.01, steps=60)[-1] == 0


def test_after_a_surprise_one_at_a_time(monkeypatch):
    planted = Planted(monkeypatch, 30)
    planted.judge(0.5 / 30, steps=2)
    assert planted.watch._allowed == 2
    waiting = planted.watch.waiting
    assert waiting
    planted.judge(2.0 / 30, energy=2.0)
    assert planted.watch._allowed == 1
    assert len(planted.watch.waiting) >= len(waiting)
