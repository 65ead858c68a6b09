"""Blocks that are measurements: tables made from the JSON files that benchmarks and experiments leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.timing import in_words

from .blocks import Maker, table

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "results"
EXPERIMENTS = ROOT / "docs" / "results"
"""Where the JSON files lie."""

Row = dict[str, Any]


def benchmark(name: str) -> Row:
    """The result of `./dev bench NAME`."""
    found: Row = json.loads((BENCHMARKS / f"{name}.json").read_text())
    return found


def experiment(name: str) -> Row:
    """The result of an experiment."""
    found: Row = json.loads((EXPERIMENTS / f"{name}.json").read_text())
    return found


# ------------------------------------------------------------------------------------------------------- training steps


def _gain(row: Row, part: str, asked: str, kind: str) -> float:
    """How many times faster than dense PyTorch in its better layout."""
    times = row[part]
    dense: float = min(times["dense"][kind], times["dense, channels last"][kind])
    return dense / float(times[asked][kind])


def speed() -> str:
    """Speed-up at 85 % by medians: a line for each model, the threads beside each other."""
    rows = benchmark("models")["rows"]
    threads = sorted({row["threads"] for row in rows})
    columns = ["model"]
    for count in threads:
        columns += [f"backward, {_threads(count)}", f"whole step, {_threads(count)}"]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        line = [model]
        for count in threads:
            row = next(one for one in rows if (one["model"], one["threads"]) == (model, count))
            line += [f"{_gain(row, part, '85%', 'median'):.2f}" for part in ("backward", "whole")]
        lines.append(line)
    return f"{table(columns, lines)}\n\n{where('models')}"


def accelerated() -> str:
    """Speed-up of whole steps by `accelerate`: a line for each network, instruction sets and threads side by side."""
    found = {name: benchmark(f"accelerate-{name}") for name in ("avx512vnni", "avx2")}
    ways = [
        (name, count) for name, one in found.items() for count in dict.fromkeys(row["threads"] for row in one["rows"])
    ]
    words = {"avx512vnni": "VNNI", "avx2": "AVX2 alone"}
    lines = []
    for case in dict.fromkeys(row["case"] for one in found.values() for row in one["rows"]):
        rows = {
            (name, row["threads"]): row for name, one in found.items() for row in one["rows"] if row["case"] == case
        }
        stays = "stays float32"
        cells = [
            (stays if stays_plain(rows[way]) else f"{rows[way]['ratio']:.2f}") if way in rows else "" for way in ways
        ]
        lines.append([case, *cells])
    extra = max(row["extra"] for one in found.values() for row in one["rows"])
    one = found["avx512vnni"]
    return (
        f"{table(['network', *(f'{words[name]}, {_threads(count)}' for name, count in ways)], lines)}\n\n"
        "Measured by `./dev bench accelerate` and `./dev bench accelerate --isa avx2`, which holds lograd and PyTorch "
        f"to AVX2, on {one['machine']['cpu']}, {one['machine']['cores']} cores, with torch {one['versions']['torch']}: "
        "medians of steps in turns with plain ones in their better layout. The measurement in the first steps took the "
        f"time of at most {extra:.1f} such steps."
    )


def stays_plain(row: Row) -> bool:
    """Return True if the step was left as it is."""
    return "stays as it is" in str(row["words"])


def machine_of(found: Row) -> str:
    """The machine of a benchmark, in words."""
    torch = found["versions"].get("torch")
    return in_words(found["machine"]) + (f", torch {torch}" if torch else "")


def where(name: str) -> str:
    """One line on the command and the machine of a benchmark."""
    found = benchmark(name)
    return f"`{found.get('command', f'./dev bench {name}')}` on {machine_of(found)}, {found['machine']['date']}."


def with_machine(maker: Maker, name: str) -> Maker:
    """Return a maker of the same block with the benchmark's machine below it."""
    return lambda: f"{maker()}\n\n{where(name)}"


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count > 1)


