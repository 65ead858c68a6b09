"""The operators against memcpy and against what people use today: `./dev bench ops`.

Every case is measured in turns with a copy of the same tensor and with its peers, in one process; what is reported are
ratios of medians.  All make a new tensor, the copy too.  Writes benchmarks/results/ops.json and ops.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
import typer
from torch import Tensor

from lograd import ops, theory
from lograd.formats import CATALOGUE, FloatFormat, IntFormat
from lograd.text import markdown

from .timing import conditions, medians, progress, versions, write

SPARSITY = 0.9
E4M3, E4M1, INT8, INT4 = FloatFormat(4, 3), FloatFormat(4, 1), IntFormat(8), IntFormat(4)
MXFP4: Any = CATALOGUE["mxfp4"]
NVFP4: Any = CATALOGUE["nvfp4"]
COMPILED, QPYTORCH = "inductor", "QPyTorch"

Call = Callable[[], object]


class Data:
    """Lognormal magnitudes with random signs, sigma of ln|x| 3: the gradient of the KERNELS tables."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.size = size
        self.x = torch.randn(size, generator=generator).mul_(3).exp_()
        self.x *= torch.randn(size, generator=generator).sign_()
        self.k = max(1, round((1 - SPARSITY) * size))

    @cached_property
    def threshold(self) -> float:
        """The threshold that prunes the tensor to SPARSITY."""
        return float(theory.threshold(ops.log_histogram(self.x).law(), SPARSITY))

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The tensor as an array."""
        return self.x.numpy()

    @property
    def rows(self) -> Tensor:
        """As a matrix with rows of at most 1024 elements."""
        return self.x.view(-1, min(self.size, 1024))


# --------------------------------------------------------------------------- how a user would write it in plain PyTorch


def plain_histogram(x: Tensor) -> Tensor:
    """A histogram of exponents in plain PyTorch."""
    return torch.bincount((x.view(torch.int32) & 0x7FFFFFFF) >> 19, minlength=4096)


def plain_stochastic_prune(x: Tensor, a: float) -> Tensor:
    """Stochastic pruning in plain PyTorch."""
    m = x.abs()
    return torch.where(m > a, x, torch.where(m > torch.rand_like(x) * a, torch.sign(x) * a, 0.0))


def plain_threshold_prune(x: Tensor, t: float) -> Tensor:
    """Pruning by a threshold in plain PyTorch."""
    return torch.where(x.abs() > t, x, 0.0)


def plain_dither(x: Tensor, step: float) -> Tensor:
    """Dithered rounding in plain PyTorch."""
    return torch.floor(x / step + torch.rand_like(x)) * step


def plain_float(x: Tensor, format: FloatFormat, stochastic: bool) -> Tensor:
    """Rounding to a float format in plain PyTorch."""
    exponent = (torch.frexp(x).exponent - 1).clamp(min=format.emin) - format.mantissa
    step = torch.ldexp(torch.ones_like(x), exponent)
    steps = x / step
    rounded = torch.floor(steps + torch.rand_like(x)) if stochastic else torch.round(steps)
    return (rounded * step).clamp(-format.max, format.max)


def plain_integer(x: Tensor, format: IntFormat, scale: float) -> Tensor:
    """Rounding to integers in plain PyTorch."""
    return torch.floor(x * scale + torch.rand_like(x)).clamp(format.min, format.max) / scale


def plain_per_sample(x: Tensor, bits: int) -> Tensor:
    """Rounding to integers with a scale for each row, in plain PyTorch."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = (2**bits - 1) / (high - low).clamp(min=1e-8)
    rounded: Tensor = torch.floor((x - low) * scale + torch.rand_like(x)).clamp(0, 2**bits - 1) / scale + low
    return rounded


# ------------------------------------------------------------------------------------------------------------ the peers


