"""Which layers a guard lets in, and when, with planted noise: nothing is trained, and nothing is random."""

import numpy as np
import pytest
import torch
from torch import nn

import lograd
from lograd import Guard, Plan
from lograd.attachment.place import Place


class Planted:
    """A guard over layers whose noise is planted, step by step."""

    def __init__(self, monkeypatch, layers, budget=1.0):
        self.noise = np.full(layers, 0.0)
        self.energy = 1.0
        model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
        self.handle = lograd.attach(model, Plan.uniform("int8", keep=()), backend="dense", guard=Guard(budget))
        self.watch, self.step = self.handle.guard, -1
        numbers = {name: index for index, name in enumerate(self.watch.places)}
        monkeypatch.setattr(Place, "_predicted", lambda place, scale: (self.noise[numbers[place.name]],) * 2)

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


def test_a_single_large_batch_does_not_let_layers_in(monkeypatch):
    """Its gradients lie in few elements, where pruning adds little noise; the usual ones still have much."""
    planted = Planted(monkeypatch, 8)
    usual, spike = 30.0, 0.03
    assert planted.judge(usual, steps=10) == [8] * 10
    assert planted.judge(spike, energy=1000.0, steps=2) == [8] * 2
    planted.judge(usual, steps=3)
    assert planted.watch.waiting == list(planted.watch.places)
    assert all(place.noise > 0.3 * usual for place in planted.watch.places.values()), "the spike is forgotten soon"


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
