"""The example for torchrun: it learns, counts, and goes on from its checkpoint bit for bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

pytestmark = pytest.mark.slow  # processes that wait for each other

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--batch", "8", "--context", "16", "--width", "32", "--depth", "4", "--heads", "2", "--microbatches", "4"]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline", ROOT / "examples" / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Training:
    """The example, as one rank runs it."""

    def __init__(self, rank: int, arguments: list[str]) -> None:
        self.program = example()
        self.given = self.program.options([*SMALL, *arguments])
        self.text = self.program.characters()
        self.run = self.program.Run(self.given, self.program.stages_of(self.given, rank, 2, 65), rank)

    def train(self, steps: range) -> list[float]:
        """Take steps with these numbers."""
        losses = [self.run.step(*self.program.batch_of(self.text, self.given, step)) for step in steps]
        return [loss for loss in losses if loss is not None]

    @property
    def weights(self) -> list[Tensor]:
        """All parameters of this rank."""
        return [one.detach().clone() for one in self.run.modules.parameters()]


def _restarted(rank: int, folder: Path, schedule: str) -> tuple[bool, list[float]]:
    arguments = ["--schedule", schedule, "--backward", "prune85", "--forward", "int8-nearest"]
    whole, first, second = (Training(rank, arguments) for _ in range(3))
    losses = whole.train(range(16))
    first.train(range(8))
    first.run.save(folder, 8)
    torch.distributed.barrier()
    second.run.load(folder)
    second.train(range(second.run.first, 16))
    return all(torch.equal(a, b) for a, b in zip(whole.weights, second.weights, strict=True)), losses


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved"])
def test_the_example_goes_on_from_its_checkpoint(schedule: str, tmp_path: Path) -> None:
    (first, _), (second, losses) = run_ranks(_restarted, 2, tmp_path, schedule)
    assert first
    assert second
    assert losses[-1] < losses[0] - 0.3


def _plain(rank: int) -> list[list[float]]:
    ways = (["--plain"], ["--backward", "none"], ["--backward", "identity", "--forward", "identity"])
    return [Training(rank, way).train(range(4)) for way in ways]


def test_edges_that_change_nothing_train_as_plain_ones() -> None:
    plain, none, identity = run_ranks(_plain, 2)[1]
    assert plain == none == identity
    assert len(plain) == 4