class Peers:
    """Peers that have to be built first, each once; `notes` says which could not be and why."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.notes: dict[str, str] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        if quick:
            self.notes = {COMPILED: "left out by --quick", QPYTORCH: "left out by --quick"}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function compiled by torch.compile; None where that is left out."""
        if COMPILED in self.notes:
            return None
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function)
        return self._compiled[function]

    @cached_property
    def qpytorch(self) -> Any:
        """Compiles itself when imported, which takes a minute the first time and may fail with a new torch."""
        if QPYTORCH in self.notes:
            return None
        try:
            import qtorch.quant
        except ModuleNotFoundError:
            self.notes[QPYTORCH] = "not installed (.venv/bin/pip install -c constraints.txt qtorch)"
            return None
        except Exception as error:  # a failed build may raise anything
            self.notes[QPYTORCH] = f"cannot be used here: {str(error).strip().splitlines()[0]}"
            return None
        return qtorch.quant

    def of(self, case: Case, data: Data) -> dict[str, Call]:
        """The peers that exist for an operator."""
        found: dict[str, Call] = {}
        if case.plain is not None:
            function, arguments = (
                case.plain[0],
                tuple(value(data) if callable(value) else value for value in case.plain[1:]),
            )
            found["plain PyTorch"] = partial(function, data.x, *arguments)
            if (compiled := self.compiled(function)) is not None:
                found[COMPILED] = partial(compiled, data.x, *arguments)
        if case.qpytorch is not None and (module := self.qpytorch) is not None:
            name, options = case.qpytorch
            found[QPYTORCH] = partial(getattr(module, name), data.x, **options)
        for name, peer in case.others.items():
            found[name] = partial(peer, data)
        return found


# ------------------------------------------------------------------------------------------------------------ the cases


@dataclass(frozen=True)
class Case:
    """One line of the table.

    `plain` is a function of x and its further arguments, which may depend on the data; it is also compiled by inductor.
    """

    name: str
    ours: Callable[[Data], object]
    plain: tuple[Any, ...] | None = None
    qpytorch: tuple[str, dict[str, Any]] | None = None
    others: dict[str, Callable[[Data], object]] = field(default_factory=dict)


def q_float(exponent: int, mantissa: int, rounding: str) -> tuple[str, dict[str, Any]]:
    """The name and arguments of QPyTorch's rounding to a float format."""
    return "float_quantize", {"exp": exponent, "man": mantissa, "rounding": rounding}


def q_fixed(bits: int) -> tuple[str, dict[str, Any]]:
    """The name and arguments of QPyTorch's rounding to fixed point."""
    return "fixed_point_quantize", {"wl": bits, "fl": 1, "rounding": "stochastic"}


SELECT: dict[str, Callable[[Data], object]] = {
    "np.partition": lambda d: np.partition(np.abs(d.array), d.size - d.k)[d.size - d.k],
    "torch.kthvalue": lambda d: torch.kthvalue(d.x.abs(), d.size + 1 - d.k).values,
}
FLOAT8: dict[str, Callable[[Data], object]] = {
    "torch float8 cast": lambda d: d.x.to(torch.float8_e4m3fn).float(),
    "ml_dtypes cast": lambda d: d.array.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
}

