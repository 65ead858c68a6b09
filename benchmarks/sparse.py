"""The sparse backward against dense PyTorch and torch's CSR products: `./dev bench sparse`.

A case is timed in turns: dX and dW by dense PyTorch, for convolutions in both layouts, of which the faster counts; ours
with pruning and compression, at each sparsity; torch's CSR products, conversion included, where they exist.  Writes
benchmarks/results/sparse.json, sparse.md and sparse.svg.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import torch
import typer
from torch import Tensor

from lograd import ops, theory
from lograd.ops.geometry import Geometry
from lograd.plots import lines, svg
from lograd.text import markdown

from .timing import RESULTS, conditions, progress, turns, versions, write

SPARSITIES = (0.2, 0.35, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
SHOWN = (0.5, 0.8, 0.85, 0.9, 0.95)
KEY = torch.tensor([1, 0])
NEED = (True, True, False)

Call = Callable[[], object]


class Case(Protocol):
    """A line of the table.  A whole model is one, too: give its dense step and its step at a sparsity."""

    @property
    def name(self) -> str:
        """Its name in the table."""

    def dense(self) -> dict[str, Call]:
        """Calls of dense PyTorch, by the name of the layout."""

    def ours(self, sparsity: float) -> Call:
        """Our call at a sparsity."""

    def csr(self, sparsity: float) -> Call | None:
        """The call with torch's CSR products, if there is one."""


def gradient(*shape: int) -> Tensor:
    """Lognormal magnitudes, sigma of ln|g| 2, with random signs."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).mul_(2).exp_() * torch.randn(shape, generator=generator).sign_()


def threshold_for(g: Tensor, sparsity: float) -> Tensor:
    """The threshold that prunes a gradient to a sparsity."""
    return torch.tensor(float(theory.threshold(ops.log_histogram(g).law(), sparsity)))


@dataclass
class Linear:
    """A linear layer."""

    rows: int
    inputs: int
    outputs: int

    @property
    def name(self) -> str:
        return f"Linear {self.rows} x {self.inputs} -> {self.outputs}"

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.randn(self.outputs, self.inputs)
        return gradient(self.rows, self.outputs), torch.randn(self.rows, self.inputs), weight

    def dense(self) -> dict[str, Call]:
        g, x, weight = self.tensors
        return {"dense": lambda: (g @ weight, g.t() @ x)}

    def ours(self, sparsity: float) -> Call:
        threshold = threshold_for(self.tensors[0], sparsity)
        return lambda: ops.sparse_linear_backward(*self.tensors, threshold, KEY, NEED)

    def csr(self, sparsity: float) -> Call | None:
        g, x, weight = self.tensors
        pruned = ops.stochastic_prune(g, threshold_for(g, sparsity), KEY)
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return lambda: (pruned.to_sparse_csr() @ weight, pruned.t().contiguous().to_sparse_csr() @ x)


@dataclass
class Convolution:
    """A convolution."""

    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    channels_last: bool = True

    @property
    def name(self) -> str:
        layout = "" if self.channels_last else ", NCHW"
        channels = f"{self.inputs} -> {self.outputs}, {self.size}x{self.size}, batch {self.batch}"
        return f"Conv {self.kernel}x{self.kernel}{'/2' * (self.stride == 2)} {channels}{layout}"

    @cached_property
    def geometry(self) -> Geometry:
        around = self.kernel // 2
        return Geometry((self.stride, self.stride), (around, around), (1, 1))

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(self.batch, self.inputs, self.size, self.size)
        weight = torch.randn(self.outputs, self.inputs, self.kernel, self.kernel)
        stride, padding, dilation, groups = self.geometry
        return gradient(*torch.conv2d(x, weight, None, stride, padding, dilation, groups).shape), x, weight

    def dense(self) -> dict[str, Call]:
        stride, padding, dilation, groups = self.geometry

        def call(g: Tensor, x: Tensor, weight: Tensor) -> object:
            return torch.ops.aten.convolution_backward.default(
                g, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, True, False]
            )

        last = self._in(torch.channels_last)
        return {"dense, NCHW": lambda: call(*self.tensors), "dense, channels last": lambda: call(*last)}

    def ours(self, sparsity: float) -> Call:
        g, x, weight = self._in(torch.channels_last) if self.channels_last else self.tensors
        threshold = threshold_for(g, sparsity)
        return lambda: ops.sparse_convolution_backward(g, x, weight, threshold, KEY, self.geometry, NEED)

    def csr(self, sparsity: float) -> Call | None:
        return None  # torch has no sparse convolution

    def _in(self, format: torch.memory_format) -> tuple[Tensor, Tensor, Tensor]:
        g, x, weight = (tensor.contiguous(memory_format=format) for tensor in self.tensors)
        return g, x, weight


CASES: list[Case] = [
    Linear(2048, 768, 3072),
    Linear(2048, 3072, 768),
    Linear(4096, 256, 256),
    Convolution(32, 64, 64, 32, 3),
    Convolution(32, 128, 128, 16, 3),
    Convolution(32, 256, 256, 8, 3),
    Convolution(64, 512, 512, 4, 3),
    Convolution(32, 64, 128, 32, 3, stride=2),
    Convolution(16, 1024, 256, 14, 1),
    Convolution(16, 256, 1024, 14, 1),
    Convolution(32, 64, 64, 32, 3, channels_last=False),
    Convolution(32, 256, 256, 8, 3, channels_last=False),
    Convolution(16, 1024, 256, 14, 1, channels_last=False),
]


def measure(case: Case, sparsities: Iterable[float], repeats: int) -> dict[str, Any]:
    """The times of a case at each sparsity."""
    dense = case.dense()
    calls = dict(dense)
    for sparsity in sparsities:
        calls[f"lograd {sparsity:g}"] = case.ours(sparsity)
        csr = case.csr(sparsity) if sparsity in SHOWN else None
        if csr is not None:
            calls[f"CSR {sparsity:g}"] = csr
    for call in calls.values():
        call()  # first calls allocate
    times = turns(calls, repeats)
    minima = {name: min(values) for name, values in times.items()}
    middle = {name: median(values) for name, values in times.items()}

    def ratios(of: dict[str, float]) -> dict[str, float]:
        best = min(of[name] for name in dense)
        return {name: round(best / value, 3) for name, value in of.items() if name not in dense}

    return {
        "case": case.name,
        "threads": torch.get_num_threads(),
        "minimum ms": {name: round(value, 3) for name, value in minima.items()},
        "median ms": {name: round(value, 3) for name, value in middle.items()},
        "speed-up by minima": ratios(minima),
        "speed-up by medians": ratios(middle),
    }


def curve(row: dict[str, Any], who: str = "lograd") -> tuple[list[float], list[float]]:
    """Speed-ups of a case over sparsity."""
    points = [(float(name.split()[1]), ratio) for name, ratio in row["speed-up by minima"].items() if who in name]
    return [point[0] for point in points], [point[1] for point in points]


def break_even(row: dict[str, Any]) -> float | None:
    """The sparsity where the speed-up passes one, between two that were measured; the lowest one if all are faster."""
    x, y = curve(row)
    if y[0] >= 1:
        return x[0]
    for place in range(1, len(x)):
        if y[place] >= 1:
            share = (1 - y[place - 1]) / (y[place] - y[place - 1])
            return round(x[place - 1] + share * (x[place] - x[place - 1]), 3)
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Speed-ups of all cases."""
    lines = []
    for row in rows:
        best = min(value for name, value in row["minimum ms"].items() if name.startswith("dense"))
        line = {"layer": row["case"], "threads": row["threads"], "dense ms": f"{best:.1f}"}
        even = break_even(row)
        for sparsity in SHOWN:
            ratios = [row[f"speed-up by {kind}"].get(f"lograd {sparsity:g}") for kind in ("minima", "medians")]
            if None not in ratios:
                line[f"{sparsity:.0%}"] = " / ".join(f"{ratio:.1f}" for ratio in ratios)
        line["CSR 90%"] = f"{row['speed-up by minima'].get('CSR 0.9', float('nan')):.2f}".replace("nan", "")
        line["break-even"] = "" if even is None else f"{'<= ' * (even == curve(row)[0][0])}{even:.0%}"
        lines.append(line)
    columns = ["layer", "threads", "dense ms", *(f"{sparsity:.0%}" for sparsity in SHOWN), "CSR 90%", "break-even"]
    return markdown(lines, columns)


