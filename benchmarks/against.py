"""This checkout against another one of lograd: `./dev bench against /path/to/other/.venv/bin/python`.

Each of the two runs in a process of its own, with the package and the compiled module of its checkout, and measures a
case when it is told to; cases and checkouts take turns, so that a disturbance hits both.  The cases use public names
only, which both checkouts must have.  Writes benchmarks/results/against.json and against.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import IO, Annotated, Any

import torch
import typer
from torch import nn

Call = Callable[[], object]


def elementwise() -> dict[str, Call]:
    """Operators on four million elements."""
    import lograd
    from lograd import ops

    torch.manual_seed(0)
    x = torch.randn(2**22) * torch.exp(2 * torch.randn(2**22))
    rows, format = x.view(4096, 1024), lograd.FloatFormat(exponent=4, mantissa=1)
    mx: Any = lograd.parse_format("mxfp4")
    one = x[:1].clone()
    return {
        "prune": lambda: ops.stochastic_prune(x, 1.0),
        "fp6 nearest": lambda: ops.quantize(x, format, 0.1, "nearest"),
        "fp6 stochastic": lambda: ops.quantize(x, format, 0.1, "stochastic"),
        "int8 per sample": lambda: ops.quantize_per_sample(rows, 8),
        "int4 per sample, packed": lambda: ops.pack_per_sample(rows, 4),
        "mxfp4 blocks": lambda: ops.quantize_blocks(rows, mx),
        "histogram": lambda: ops.log_histogram(x),
        "k-th magnitude": lambda: ops.kth_magnitude(x, 2**21),
        "Hadamard": lambda: ops.hadamard(rows, 64, 0),
        "prune, one element": lambda: ops.stochastic_prune(one, 1.0),
    }


def _backward(layer: nn.Module, x: torch.Tensor) -> Call:
    """The backward of a layer with pruned gradients, again and again on one graph."""
    x = x.requires_grad_()
    y = layer(x)
    g = torch.randn_like(y) * torch.exp(2 * torch.randn_like(y))
    return lambda: torch.autograd.grad(y, [x, *layer.parameters()], g, retain_graph=True)


def sparse() -> dict[str, Call]:
    """The backward of single layers at 85 % zeros, by sparse products."""
    import lograd

    torch.manual_seed(0)
    image = torch.randn(32, 64, 32, 32).to(memory_format=torch.channels_last)
    made = {
        "sparse linear 768 -> 3072": (nn.Linear(768, 3072), torch.randn(1024, 768)),
        "sparse 3x3, 64 channels": (nn.Conv2d(64, 64, 3, padding=1), image),
        "sparse 1x1, 256 -> 64": (nn.Conv2d(256, 64, 1), torch.randn(16, 256, 14, 14)),
    }
    cases = {}
    for name, (layer, x) in made.items():
        handle = lograd.attach(layer, lograd.Plan.uniform("prune85"), backend="sparse")
        call = _backward(layer, x)
        call()
        handle.step()
        cases[name] = call
    return cases


def steps() -> dict[str, Call]:
    """Whole training steps of a ResNet-20 and of a ResNet-18 of half the width."""
    import lograd
    from experiments.models import CifarResNet, ResNet18

    cases: dict[str, Call] = {}
    for name, make, batch, recipe, backend in (
        ("ResNet-20, identity", lambda: CifarResNet(20), 32, "identity", "dense"),
        ("ResNet-20, fp6", lambda: CifarResNet(20), 32, "fp6", "dense"),
        ("ResNet-20, prune85", lambda: CifarResNet(20), 32, "prune85", "dense"),
        ("ResNet-18, prune85, sparse", lambda: ResNet18(width=32), 16, "prune85", "sparse"),
    ):
        torch.manual_seed(0)
        model, images = make(), torch.randn(batch, 3, 32, 32)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        handle = lograd.attach(model, lograd.Plan.uniform(recipe), backend=backend)  # type: ignore[arg-type]

        def step(model: Any = model, x: Any = images, optimizer: Any = optimizer, handle: Any = handle) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            handle.step()

        for _ in range(25):  # statistics are taken in each of the first twenty
            step()
        cases[name] = step
    return cases


GROUPS: dict[str, Callable[[], dict[str, Call]]] = {"elementwise": elementwise, "sparse": sparse, "steps": steps}
LEAST = 0.05
"""Seconds that a turn takes at least."""


def work(group: str) -> None:
    """Measure what standard input names, a line each; the answer is seconds of one call."""
    torch.set_num_threads(1)
    cases = GROUPS[group]()
    print(json.dumps(list(cases)), flush=True)
    calls: dict[str, int] = {}
    for line in sys.stdin:
        case = cases[line.strip()]
        if line not in calls:
            case()
            start = time.perf_counter()
            case()
            calls[line] = max(1, round(LEAST / max(time.perf_counter() - start, 1e-7)))
        start = time.perf_counter()
        for _ in range(calls[line]):
            case()
        print((time.perf_counter() - start) / calls[line], flush=True)


def _started(python: str, group: str) -> subprocess.Popen[str]:
    command = [python, str(Path(__file__).resolve()), "--work", group]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def compare(old: str, new: str, group: str, repeats: int, starts: int) -> list[dict[str, Any]]:
    """Return the times of each case of a group, old and new in turns.

    Where memory lies decides some cases, and differs from process to process, so the processes are started several
    times.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(starts):
        workers = {"old": _started(old, group), "new": _started(new, group)}
        names, _ = (json.loads(_stream(one.stdout).readline()) for one in workers.values())
        for turn in range(repeats + 1):
            for name in names:
                taken = times.setdefault(name, {"old": [], "new": []})
                for which, worker in sorted(workers.items(), reverse=bool(turn % 2)):
                    print(name, file=_stream(worker.stdin), flush=True)
                    seconds = float(_stream(worker.stdout).readline())
                    if turn:  # the first turn warms up
                        taken[which].append(seconds)
        for worker in workers.values():
            _stream(worker.stdin).close()
            worker.wait()
    return [
        {
            "group": group, "case": name, "old": min(taken["old"]), "new": min(taken["new"]),
            "ratio": min(taken["new"]) / min(taken["old"]),
            "median ratio": median(taken["new"]) / median(taken["old"]),
        }
        for name, taken in times.items()
    ]  # fmt: skip


