"""The share of a rank in a batch: every example once, weights of losses that make a mean, refusals in one sentence."""

from collections import UserDict, namedtuple
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from experiments.lab import LostRank, Ranks
from experiments.lab.ranks import TIMEOUT, VARIABLES, launched, patience
from experiments.lab.sharing import is_apart, share_of
from lograd import InvalidValue

Pair = namedtuple("Pair", ["inputs", "targets"])


class Tokens(UserDict):
    """A mapping with more to it, as tokenizers return."""


def shares(batch, size):
    return [share_of(batch, Ranks(rank, size), "mine:make") for rank in range(size)]


@pytest.mark.parametrize(("examples", "size"), [(8, 2), (7, 2), (9, 4), (4, 4)])
def test_shares_have_every_example_once_and_weights_that_make_a_mean(examples, size):
    x = torch.randn(examples, 3, dtype=torch.float64)
    found = shares((x, x.sum(1)), size)
    assert torch.equal(torch.cat([one.part[0] for one in found]), x)
    assert torch.equal(torch.cat([one.part[1] for one in found]), x.sum(1))
    mean = sum(one.weight * one.part[0].mean() for one in found) / size
    assert float(mean) == pytest.approx(float(x.mean()), rel=1e-12)
    if examples % size == 0:
        assert [one.weight for one in found] == [1.0] * size


def test_a_share_has_the_form_of_its_batch():
    x = torch.arange(4)
    first, second = shares({"x": x, "y": np.arange(4), "names": ["a", "b", "c", "d"], "scale": torch.tensor(2.0)}, 2)
    assert first.part["x"].tolist() == [0, 1]
    assert second.part["y"].tolist() == [2, 3]
    assert second.part["names"] == ["c", "d"]
    assert second.part["scale"] == 2
    pair = shares(Pair(x, [x, 3]), 2)[1].part
    assert isinstance(pair, Pair)
    assert pair.targets[0].tolist() == [2, 3]
    assert pair.targets[1] == 3
    tokens = shares(Tokens(x=x), 2)[1].part
    assert isinstance(tokens, Tokens)
    assert tokens["x"].tolist() == [2, 3]


@pytest.mark.parametrize(("batch", "sentence"), [
    ((torch.zeros(4), torch.zeros(3)), "the first dimension of all tensors must be the examples, and they are 3, 4;"),
    ({"x": "text"}, "there are no tensors; return tensors"),
    ((torch.zeros(4), object()), "have an object of type object, which cannot be divided"),
    (torch.zeros(1, 5), r"has fewer examples \(1\) than the run has ranks \(2\)"),
])  # fmt: skip
def test_what_cannot_be_divided_is_refused(batch, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        share_of(batch, Ranks(0, 2), "mine:make")


def test_a_distributed_sampler_is_seen():
    data = TensorDataset(torch.zeros(8))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    assert is_apart(DataLoader(data, batch_size=2, sampler=sampler))
    assert not is_apart(DataLoader(data, batch_size=2, shuffle=True))
    assert not is_apart([data])


def test_the_place_of_a_process_is_what_torchrun_says(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert launched() == Ranks(0, 1)
    for name, value in zip(VARIABLES, ("1", "2", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert launched() == Ranks(1, 2)
    for rank in ("2", "-1", "one"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(InvalidValue, match=f"as torchrun sets them; got '{rank}' and '2'"):
            launched()


def test_only_the_loss_of_a_rank_becomes_one():
    text = "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. This is typically"
    sentence = r"rank 1 of 2 has lost another rank.*\(Connection reset by peer\)"
    with pytest.raises(LostRank, match=sentence), Ranks(1, 2).watched():
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="shapes"), Ranks(1, 2).watched():
        raise RuntimeError("shapes do not fit")
    with pytest.raises(ValueError, match="alone"), Ranks().together():
        raise ValueError("alone")


def test_the_time_out_of_a_group_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv(TIMEOUT, raising=False)
    assert patience() is None
    monkeypatch.setenv(TIMEOUT, "2.5")
    assert patience() == timedelta(seconds=2.5)
    for text in ("0", "-1", "nan", "inf", "soon", ""):
        monkeypatch.setenv(TIMEOUT, text)
        with pytest.raises(InvalidValue, match=f"must be seconds, such as 60; got {text!r}"):
            patience()
