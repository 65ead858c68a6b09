"""Products, layers and training steps in 4- to 8-bit integers against FP32 and peers: `./dev bench integer`.

All ways of a case take turns in one process.  FP32 counts in its better layout.  Peers are torch._int_mm and
bfloat16; `./dev bench against` has those of other libraries.  `--isa avx2` keeps lograd and PyTorch to the instructions
of an older CPU.  Writes benchmarks/results/integer.json and integer.md, or integer-avx2.*.
"""

from __future__ import annotations

import sys

import torch
import typer

from .low_bit import layers, products, steps
from .low_bit.cases import Case, measure
from .low_bit.tables import tables
from .timing import conditions, progress, restart, versions, write


def main(
    quick: bool = typer.Option(False, help="Small shapes, one thread, few turns: shows that all of it runs."),
    threads: int = typer.Option(2, min=1, max=256, help="Measure with 1 thread and with this many."),
    repeats: int = typer.Option(0, min=0, help="Turns; 0 chooses 9, or 2 with --quick."),
    only: str = typer.Option("", help="Cases whose section and name contain this."),
    isa: str = typer.Option("", help="Keep lograd and PyTorch to this instruction set: avx2."),
    save: bool = typer.Option(True, help="Write benchmarks/results/integer.* (never with --quick or --only)."),
) -> None:
    """Speed-up of products, layers and whole steps in integers over FP32."""
    restart(isa, "benchmarks.integer")
    everything: list[Case] = [*products.cases(quick), *layers.cases(quick), *steps.cases(quick)]
    cases = [case for case in everything if only in f"{case.section}: {case.name}"]
    if not cases:
        names = "; ".join(f"{case.section}: {case.name}" for case in everything)
        raise typer.BadParameter(f"no case contains {only!r}; there are: {names}")
    where, with_what = conditions(), versions("torch")
    for name, value in {**with_what, **where}.items():
        print(f"{name}: {' '.join(value) if isinstance(value, list) else value}", file=sys.stderr)
    rows = []
    for count, case in progress(
        [(count, case) for case in cases for count in ([1] if quick else sorted({1, threads}))]
    ):
        torch.set_num_threads(count)
        rows.append(measure(case, repeats or (2 if quick else 9)))
        print(tables(rows[-1:]), file=sys.stderr)
    what = (
        "Speed-up over FP32 of PyTorch in its better layout, of minima / of medians of interleaved turns in one "
        f"process. `./dev bench integer{f' --isa {isa}' * bool(isa)}` makes these tables."
    )
    text = tables(rows)
    print(text)
    if save and not quick and not only:
        name = f"integer-{isa}" if isa else "integer"
        command = f"./dev bench integer{f' --isa {isa}' * bool(isa)}"
        write(
            name, {"what": what, "command": command, "versions": with_what, "machine": where, "rows": rows}, what, text
        )
    failed = {f"{row['case']}: {name}" for row in rows for name in row["failed"]}
    if failed:
        print(f"did not run: {'; '.join(sorted(failed))}", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
