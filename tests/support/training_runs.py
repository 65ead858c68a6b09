"""What tests of training runs share: runs that are compared, runs that crash, settings of a user's model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from experiments.lab import Config, Run, train


def settings(model="mine:make", **changes):
    usual = {"steps": 10, "log_every": 3, "checkpoint_every": 4, "evaluate_every": 5, "threads": 1}
    return Config(model, **(usual | changes))


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def assert_same_run(one, other):
    """Weights bit for bit, metrics and counters but for times."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    runs = [Run.load(folder) for folder in (one, other)]
    lines = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.lines] for run in runs]
    assert lines[0] == lines[1]
    assert runs[0].summary["counters"] == runs[1].summary["counters"]


class Crash(Exception):
    """A process that ends in the middle."""


def crashed(config, folder, last):
    def crash(status):
        if status.step == last:
            raise Crash

    with pytest.raises(Crash):
        train(config, folder, progress=crash)
    torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002
