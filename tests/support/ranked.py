"""Processes as torchrun starts them, forked from one that has imported lograd, so that each costs next to nothing."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lograd.training", "lograd.cli"])
PATIENCE = 300.0
"""Seconds: far more than any test takes, also on a machine that is busy."""


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