def layers() -> str:
    """Speed-up of single layers on one thread, channels last, by medians."""
    shares = ("0.5", "0.8", "0.85", "0.9", "0.95")
    lines = []
    for row in benchmark("sparse")["rows"]:
        if "NCHW" not in row["case"] and row["threads"] == 1:
            gains = row["speed-up by medians"]
            dense = min(value for name, value in row["median ms"].items() if name.startswith("dense"))
            cells = [f"{gains[f'lograd {share}']:.1f}" if f"lograd {share}" in gains else "" for share in shares]
            csr = f"{gains['CSR 0.9']:.1f}" if "CSR 0.9" in gains else ""
            lines.append([row["case"], f"{dense:.1f}", *cells, csr])
    columns = ["layer", "dense, ms", *(f"{float(one):.0%}".replace("%", " %") for one in shares)]
    return table([*columns, "torch CSR, 90 %"], lines)


def attach() -> str:
    """What a treatment adds to a step whose products are dense."""
    rows = benchmark("attach")["rows"]
    lines = [[row["way"], f"{row['ms']:.0f}", f"{row['of plain']:.2f}", f"{row['mean of plain']:.2f}"] for row in rows]
    return table(["step", "ms, median", "of the plain step, median", "of the plain step, mean"], lines)


def memory() -> str:
    """Peak memory of a step against dense PyTorch."""
    lines = []
    for row in benchmark("memory")["rows"]:
        ways = row["ways"]
        dense = ways["dense"]["settled"]
        ratios = [ways["auto"][when] / dense for when in ("settled", "beginning")]
        lines.append([row["model"], f"{dense:.0f}", *(f"{ratio:.2f}" for ratio in ratios)])
    return table(["model", "dense, MB", "pruned", "pruned, the step that times both ways"], lines)


# ------------------------------------------------------------------------------------------------- operators and theory


def operator_speed() -> str:
    """Cost of the operators on 16 M elements in copies of the tensor, and the peers at the same size."""
    found = benchmark("ops")
    calls = found["microseconds of a call on 64 elements"]
    lines = []
    for case, microseconds in calls.items():
        one, two = (
            next(row for row in found["rows"] if (row["case"], row["elements"], row["threads"]) == (case, 2**24, count))
            for count in (1, 2)
        )
        peers = "; ".join(f"{name} {_short(gain)}" for name, gain in one["speed-up over"].items())
        copies = [_short(row["over memcpy"]["lograd"]) for row in (one, two)]
        lines.append([case, *copies, f"{microseconds:.0f}", peers])
    return table(["case", "copies, 1 thread", "copies, 2 threads", "µs a call", "times faster than"], lines)


