"""The guard at work on real networks: planted explosions, quiet runs, its cost, its noise: `./dev bench guard`.

Parts:

- planted: dense runs of several seeds give a band of losses; runs with a plan, without a guard, with one that warns and
  with one that falls back, are held against it: when the loss leaves the band, and when the guard spoke of which layer;
- quiet: a plan and a learning rate that are healthy; what the guard does after it has let the layers in;
- cost: steps with and without a guard, in turns, the first of a run and settled ones;
- noise: the guard's own figure beside `lograd.variance` at the same weights.

A finished part of a case is kept in a folder and not measured again, so that processes side by side, each with its own
`--only` network, share the work and a stopped one goes on.  Writes benchmarks/results/guard.json and guard.md, of all
parts that are finished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer

from lograd.report.environment import machine

from .guarded.cases import COST, NETWORKS, NOISE, PLANTED, QUIET, Case, Settings
from .guarded.parts import RELEASED, TURN, cost, noise, planted, quiet
from .guarded.tables import settings_in_words, tables
from .timing import versions, write

MEASURES: dict[str, tuple[tuple[Case, ...], Callable[[Case, Settings], dict[str, Any]]]] = {
    "planted": (PLANTED, planted),
    "quiet": (QUIET, quiet),
    "cost": (COST, cost),
    "noise": (NOISE, noise),
}
PARTS = tuple(MEASURES)


def main(
    parts: str = typer.Option(",".join(PARTS), help="What to measure."),
    only: str = typer.Option("", help="Networks whose name contains this."),
    case: str = typer.Option("", help="Planted cases whose name contains this."),
    steps: int = typer.Option(150, min=RELEASED + TURN, help="Steps of a run."),
    size: int = typer.Option(16, min=8, max=64, help="Pixels of the side of an image: a multiple of 8 for digits."),
    data: str = typer.Option("", help="A .npz of images (train_images, train_labels) in place of digits."),
    seeds: int = typer.Option(5, min=3, help="Dense runs of each planted case."),
    treated: int = typer.Option(3, min=1, help="Runs with a plan of each planted case and mode."),
    threads: int = typer.Option(1, min=1, max=256, help="Threads."),
    folder: Path = typer.Option(Path("runs/guard"), help="Where finished parts are kept."),
    save: bool = typer.Option(True, help="Write benchmarks/results/guard.*."),
) -> None:
    """The guard at work: planted explosions, quiet runs, its cost and its noise."""
    if unknown := set(parts.split(",")) - set(PARTS):
        raise typer.BadParameter(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    torch.set_num_threads(threads)
    settings = Settings(steps, size, seeds, treated, data)
    folder.mkdir(parents=True, exist_ok=True)
    for part in [part for part in PARTS if part in parts.split(",")]:
        cases, measure = MEASURES[part]
        for one in cases:
            path = folder / f"{part}-{one.network}-{one.recipe}-{re.sub('[^a-z0-9]+', '-', one.name)}.json"
            if only in one.network and case in one.name and not path.exists():
                network = NETWORKS[one.network].name
                row = {"part": part, **asdict(one), "network": network, **asdict(settings), **measure(one, settings)}
                path.write_text(json.dumps(row))
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = tables(rows)
    print(found)
    if save:
        what = (
            "The guard on real networks. The band of losses ends 4 standard deviations of dense runs above their mean, "
            "both of logarithms smoothed over ten steps; the first line of a case says how many dense runs leave the "
            "band of the others. Measured noise is rho; the guard's bound and figure are guard noise, the "
            "noise-to-signal ratio in the worst layer. `./dev bench guard` makes these tables. "
            f"{'; '.join(dict.fromkeys(settings_in_words(row) for row in rows))}."
        )
        content = {"what": what, "versions": versions("torch"), "machine": machine(), "rows": rows}
        write("guard", content, what, found)


if __name__ == "__main__":
    typer.run(main)
