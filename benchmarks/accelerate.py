"""Whole training steps with `lograd.accelerate` against plain PyTorch: `./dev bench accelerate`.

Each network is trained on random data three times in one process, step by step in turns: plain, plain with weights and
images channels-last, and accelerated.  The first steps of the accelerated one are its measurement; the medians are of
the steps after the decision, and the cost of the measurement is told in plain steps.  The faster of the plain ones
counts.  `--isa avx2` holds lograd and PyTorch to AVX2, as on a CPU without VNNI, in a process of its own.
Writes benchmarks/results/accelerate-ISA.json and .md.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import lograd
from experiments.models import CharTransformer, CifarResNet, ResNet18
from lograd import native
from lograd.text import markdown

from .models import Encoder
from .timing import conditions, progress, restart, versions, write

MEASURED = 18
"""More steps than any decision takes."""


class Case(NamedTuple):
    """A network, its inputs, and the loss of its output."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    loss: Callable[[Tensor], Tensor]


def _classes(output: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.arange(len(output)) % output.shape[1])


def _characters(output: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), torch.arange(output.shape[:-1].numel()) % output.shape[-1])


def _images(batch: int, size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def _tokens(batch: int, length: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 60, (batch, length), generator=torch.Generator().manual_seed(0))


CASES = (
    Case("ResNet18, 32x32, batch 32", ResNet18, _images(32, 32), _classes),
    Case("BERT-base layer, 16 x 128", Encoder, lambda: torch.randn(16, 128, 768), lambda y: y.square().mean()),
    Case(
        "GPT of 4 layers, width 512, 8 x 128", lambda: CharTransformer(65, 512, 4, 8, 128), _tokens(8, 128), _characters
    ),
    Case("6 layers of width 384, 32 x 48", lambda: CharTransformer(65, 384, 6, 12, 48), _tokens(32, 48), _characters),
    Case("ResNet-20, width 16, 32x32, batch 128", lambda: CifarResNet(20), _images(128, 32), _classes),
)


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Return the milliseconds of a step each way, and the words of the decision."""
    torch.manual_seed(0)
    start = case.build()
    models = {name: copy.deepcopy(start) for name in ("plain", "channels last", "accelerated")}
    models["channels last"].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = case.inputs()
    inputs = dict.fromkeys(models, x)
    if x.dim() == 4:
        inputs["channels last"] = x.contiguous(memory_format=torch.channels_last)
    else:
        del models["channels last"]
    optimizers = {name: torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    with lograd.accelerate(models["accelerated"], quiet=True) as handle:
        for _ in range(MEASURED + steps):
            for name, model in models.items():
                begun = time.perf_counter()
                optimizers[name].zero_grad()
                case.loss(model(inputs[name])).backward()  # type: ignore[no-untyped-call]
                optimizers[name].step()
                if name == "accelerated":
                    handle.step()
                times[name].append(1e3 * (time.perf_counter() - begun))
        words = handle.words
    medians = {name: median(one[MEASURED:]) for name, one in times.items()}
    plain = min(value for name, value in medians.items() if name != "accelerated")
    extra = sum(max(one - plain, 0.0) for one in times["accelerated"][:MEASURED]) / plain
    return {
        "case": case.name,
        "medians": medians,
        "ratio": plain / medians["accelerated"],
        "extra": extra,
        "words": words,
    }


def main(
    threads: list[int] = typer.Option([1, 2], help="Numbers of threads, one after the other."),
    steps: int = typer.Option(15, min=3, help="Steps that count, after the decision."),
    isa: str = typer.Option("", help='"avx2" holds lograd and PyTorch to AVX2.'),
    only: str = typer.Option("", help="Cases with this in their name."),
) -> None:
    """Compare accelerated steps with plain ones."""
    restart(isa, "benchmarks.accelerate")
    jobs = [(count, case) for count in threads for case in CASES if only in case.name]
    rows = []
    for count, case in progress(jobs):
        torch.set_num_threads(count)
        rows.append({"threads": count, **measure(case, steps)})
        print(f"{case.name}, {count} threads: {rows[-1]['ratio']:.2f} | {rows[-1]['words']}", file=sys.stderr)
    used = native.status().isa
    here = conditions()
    found = {"machine": here, "isa": used, "versions": versions("torch"), "rows": rows}
    table = [
        {
            "network": row["case"],
            "threads": row["threads"],
            "plain, ms": f"{row['medians']['accelerated'] * row['ratio']:.1f}",
            "accelerated, ms": f"{row['medians']['accelerated']:.1f}",
            "times faster": f"{row['ratio']:.2f}",
            "measurement, in plain steps": f"{row['extra']:.1f}",
        }
        for row in rows
    ]
    introduction = (
        f"Medians of {steps} steps each way, in turns (`./dev bench accelerate{' --isa avx2' if isa else ''}`), on "
        f"{here['cpu']}; lograd's kernels: {used}. Plain PyTorch counts in its better layout. The last column has what "
        "the first steps take beyond plain ones."
    )
    write(f"accelerate-{used}", found, introduction, markdown(table, list(table[0])))


if __name__ == "__main__":
    typer.run(main)