def _short(value: float) -> str:
    """Two digits, without an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def theory() -> str:
    """Thresholds, allocation and formats of a thousand layers."""
    columns = ["case", "ms", "over root_scalar", "over brentq"]
    return table(columns, [[row.get(column, "") for column in columns] for row in benchmark("theory")["rows"]])


# ------------------------------------------------------------------------------------------------------------- accuracy


def _points(row: Row) -> str:
    """Mean and spread over seeds of the difference to the dense run of the same seed."""
    differences: list[float] = row["difference"]
    spread = f" ± {stdev(differences):.1f}" if len(differences) > 1 else ""
    return f"{mean(differences):+.1f}{spread}"


def _learning(file: str) -> str:
    lines = []
    for row in experiment(file)["rows"]:
        gain, noise = row["steps in the time of a dense one"], row["predicted noise"]
        lines.append([
            row["title"], row["compared at"], row["steps"], len(row["seeds"]),
            f"{100 * row['sparsity']:.1f} %", f"{mean(row['accuracy']):.2f} %",
            "" if row["case"] == "dense" else _points(row),
            "" if gain is None else f"{gain:.2f}", "" if noise is None else f"{noise:.1f}",
        ])  # fmt: skip
    columns = [
        "way to train", "compared at", "steps", "seeds", "zeros", "test accuracy, mean", "points to dense",
        "step, times faster", "noise, predicted",
    ]  # fmt: skip
    return table(columns, lines, words=2)


def learning_resnet18() -> str:
    """Every way in which ResNet18 was trained."""
    return _learning("learning-resnet18")


def learning_resnet20() -> str:
    """Every way in which ResNet-20 was trained."""
    return _learning("learning-resnet20")


def noise() -> str:
    """Predicted noise in the weight gradients, by allocation, after few and after many steps."""
    plans = experiment("noise")["plans"]
    steps = sorted({plan["steps"] for plan in plans})
    keys = dict.fromkeys((plan["split"], plan["sparsity"]) for plan in plans)
    by_key = {(plan["split"], plan["sparsity"], plan["steps"]): plan for plan in plans}
    lines = []
    for split, sparsity in sorted(keys, key=lambda key: key[1]):
        cells = [f"{by_key[split, sparsity, count][what]:.2g}" for count in steps for what in ("noise", "growth")]
        lines.append([split, f"{sparsity:.0%}".replace("%", " %"), *cells])
    columns = [f"{what}, after {count} steps" for count in steps for what in ("noise in dW", "growth of energy")]
    return table(["split", "sparsity", *columns], lines)


# ---------------------------------------------------------------------------------------------------- laws, predictions


def laws() -> str:
    """How often lognormal is nearer than normal, by normalisation and activation."""
    found = next(one["rows"] for one in experiment("lognormal")["tables"] if one["name"] == "lognormal-norm")
    last = max(row["steps"] for row in found)
    rows = [row for row in found if row["steps"] == last]
    return table(list(rows[0]), [list(row.values()) for row in rows])


def sparsity() -> str:
    """Sparsity asked and got, over the layers of a network."""
    lines = []
    for row in experiment("sparsity")["asked"]:
        got, asked = row["got"].values(), row["asked"]
        worst = max(abs(one - asked) for one in got)
        lines.append([row["law"], f"{asked:.2f}", f"{min(got):.3f}", f"{max(got):.3f}", f"{worst:.3f}"])
    return table(["law", "asked", "least of a layer", "most of a layer", "largest difference"], lines)


def predictions() -> str:
    """Cosine and relative error, predicted and measured: means over layers and the largest difference of one."""
    rows = experiment("sparsity")["errors"]
    lines = []
    for treatment in dict.fromkeys(row["treatment"] for row in rows):
        cells = []
        for number in ("cosine", "relative_error"):
            pairs = [
                (row["predicted"][number], row["measured"][number]) for row in rows if row["treatment"] == treatment
            ]
            worst = max(abs(predicted / measured - 1) for predicted, measured in pairs)
            cells += [f"{mean(side):.4f}" for side in zip(*pairs, strict=True)] + [f"{100 * worst:.2f} %"]
        lines.append([treatment, *cells])
    three = ("predicted", "measured", "largest difference")
    columns = [f"{name}, {one}" for name in ("cosine", "relative error") for one in three]
    return table(["treatment", *columns], lines)


def drawn(file: str) -> Maker:
    """Return a maker of the one table that an experiment has drawn, as it is in its file."""

    def make() -> str:
        (found,) = experiment(file)["tables"]
        columns = list(found["rows"][0])
        lines = [["" if row[column] is None else row[column] for column in columns] for row in found["rows"]]
        return table(columns, lines)

    return make


def files() -> str:
    """A line for each benchmark: its files, and the machine on which it ran."""
    lines = []
    for path in sorted(BENCHMARKS.glob("*.json")):
        found = json.loads(path.read_text())
        place = f"../benchmarks/results/{path.stem}"
        versions = ", ".join(f"{name} {one}" for name, one in found["versions"].items() if name != "lograd")
        command = f"`{found.get('command', f'./dev bench {path.stem}')}`"
        lines.append([
            f"{command}: [table]({place}.md), [numbers]({place}.json)", in_words(found["machine"]),
            found["machine"]["date"], versions,
        ])  # fmt: skip
    return table(["benchmark", "machine", "date", "versions"], lines, words=4)


BLOCKS: dict[str, Maker] = {
    "speed": speed,
    "accelerated": accelerated,
    "layers": with_machine(layers, "sparse"),
    "attach": with_machine(attach, "attach"),
    "memory": with_machine(memory, "memory"),
    "operator-speed": with_machine(operator_speed, "ops"),
    "theory": with_machine(theory, "theory"),
    "learning-resnet18": learning_resnet18,
    "noise": noise,
    "laws": laws,
    "explosion": drawn("explosion"),
    "bits-charlm": drawn("bits-charlm"),
    "sparsity": sparsity,
    "predictions": predictions,
    "files": files,
}
"""A function for each name of a block."""
