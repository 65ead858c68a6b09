"""Batches of a user's model: a function of seed and epoch, whatever else is drawn."""

import random

import numpy as np
import torch

from experiments.lab.feeding import Feed, digest
from experiments.lab.loading import Made
from experiments.lab.randomness import RandomState, preserved, seed_all


def feed(batches, seed=0):
    return Feed(Made("mine:make", torch.nn.Identity(), batches, None), seed)


class Numbers:
    """Random numbers of three generators, from 3 batches on."""

    def __iter__(self):
        return iter([torch.rand(()).item(), np.random.rand(), random.random()])  # noqa: NPY002


def test_batches_follow_from_seed_and_epoch_whatever_is_drawn_in_between():
    def taken(seed, disturb):
        one, found = feed(Numbers(), seed), []
        for _ in range(6):
            found.append(one.take())
            if disturb:
                torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        return found

    with preserved():
        first = taken(0, False)
        assert first == taken(0, True)
        assert len(set(first + taken(1, False))) == 12, "each epoch and each seed has its own"


def test_the_model_draws_as_if_there_were_no_batches():
    with preserved():
        seed_all(3)
        expected = [(torch.rand(()).item(), np.random.rand(), random.random()) for _ in range(4)]  # noqa: NPY002
        seed_all(3)
        one, found = feed(Numbers()), []
        for _ in range(4):
            one.take()
            found.append((torch.rand(()).item(), np.random.rand(), random.random()))  # noqa: NPY002
        assert found == expected


def test_the_end_of_an_epoch_is_known_when_it_is_reached():
    one, ends = feed([1, 2, 3]), []
    assert one.length() == 3
    for _ in range(7):
        one.take()
        ends.append(one.ends_epoch())
    assert ends == [False, False, True, False, False, True, False]
    assert (one.epoch, one.index) == (2, 1)
    assert feed(lambda epoch: [epoch] * 5).length() == 5
    assert feed(lambda epoch: iter([epoch])).length() is None
    lengths = feed(lambda epoch: [epoch] * (epoch + 1))
    assert [lengths.take() for _ in range(6)] == [0, 1, 1, 2, 2, 2]


def test_samplers_are_told_the_epoch():
    class Sampled:
        def __init__(self):
            self.epochs, self.generator = [], torch.Generator()

        @property
        def sampler(self):
            return self

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

        def __iter__(self):
            return iter([self.generator.initial_seed()])

    batches = Sampled()
    first = [feed(batches).take()]
    one = feed(batches)
    both = [one.take(), one.take()]
    assert first == both[:1]
    assert both[0] != both[1]
    assert set(batches.epochs) == {0, 1}


def test_a_digest_sees_every_element():
    batch = {"x": torch.zeros(3, 2), "y": [np.arange(3), 5, "text", None], "z": (torch.zeros(2, dtype=torch.bfloat16),)}
    assert digest(batch) == digest({**batch, "x": torch.zeros(2, 3).T})
    other = {**batch, "z": (torch.tensor([0, 1e-30], dtype=torch.bfloat16),)}
    assert len({digest(batch), digest(other), digest({**batch, "y": [np.arange(3), 6, "text", None]})}) == 3


def test_random_states_survive_a_checkpoint(tmp_path):
    with preserved():
        seed_all(5)
        random.gauss(0, 1), np.random.randn()  # noqa: NPY002  both keep a second number
        torch.save(RandomState.now().to_plain(), tmp_path / "state.pt")
        expected = [random.gauss(0, 1), random.random(), *np.random.randn(3)]  # noqa: NPY002
        RandomState.from_plain(torch.load(tmp_path / "state.pt", weights_only=True)).restore()
        assert [random.gauss(0, 1), random.random(), *np.random.randn(3)] == expected  # noqa: NPY002
