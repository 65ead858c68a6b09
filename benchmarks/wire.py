"""A pipeline over a real link, plain and compressed: `./dev bench wire`.

Two network namespaces, joined by a pair of virtual interfaces with a rate limit (tbf), hold one rank each.  They train
the character transformer of examples/pipeline.py.  Bytes are those that the interfaces count, TCP's own included.
Needs Linux, root, and Debian's iproute2 (ip and tc).  Writes benchmarks/results/wire.json, wire.md and wire.svg.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import typer

from lograd.plots import lines, svg
from lograd.text import markdown

from .timing import RESULTS, conditions, progress, versions, write

ROOT = Path(__file__).resolve().parents[1]
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29577
"""Bits a second, of rates as tc has them."""
WARM_UP = 5
"""Steps before bytes and time count: the first has no statistics, and the second still has room for plain tensors."""


@dataclass(frozen=True)
class Case:
    """A treatment of gradients and one of activations, by their recipes; "none" sends plain tensors."""

    backward: str
    forward: str

    @property
    def name(self) -> str:
        """A few words for tables."""
        return "plain" if self.backward == self.forward == "none" else f"{self.backward} / {self.forward}"

    def arguments(self) -> list[str]:
        """The arguments of examples/pipeline.py."""
        chosen = ["--backward", self.backward, "--forward", self.forward]
        return ["--plain"] if self.name == "plain" else chosen


CASES = (
    Case("none", "none"),
    Case("prune85", "none"), Case("prune90", "none"), Case("fp8", "none"), Case("fp6", "none"), Case("int4", "none"),
    Case("int8-nearest", "int8-nearest"), Case("prune90", "int8-nearest"), Case("prune90", "fp6-nearest"),
)  # fmt: skip
"""Gradients / activations; 8 bits to nearest in both directions are what Petals does."""


# -- the link --


def run(*command: str) -> str:
    """The output of a command; its message where it fails."""
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise typer.BadParameter(f"{' '.join(command)}: {found.stderr.strip()}")
    return found.stdout


@contextmanager
def link(rate: str) -> Iterator[list[str]]:
    """Two network namespaces joined by a link of this rate, such as "100mbit"; "none" sets no limit."""
    names = [f"lograd{os.getpid()}{side}" for side in "ab"]
    interfaces = [f"lg{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        first, second = names
        peer = ("peer", "name", interfaces[1], "netns", second)
        run("ip", "link", "add", interfaces[0], "netns", first, "type", "veth", *peer)
        for name, interface, address in zip(names, interfaces, ADDRESSES, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            for device in ("lo", interface):
                run("ip", "-n", name, "link", "set", device, "up")
            if rate != "none":
                limit = ("rate", rate, "burst", "256kb", "latency", "400ms")
                run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


# -- one rank --


def sent_bytes() -> int:
    """Bytes that all interfaces of this namespace but its own loop have sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    counts = {name.strip(): numbers.split() for name, numbers in (line.split(":") for line in lines)}
    return sum(int(numbers[8]) for name, numbers in counts.items() if name != "lo")


def example() -> Any:
    """The program of examples/pipeline.py, as a module."""
    spec = importlib.util.spec_from_file_location("pipeline", ROOT / "examples" / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(arguments: list[str]) -> None:
    """Train as one rank, and print what was measured as JSON."""
    program = example()
    given = program.options(arguments)
    torch.set_num_threads(given.threads)
    dist.init_process_group("gloo")
    text, rank = program.characters(), dist.get_rank()
    running = program.Run(given, program.stages_of(given, rank, 2, int(text.max()) + 1), rank)
    losses = []
    start, before = 0.0, 0
    for step in range(WARM_UP + given.steps):
        if step == WARM_UP:
            dist.barrier()
            start, before = time.perf_counter(), sent_bytes()
        losses.append(running.step(*program.batch_of(text, given, step)))
    dist.barrier()
    seconds, sent = time.perf_counter() - start, sent_bytes() - before
    coding = sum(
        one.encoding + one.decoding for stage in running.stages if not given.plain for one in stage.counters().values()
    )
    found = {
        "seconds": seconds / given.steps,
        "sent": sent / given.steps,
        "losses": losses,
        "coding": coding / len(losses),
    }
    print(json.dumps(found))
    dist.destroy_process_group()


def measured(rate: str, case: Case, arguments: list[str]) -> dict[str, Any]:
    """Train over a link, and return what its two ranks have measured."""
    with link(rate) as names:
        ranks = []
        for rank, name in enumerate(names):
            own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT)}
            own |= {"GLOO_SOCKET_IFNAME": f"lg{os.getpid()}{'ab'[rank]}", "OMP_NUM_THREADS": "1"}
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "benchmarks.wire", "--rank"]
            command += [*case.arguments(), *arguments]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | own))
        texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise typer.BadParameter(f"{case.name} at {rate} failed; its message stands above.")
    forward, backward = (json.loads(text.strip().splitlines()[-1]) for text in texts)
    given = example().options(arguments)
    return {
        "rate": rate, "case": case.name, "width": given.width, "seconds": backward["seconds"],
        "tokens per second": given.batch * given.context / backward["seconds"],
        "forward bytes": forward["sent"], "backward bytes": backward["sent"],
        "coding": [forward["coding"], backward["coding"]], "losses": backward["losses"],
    }  # fmt: skip


