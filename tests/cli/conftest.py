"""A folder with a module of the user's, and the command line in it."""

import sys

import pytest

from lograd.cli import main

MINE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

INPUTS = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
LABELS = INPUTS[:, :3].argmax(1)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def loader():
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=8, shuffle=True)


def make():
    return {"model": network(), "batches": loader(), "loss": cross_entropy, "optimizer": None}


def three():
    return network(), loader(), cross_entropy


def five():
    return network(), loader(), cross_entropy, torch.optim.SGD, None


def broken():
    return network(), loader(), lambda x, y: 1 / 0

def raises():
    raise RuntimeError("no data")

def alone():
    return network()

def swapped():
    return loader(), network()

def epochs():
    return network(), lambda epoch: loader(), cross_entropy
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module `mine`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mine", None)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the entry point in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lograd", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return done.value.code or 0, captured.out, captured.err

    return call