def drawing(rows: list[dict[str, Any]]) -> str:
    """Return the figure of speed-ups over sparsity, as SVG."""
    one = [row for row in rows if row["threads"] == 1 and "NCHW" not in row["case"]]
    chosen = [row for row in one if row["case"] in {case.name for case in (CASES[0], CASES[3], CASES[5], CASES[8])}]
    series = {row["case"]: curve(row) for row in chosen}
    sparse = [row for row in chosen[:1] if len(curve(row, "CSR")[0])]
    series |= {f"torch CSR, {row['case']}": curve(row, "CSR") for row in sparse}
    series["dense"] = ([0.5, 1.0], [1.0, 1.0])
    style = {name: "--" if name == "dense" or name.startswith("torch") else "o-" for name in series}
    title = "Backward with a pruned gradient, one thread"
    return svg(lines(series, title, "zeros in the gradient", "speed-up over dense PyTorch", log="y", style=style))


def main(
    quick: bool = typer.Option(False, help="Fewer repeats and sparsities, one thread."),
    threads: int = typer.Option(2, min=1, max=256, help="Measure with 1 thread and with this many."),
    repeats: int = typer.Option(0, min=0, help="Turns; 0 chooses 7, or 3 with --quick."),
    only: str = typer.Option("", help="Cases whose name contains this."),
    save: bool = typer.Option(True, help="Write benchmarks/results/sparse.* (never with --quick or --only)."),
) -> None:
    """Speed-up of prune + compress + dX + dW over dense dX + dW."""
    cases = [case for case in CASES if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no case contains {only!r}; there are: {', '.join(case.name for case in CASES)}")
    rows = []
    for count, case in progress(
        [(count, case) for case in cases for count in ([1] if quick else sorted({1, threads}))]
    ):
        torch.set_num_threads(count)
        rows.append(measure(case, SHOWN if quick else SPARSITIES, repeats or (3 if quick else 7)))
    what = (
        "Speed-up of a pruned backward (prune, compress, dX, dW) over dense dX and dW of PyTorch in its better layout, "
        "by share of zeros: of minima / of medians of interleaved turns in one process. CSR: torch's sparse products, "
        "conversion included, without pruning. Break-even: where the speed-up of minima passes one. "
        "`./dev bench sparse` makes this table."
    )
    text = table(rows)
    print(text)
    if save and not quick and not only:
        result = {"what": what, "versions": versions("torch"), "machine": conditions(), "rows": rows}
        write("sparse", result, what, text + "\n\n![speed-up over sparsity](sparse.svg)")
        (RESULTS / "sparse.svg").write_text(drawing(rows))


if __name__ == "__main__":
    typer.run(main)