# -- all --


def table(rows: list[dict[str, Any]]) -> str:
    """The results beside those of plain edges at the same rate."""
    plain = {(row["rate"], row["width"]): row for row in rows if row["case"] == "plain"}
    cells = []
    for row in rows:
        base = plain.get((row["rate"], row["width"]), row)
        tail = row["losses"][-max(len(row["losses"]) // 10, 1) :]
        cells.append(
            {
                "gradients / activations": row["case"], "link": row["rate"], "width": row["width"],
                "ms per step": f"{1e3 * row['seconds']:.0f}",
                "tokens/s": f"{row['tokens per second']:,.0f}",
                "speed": f"{base['seconds'] / row['seconds']:.2f}", "coding, ms": f"{1e3 * max(row['coding']):.1f}",
                "backward KB": f"{row['backward bytes'] / 1e3:,.0f}",
                "fewer backward": f"{base['backward bytes'] / row['backward bytes']:.1f}",
                "forward KB": f"{row['forward bytes'] / 1e3:,.0f}",
                "fewer forward": f"{base['forward bytes'] / row['forward bytes']:.1f}",
                "loss": f"{sum(tail) / len(tail):.3f}",
            }
        )  # fmt: skip
    return markdown(cells, list(cells[0]))


def curves(rows: list[dict[str, Any]]) -> str:
    """Return the losses of all cases at the first rate, over steps, as SVG."""
    first = [row for row in rows if (row["rate"], row["width"]) == (rows[0]["rate"], rows[0]["width"])]
    series = {row["case"]: (range(len(row["losses"])), row["losses"]) for row in first}
    return svg(lines(series, "Loss over a wire", "step", "loss"))


def main(
    rates: str = typer.Option("100mbit,1gbit,none", help="rates of the link as tc takes them, or none"),
    only: str = typer.Option("", help="cases to run, such as 'plain,prune90 / none'; all if empty"),
    steps: int = 40,
    width: int = typer.Option(64, help="small: the link is the limit"),
    wide: int = typer.Option(256, help="the width of rows without a limit that show what coding costs; 0 for none"),
    depth: int = 2,
    batch: int = 64,
    context: int = 128,
    microbatches: int = 4,
    schedule: str = "1f1b",
    keep: bool = typer.Option(True, help="write benchmarks/results"),
) -> None:
    """Train over links of several rates, with plain and with compressed edges."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise typer.BadParameter("this needs root, ip and tc; on Debian: apt-get install iproute2")
    sizes = {"steps": steps, "width": width, "depth": depth, "batch": batch, "context": context}
    sizes |= {"microbatches": microbatches}

    def arguments(width: int) -> list[str]:
        given = sizes | {"width": width}
        return [text for name, value in given.items() for text in (f"--{name}", str(value))] + ["--schedule", schedule]

    names = [name.strip() for name in only.split(",") if name.strip()]
    cases = [case for case in CASES if not names or case.name in names]
    jobs = [(rate, case, width) for rate in rates.split(",") for case in cases]
    jobs += [("none", case, wide) for case in cases if wide]
    rows = [measured(rate, case, arguments(wanted)) for rate, case, wanted in progress(jobs)]
    text = table(rows)
    print(text)
    if keep:
        result = {
            "machine": conditions(),
            "versions": versions("torch"),
            "sizes": sizes,
            "schedule": schedule,
            "rows": rows,
        }
        write("wire", result, _introduction(sizes, schedule), text)
        (RESULTS / "wire.svg").write_text(curves(rows))


def _introduction(sizes: dict[str, int], schedule: str) -> str:
    size = f"{sizes['depth']} layers, {sizes['batch']} x {sizes['context']} tokens"
    return (
        f"A character transformer ({size}, {sizes['microbatches']} microbatches, {schedule}) over two stages, each in "
        "a network namespace; bytes per step are those of the interfaces. Speed and bytes are against plain edges on "
        "the same link. Simulated times are those of docs/scale.md, from the step without a limit and the bytes. "
        "Coding: treating, encoding and decoding, on the rank that takes longer. Times of one run differ by some 10 %. "
        "`./dev bench wire` makes this table."
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(sys.argv[2:])
    else:
        typer.run(main)