def main(
    python: Annotated[str, typer.Argument(help="The Python of the other checkout's environment.")] = "",
    repeats: Annotated[int, typer.Option(help="Turns of each case in a process.")] = 6,
    starts: Annotated[int, typer.Option(help="How often the processes are started.")] = 4,
    only: Annotated[str | None, typer.Option(help="One group: " + ", ".join(GROUPS))] = None,
    work_on: Annotated[str | None, typer.Option("--work", hidden=True)] = None,
) -> None:
    """Measure this checkout against another one."""
    if work_on is not None:
        work(work_on)
        return
    if not Path(python).is_file():
        raise typer.BadParameter(f"the Python of another checkout is needed; there is no file {python!r}")
    from benchmarks.timing import versions, write
    from lograd.report.environment import machine
    from lograd.report.text import markdown

    groups = GROUPS if only is None else {only: GROUPS[only]}
    rows = [row for group in groups for row in compare(python, sys.executable, group, repeats, starts)]
    shown = [
        {
            "case": row["case"], "old, ms": f"{1e3 * row['old']:.4g}", "new, ms": f"{1e3 * row['new']:.4g}",
            "new / old": f"{row['ratio']:.3f}", "of medians": f"{row['median ratio']:.3f}",
        }
        for row in rows
    ]  # fmt: skip
    table = markdown(shown, list(shown[0]))
    print(table)
    introduction = (
        "Minima of interleaved turns in several pairs of processes, one thread, and the ratio of medians beside them. "
        "Regenerate with "
        "`./dev bench against /path/to/other/.venv/bin/python`."
    )
    if only is None:
        write("against", {"versions": versions("torch"), "machine": machine(), "rows": rows}, introduction, table)


if __name__ == "__main__":
    typer.run(main)