CASES = [
    Case("log_histogram", lambda d: ops.log_histogram(d.x), (plain_histogram,)),
    Case("log_histogram, 1 % sample", lambda d: ops.log_histogram(d.x, 0.01), (plain_histogram,)),
    Case(
        "stochastic_prune", lambda d: ops.stochastic_prune(d.x, d.threshold, 1),
        (plain_stochastic_prune, lambda d: d.threshold),
    ),
    Case(
        "threshold_prune", lambda d: ops.threshold_prune(d.x, d.threshold),
        (plain_threshold_prune, lambda d: d.threshold),
    ),
    Case("kth_magnitude", lambda d: ops.kth_magnitude(d.x, d.k), others=SELECT),
    Case("dither", lambda d: ops.dither(d.x, 0.5, 1), (plain_dither, 0.5)),
    Case(
        "quantize 1-4-3 nearest", lambda d: ops.quantize(d.x, E4M3),
        (plain_float, E4M3, False), q_float(4, 3, "nearest"), FLOAT8,
    ),
    Case(
        "quantize 1-4-3 stochastic", lambda d: ops.quantize(d.x, E4M3, 1.0, "stochastic", 1),
        (plain_float, E4M3, True), q_float(4, 3, "stochastic"),
    ),
    Case(
        "quantize 1-4-1 nearest", lambda d: ops.quantize(d.x, E4M1),
        (plain_float, E4M1, False), q_float(4, 1, "nearest"),
    ),
    Case(
        "quantize 1-4-1 stochastic", lambda d: ops.quantize(d.x, E4M1, 1.0, "stochastic", 1),
        (plain_float, E4M1, True), q_float(4, 1, "stochastic"),
    ),
    Case(
        "quantize int8 stochastic", lambda d: ops.quantize(d.x, INT8, 2.0, "stochastic", 1),
        (plain_integer, INT8, 2.0), q_fixed(8),
    ),
    Case(
        "quantize int4 stochastic", lambda d: ops.quantize(d.x, INT4, 2.0, "stochastic", 1),
        (plain_integer, INT4, 2.0), q_fixed(4),
    ),
    Case("int8 per tensor", lambda d: ops.quantize_per_tensor(d.rows, 8, seed=1)),
    Case(
        "int8 per sample", lambda d: ops.quantize_per_sample(d.rows, 8, seed=1),
        others={"plain PyTorch": lambda d: plain_per_sample(d.rows, 8)},
    ),
    Case(
        "int4 per sample, packed", lambda d: ops.pack_per_sample(d.rows, 4, seed=1),
        others={"plain PyTorch": lambda d: plain_per_sample(d.rows, 4)},
    ),
    Case(
        "int8 block Householder",
        lambda d: ops.quantize_block_householder(d.rows, 8, seed=1),
    ),
    Case("int4 clipped interval", lambda d: ops.quantize_interval(d.rows, 4, seed=1)),
    Case("LUQ, 4 bits", lambda d: ops.luq(d.x, 4, seed=1)),
    Case("mxfp4 nearest", lambda d: ops.quantize_blocks(d.rows, MXFP4)),
    Case(
        "nvfp4 stochastic",
        lambda d: ops.quantize_blocks(d.rows, NVFP4, "stochastic", seed=1),
    ),
    Case("random Hadamard, block 64", lambda d: ops.hadamard(d.rows, 64, 1)),
    Case("1-4-3 codes, one byte", lambda d: ops.quantize_codes(d.x, E4M3)),
]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- running


def measure(case: Case, data: Data, peers: Peers, repeats: int) -> dict[str, Any]:
    """The times of an operator and of its peers."""
    calls: dict[str, Call] = {"memcpy": lambda: data.x.clone(), "lograd": lambda: case.ours(data)}
    times = medians(calls | peers.of(case, data), repeats, shortest=2e-4)
    copy, ours = times.pop("memcpy"), times["lograd"]
    return {
        "case": case.name,
        "elements": data.size,
        "threads": torch.get_num_threads(),
        "ms": {"memcpy": round(copy, 5)} | {name: round(ms, 5) for name, ms in times.items()},
        "over memcpy": {name: three_digits(ms / copy) for name, ms in times.items()},
        "speed-up over": {name: three_digits(ms / ours) for name, ms in times.items() if name != "lograd"},
    }


def microseconds(case: Case, data: Data) -> float:
    """Microseconds of a call of our operator."""
    return round(1e3 * medians({case.name: lambda: case.ours(data)}, 9, shortest=2e-3)[case.name], 2)


def three_digits(value: float) -> float:
    """A number with three digits."""
    return float(f"{value:.3g}")


def size_name(elements: int) -> str:
    """The size of a tensor in words."""
    return f"{elements >> 20}M" if elements >= 1 << 20 else f"{elements >> 10}K" if elements >= 1024 else str(elements)


