"""Several ranks of a process group, each a process of this machine, for tests of what travels between them."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LONG = 300.0
"""Seconds in which no test should still be running."""


def run_ranks(function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 240.0) -> list[Any]:
    """Return function(rank, *arguments) of each rank of a gloo group; None for a rank that ended without a result.

    Processes are forked from a server that has imported torch and lograd once.

    Args:
        timeout: that of the process group, in seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "lograd", "lograd.wire"])
    with tempfile.TemporaryDirectory() as folder:
        children = [
            context.Process(target=_rank, args=(rank, ranks, function, folder, arguments, timeout))
            for rank in range(ranks)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(LONG)
        late = [rank for rank, child in enumerate(children) if child.is_alive()]
        for rank in late:
            children[rank].kill()
        assert not late, f"ranks {late} hang"
        paths = [Path(folder) / f"{rank}.pt" for rank in range(ranks)]
        return [torch.load(path, weights_only=False) if path.exists() else None for path in paths]


def _rank(rank: int, ranks: int, function: Callable[..., Any], folder: str, arguments: Any, timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    result = function(rank, *arguments)
    torch.save(result, Path(folder) / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()
