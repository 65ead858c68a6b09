"""Processes as torchrun starts them, forked from one that has imported lograd, so that each costs next to nothing."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import training_files

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["experiments.lab", "lograd.cli"])
PATIENCE = 300.0
"""Seconds: far more than any test takes, also on a machine that is busy."""
DATA = """
import os, signal
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

INPUTS = torch.randn(44, 8, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(INPUTS, INPUTS[:, :3].argmax(1))


def accuracy(model):
    return (model(INPUTS).argmax(1) == DATA.tensors[1]).float().mean()
"""
"""How a user's module begins: imports, a set of examples, and a judge of models."""


def started(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[BaseProcess]:
    """Start a function in `size` processes; what rank R prints goes to the files outR and errR of the folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(exist_ok=True)
    processes = [
        CONTEXT.Process(target=_rank, args=(rank, size, port, str(folder), os.getcwd(), function, arguments))
        for rank in range(size)
    ]
    for one in processes:
        one.start()
    return processes


def ended(processes: list[BaseProcess]) -> list[int | None]:
    """Return the exit codes, once all processes have ended."""
    deadline = time.monotonic() + PATIENCE
    for one in processes:
        one.join(max(deadline - time.monotonic(), 0))
    return [one.exitcode for one in processes]


def printed(folder: Path, rank: int) -> str:
    """Return what a rank has printed, on both streams."""
    return (folder / f"out{rank}").read_text() + (folder / f"err{rank}").read_text()


@contextmanager
def folder_with(folder: Path, module: str, text: str) -> Iterator[Path]:
    """Work in a folder with a module of a user's, which begins with `DATA`, and with a text; leave both at the end."""
    before = os.getcwd()
    (folder / f"{module}.py").write_text(f"{DATA}\n\n{text}")
    training_files.text(folder / "text.txt")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    yield folder
    os.chdir(before)
    sys.path.remove(str(folder))
    sys.modules.pop(module, None)


def train_in(folder: str, settings: dict[str, Any]) -> None:
    """Train as a rank."""
    from experiments.lab import Config, train

    train(Config(**settings), folder)


def resume_in(folder: str) -> None:
    """Go on with a run as a rank."""
    from experiments.lab import resume

    resume(folder)


def trained(size: int, folder: Path, settings: dict[str, Any]) -> Any:
    """Return a run that so many ranks have trained, into this folder."""
    from experiments.lab import Run

    says = folder.with_name(f"{folder.name}-says")
    codes = ended(started(size, says, train_in, str(folder), settings))
    assert codes == [0] * size, "".join(printed(says, rank) for rank in range(size))
    return Run.load(folder)


def command(*arguments: Any) -> None:
    """Run `lograd` with these arguments."""
    from lograd.cli import main

    sys.argv = ["lograd", *map(str, arguments)]
    main()


def _rank(
    rank: int, size: int, port: int, folder: str, place: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    os.chdir(place)
    torch.set_num_threads(1)
    function(*arguments)
