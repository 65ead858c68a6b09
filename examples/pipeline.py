"""A character transformer over the stages of a pipeline, with plain or with compressed edges.

    torchrun --nproc-per-node 2 examples/pipeline.py --backward prune90 --forward int8-nearest
    torchrun --nproc-per-node 2 examples/pipeline.py --plain

Two machines: run the same command on both with --nnodes 2 --rdzv-endpoint HOST:PORT.  The schedule is PyTorch's own;
only what travels between stages is lograd's.  At the end each rank prints a line of JSON: the loss, the time of a step,
and what crossed each edge.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from lograd.wire import CompressedStage

PLAY = Path(__file__).resolve().parents[1] / "experiments" / "data" / "romeo.txt.gz"


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line, or those given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="torch's PipelineStage, without lograd")
    parser.add_argument("--backward", default="prune90", help="what is done to gradients; 'none' sends plain tensors")
    parser.add_argument("--forward", default="none", help="the same for activations, such as int8-nearest")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    for name, value in (("steps", 50), ("microbatches", 4), ("batch", 16), ("context", 64), ("width", 128),
                        ("depth", 4), ("heads", 4), ("seed", 0), ("threads", 1)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--checkpoint", type=Path, help="a folder: go on from what is there, and save there at the end")
    return parser.parse_args(arguments)


class Embedded(nn.Module):
    """Tokens and their positions as vectors."""

    def __init__(self, tokens: int, width: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a vector for each token."""
        result: Tensor = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return result


class Causal(nn.TransformerEncoderLayer):
    """A layer of a transformer that looks at the tokens before only."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return a vector for each token."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return super().forward(x, src_mask=mask, is_causal=True)


def parts_of(given: argparse.Namespace, count: int, tokens: int) -> list[nn.Module]:
    """Return a transformer, cut into parts with about as many layers each."""
    width = given.width
    layers = [Causal(width, given.heads, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(given.depth)]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, tokens))
    chain = [Embedded(tokens, width, given.context), *layers, head]
    ends = [round(len(chain) * part / count) for part in range(count + 1)]
    return [nn.Sequential(*chain[start:end]) for start, end in pairwise(ends)]


def stages_of(given: argparse.Namespace, rank: int, ranks: int, tokens: int) -> list[Any]:
    """Return the stages of this rank; every rank makes the same model and keeps its parts."""
    torch.manual_seed(given.seed)
    count = ranks * (2 if given.schedule == "interleaved" else 1)
    parts, cpu = parts_of(given, count, tokens), torch.device("cpu")
    made = []
    for index in range(rank, count, ranks):
        part = parts[index]
        if given.plain:
            made.append(PipelineStage(part, index, count, cpu))
        else:
            plans = {
                name: None if (plan := getattr(given, name)) == "none" else plan for name in ("backward", "forward")
            }
            made.append(CompressedStage(part, index, count, cpu, seed=given.seed, **plans))
    return made


def schedule_of(given: argparse.Namespace, stages: list[Any]) -> Any:
    """Return one of torch's schedules."""

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    if given.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, given.microbatches, loss)
    return (ScheduleGPipe if given.schedule == "gpipe" else Schedule1F1B)(stages[0], given.microbatches, loss)


def characters() -> Tensor:
    """Return a play as token numbers."""
    play = gzip.decompress(PLAY.read_bytes()).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(play)))}
    return torch.tensor([numbers[character] for character in play])


def batch_of(text: Tensor, given: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of a step, and those that follow each; the same on every rank."""
    generator = torch.Generator().manual_seed(1_000_003 * given.seed + step)
    starts = torch.randint(0, len(text) - given.context - 1, (given.batch,), generator=generator)
    pieces = torch.stack([text[start : start + given.context + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


class Run:
    """The stages of a rank in training, with their optimizer and checkpoint."""

    def __init__(self, given: argparse.Namespace, stages: list[Any], rank: int) -> None:
        self.given, self.stages, self.rank, self.first = given, stages, rank, 0
        self.schedule = schedule_of(given, stages)
        self.modules = nn.ModuleList(stage.submod for stage in stages)
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=1e-3)

    def step(self, x: Tensor, target: Tensor) -> float | None:
        """Take a step; return the loss where this rank has the last stage."""
        losses: list[Tensor] = []
        inputs = (x,) if self.stages[0].is_first else ()
        last = {"target": target, "losses": losses} if self.stages[-1].is_last else {}
        self.optimizer.zero_grad()
        self.schedule.step(*inputs, **last, return_outputs=False)
        self.optimizer.step()
        return float(torch.stack(losses).detach().mean()) if losses else None

    def save(self, folder: Path, steps: int) -> None:
        """Write a file for this rank, whole or not at all; rank 0 names the step when all files are there."""
        folder.mkdir(parents=True, exist_ok=True)
        states = [stage.state_dict() for stage in self.stages if isinstance(stage, CompressedStage)]
        state = {"modules": self.modules.state_dict(), "optimizer": self.optimizer.state_dict(), "stages": states}
        path = folder / f"rank{self.rank}.step{steps}.pt"
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
        dist.barrier()
        if self.rank == 0:
            (folder / "latest.new").write_text(str(steps))
            os.replace(folder / "latest.new", folder / "latest")

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, if there is one."""
        if not (folder / "latest").exists():
            return
        self.first = int((folder / "latest").read_text())
        state = torch.load(folder / f"rank{self.rank}.step{self.first}.pt", weights_only=True)
        self.modules.load_state_dict(state["modules"])
        self.optimizer.load_state_dict(state["optimizer"])
        for stage, saved in zip(self.stages, state["stages"], strict=True):
            stage.load_state_dict(saved)


def main() -> None:
    """Train, and print what it took."""
    given = options()
    torch.set_num_threads(given.threads)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = characters()
    run = Run(given, stages_of(given, rank, ranks, int(text.max()) + 1), rank)
    if given.checkpoint is not None:
        run.load(given.checkpoint)
    losses, times = [], []
    for step in range(run.first, run.first + given.steps):
        start = time.perf_counter()
        loss = run.step(*batch_of(text, given, step))
        times.append(time.perf_counter() - start)
        if loss is not None:
            losses.append(loss)
            if step % 10 == 0:
                print(f"step {step}: loss {loss:.4f}", flush=True)
    if given.checkpoint is not None:
        run.save(given.checkpoint, run.first + given.steps)
    edges = {name: one.to_json() for stage in run.stages if isinstance(stage, CompressedStage)
             for name, one in stage.counters().items()}  # fmt: skip
    middle = sorted(times)[len(times) // 2]
    found = {
        "rank": rank,
        "step_seconds": middle,
        "tokens_per_second": given.batch * given.context / middle,
        "edges": edges,
    }
    print(json.dumps(found | ({"losses": losses} if losses else {})), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
