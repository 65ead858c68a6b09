"""`lograd train` under torchrun: ranks that share a batch train as one process does, and rank 0 alone writes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import ranked
import torch
import training_files as files
from training_runs import assert_same_run, weights

from lograd.training import Config, Run, resume, train

COMMON = {"steps": 6, "log_every": 2, "checkpoint_every": 4, "evaluate_every": 3, "threads": 1}

MINE = '''
import os, signal
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

INPUTS = torch.randn(44, 8, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(INPUTS, INPUTS[:, :3].argmax(1))


def accuracy(model):
    return (model(INPUTS).argmax(1) == DATA.tensors[1]).float().mean()


def network(*inside):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inside, nn.Linear(16, 3))


def dense():
    return network(), DataLoader(DATA, batch_size=16, shuffle=True), cross_entropy, None, accuracy


def noisy():
    return network(nn.BatchNorm1d(16), nn.Dropout(0.3)), *dense()[1:]


def own_share():
    sampler = DistributedSampler(DATA)
    return network(), DataLoader(DATA, batch_size=11, sampler=sampler), cross_entropy, None, accuracy


def different():
    inputs = INPUTS + float(os.environ.get("RANK", 0))
    return network(), [(inputs, DATA.tensors[1])], cross_entropy


def fails_on_one():
    def loss(output, target):
        if os.environ.get("RANK") == "1" and loss.calls == 3:
            raise ValueError("out of luck")
        loss.calls += 1
        return cross_entropy(output, target)

    loss.calls = 0
    return network(), dense()[1], loss


def dies():
    def loss(output, target):
        if os.environ.get("RANK") == "1" and loss.calls == 5 and os.path.exists("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.calls += 1
        return cross_entropy(output, target)

    loss.calls = 0
    return network(nn.Dropout(0.3)), dense()[1], loss, None, accuracy
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The current folder, with a module of a user's and a text."""
    folder, before = tmp_path_factory.mktemp("ranks"), os.getcwd()
    (folder / "shared.py").write_text(MINE)
    files.text(folder / "text.txt")
    files.images(folder / "images.npz")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    yield folder
    os.chdir(before)
    sys.path.remove(str(folder))
    sys.modules.pop("shared", None)


def _train(settings, folder):
    train(Config(**settings), folder)


def _resume(folder):
    resume(folder)


def run_on(size, place, name, **settings):
    """Train on so many ranks, into the folder of that name."""
    settings = COMMON | settings
    codes = ranked.ended(ranked.started(size, place / f"{name}-says", _train, settings, str(place / name)))
    assert codes == [0] * size, ranked.printed(place / f"{name}-says", 0)
    return Run.load(place / name)


def close(one, other):
    first, second = weights(one), weights(other)
    return all(torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-6) for name in first)


def losses(run):
    return [line["loss"] for line in run.lines if line["kind"] == "train"]


@pytest.mark.parametrize(("size", "settings"), [
    (2, {"model": "shared:dense", "lr": 0.1, "steps": 7}),  # its last batches of an epoch are divided unevenly
    (4, {"model": "charlm", "data": "text.txt", "batch": 4, "width": 8, "steps": 3}),
], ids=["own, 2", "charlm, 4"])  # fmt: skip
def test_ranks_learn_what_one_process_learns(size, settings, place):
    alone = train(Config(**(COMMON | settings)), place / f"alone{size}")
    run = run_on(size, place, f"ranks{size}", **settings)
    assert close(alone.path, run.path)
    assert losses(run) == pytest.approx(losses(alone), rel=1e-5)
    assert [line[run.metric.name] for line in run.tests] == pytest.approx(
        [line[alone.metric.name] for line in alone.tests], rel=1e-4
    )
    assert run.config.ranks == size
    assert "ranks" not in alone.record["settings"]
    assert len(run.lines) == len(alone.lines), "each line is written once"