def table(rows: list[dict[str, Any]], overhead: dict[str, float]) -> str:
    """One line per case: cost over memcpy by size and threads, then the speed-ups at the largest size, one thread."""
    largest = max(row["elements"] for row in rows)
    threads = min(row["threads"] for row in rows)
    lines: dict[str, dict[str, Any]] = {}
    peers: list[str] = []
    for row in rows:
        line = lines.setdefault(row["case"], {"case": row["case"]})
        line[f"{size_name(row['elements'])}, {row['threads']}t"] = f"{row['over memcpy']['lograd']:.3g}"
        if row["elements"] == largest and row["threads"] == threads:
            for peer, ratio in row["speed-up over"].items():
                line[f"x {peer}"] = f"{ratio:.3g}"
                if f"x {peer}" not in peers:
                    peers.append(f"x {peer}")
    for name, cost in overhead.items():
        lines[name]["µs a call"] = f"{cost:.1f}"
    sizes = [column for column in next(iter(lines.values())) if column not in ("case", "µs a call", *peers)]
    return markdown(list(lines.values()), ["case", *sizes, "µs a call", *peers])


def parse_sizes(text: str) -> list[int]:
    """Sizes such as 64K,1M,16M."""
    sizes = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)([KM])", part.strip())
        size = int(match[1]) << (10 if match[2] == "K" else 20) if match else 0
        if not 1 << 10 <= size <= 1 << 28:
            raise typer.BadParameter(f"--sizes takes 1K to 256M, such as 64K,1M,16M; got {part!r}.")
        sizes.append(size)
    return sizes


def main(
    quick: bool = typer.Option(False, help="About 20 seconds: fewer repeats, 4M at most, no inductor, no QPyTorch."),
    sizes: str = typer.Option("", help="Elements, such as 64K,1M,16M.", show_default="64K,1M,16M"),
    threads: int = typer.Option(2, min=1, max=256, help="Measure with 1 thread and with this many."),
    repeats: int = typer.Option(0, min=0, help="Repeats of each measurement; 0 chooses by size."),
    only: str = typer.Option("", help="Cases whose name contains this."),
    save: bool = typer.Option(
        True, help="Write benchmarks/results/ops.json and ops.md (never with --quick or --only)."
    ),
) -> None:
    """Cost relative to memcpy, and speed-up over each peer."""
    elements = parse_sizes(sizes or ("64K,1M,4M" if quick else "64K,1M,16M"))
    cases = [case for case in CASES if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no case contains {only!r}; there are: {', '.join(case.name for case in CASES)}")
    peers = Peers(quick)
    jobs = [(count, size, case) for count in sorted({1, threads}) for size in elements for case in cases]
    rows, overhead = [], {}
    data = {size: Data(size) for size in elements}
    small = Data(64)
    for count, size, case in progress(jobs):
        torch.set_num_threads(count)
        chosen = repeats or (3 if quick else 5 if size > 4 << 20 else 15)
        rows.append(measure(case, data[size], peers, chosen))
        if case.name not in overhead:
            overhead[case.name] = microseconds(case, small)
    what = (
        f"Cost in copies of the same float32 tensor (memcpy = 1; lower is better) by elements and threads, the cost of "
        f"a call on 64 elements, and the speed-up over each peer at {size_name(max(elements))} on one thread. Medians "
        f"of interleaved repeats in one process; all make a new tensor, the copy too. "
        f"`./dev bench ops` makes this table."
    )
    text = table(rows, overhead)
    for name, note in peers.notes.items():
        what += f" {name}: {note}."
    print(text)
    for name, note in peers.notes.items():
        print(f"{name}: {note}")
    if save and not quick and not only:
        packages = ("torch", "numpy", "ml_dtypes", "qtorch")
        result = {
            "what": what, "versions": versions(*packages), "machine": conditions(), "peers left out": peers.notes,
            "microseconds of a call on 64 elements": overhead, "rows": rows,
        }  # fmt: skip
        write("ops", result, what, text)


if __name__ == "__main__":
    torch._dynamo.config.recompile_limit = 64
    typer.run(main)
