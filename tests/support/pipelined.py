"""A small pipeline that is trained by one of torch's schedules, plain or with compressed edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from lograd.wire import CompressedStage

WIDTH, BATCH, MICROBATCHES = 32, 32, 4
CPU = torch.device("cpu")


def parts(count: int) -> list[nn.Module]:
    """The same parts of one model on every rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 1)]
    return [*layers, nn.Linear(WIDTH, WIDTH)]


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs, and targets that a small model can learn."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, x.flip(1).sin()


class Pipeline:
    """The stages of one rank, their schedule and their optimizer.

    Args:
        kind: "gpipe", "1f1b" or "interleaved", which has two stages for each rank.
        edges: arguments of CompressedStage; None makes plain stages.
    """

    def __init__(
        self, rank: int, kind: str, edges: dict[str, Any] | None, make: Callable[..., Any] | None = None
    ) -> None:
        ranks = dist.get_world_size()
        count = 2 * ranks if kind == "interleaved" else ranks
        modules = parts(count)
        make = make or (PipelineStage if edges is None else CompressedStage)
        self.stages = [make(modules[i], i, count, CPU, **(edges or {})) for i in range(rank, count, ranks)]
        loss = nn.functional.mse_loss
        if kind == "interleaved":
            self.schedule: Any = ScheduleInterleaved1F1B(self.stages, MICROBATCHES, loss)
        else:
            self.schedule = (ScheduleGPipe if kind == "gpipe" else Schedule1F1B)(self.stages[0], MICROBATCHES, loss)
        self.modules = nn.ModuleList(stage.submod for stage in self.stages)
        self.optimizer = torch.optim.SGD(self.modules.parameters(), lr=0.5, momentum=0.9)
        self.losses: list[float] = []
        self.steps = 0

    def train(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            x, target = batch(self.steps)
            losses: list[Tensor] = []
            last = self.stages[-1].is_last
            self.optimizer.zero_grad()
            inputs = (x,) if self.stages[0].is_first else ()
            self.schedule.step(*inputs, **({"target": target, "losses": losses} if last else {}))
            self.optimizer.step()
            self.steps += 1
            if last:
                self.losses.append(float(torch.stack(losses).detach().mean()))

    @property
    def weights(self) -> list[Tensor]:
        """All parameters of this rank."""
        return [one.detach().clone() for one in self.modules.parameters()]
