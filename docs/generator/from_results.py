"""Blocks that are measurements: tables made from the JSON files that benchmarks and experiments leave behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean, stdev
from typing import Any

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
    return f"{table(columns, lines)}\n\nMeasured by `./dev bench models` on {machine_of(benchmark('models'))}."


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
    machine, torch = found["machine"], found["versions"]["torch"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['instruction set'].upper()}, with torch {torch}"


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count > 1)


def models() -> str:
    """Speed-up of every model, number of threads and sparsity, by minima and by medians."""
    lines = []
    for row in benchmark("models")["rows"]:
        dense = min(row["whole"][layout]["median"] for layout in ("dense", "dense, channels last"))
        for asked, zeros in row["zeros"].items():
            gains = [_gain(row, part, asked, kind) for part in ("backward", "whole") for kind in ("min", "median")]
            lines.append([
                row["model"], row["threads"], _spaced(asked), f"{zeros:.1%}".replace("%", " %"),
                row["sparse layers"][asked], f"{dense:.0f}", *(f"{gain:.2f}" for gain in gains),
            ])  # fmt: skip
    columns = [
        "model", "threads", "asked", "zeros", "sparse layers", "dense step, ms", "backward, min", "backward, median",
        "whole step, min", "whole step, median",
    ]  # fmt: skip
    return table(columns, lines)


def _spaced(percent: str) -> str:
    return percent.replace("%", " %")


def layers() -> str:
    """Speed-up of single layers, channels last, by medians."""
    shares = ("0.5", "0.8", "0.85", "0.9", "0.95")
    lines = []
    for row in benchmark("sparse")["rows"]:
        if "NCHW" not in row["case"]:
            gains = row["speed-up by medians"]
            dense = min(value for name, value in row["median ms"].items() if name.startswith("dense"))
            cells = [f"{gains[f'lograd {share}']:.1f}" if f"lograd {share}" in gains else "" for share in shares]
            csr = f"{gains['CSR 0.9']:.1f}" if "CSR 0.9" in gains else ""
            lines.append([row["case"], row["threads"], f"{dense:.1f}", *cells, csr])
    columns = ["layer", "threads", "dense, ms", *(f"{float(one):.0%}".replace("%", " %") for one in shares)]
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


def costly_layers() -> str:
    """The layers whose pruning brings the most noise, and their share of the work."""
    layers = sorted(experiment("noise")["layers"], key=lambda one: -float(one["won by keeping it"]))[:5]
    lines = [[one["layer"], *(f"{100 * one[name]:.1f} %" for name in ("won by keeping it", "work"))] for one in layers]
    return table(["layer", "noise that is gone if it is kept", "share of the work"], lines)


# ---------------------------------------------------------------------------------------------------- laws, predictions


def laws() -> str:
    """How often lognormal is nearer than normal, by normalisation and activation."""
    rows = next(one["rows"] for one in experiment("lognormal")["tables"] if one["name"] == "lognormal-norm")
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


def machine() -> str:
    """The machine and the versions of each benchmark."""
    lines = []
    for path in sorted(BENCHMARKS.glob("*.json")):
        found = json.loads(path.read_text())
        where, versions = found["machine"], found["versions"]
        others = ", ".join(f"{name} {one}" for name, one in versions.items() if name != "lograd")
        command = found.get("command", f"./dev bench {path.stem}")
        lines.append([f"`{command}`", where["cpu"], where["cores"], where["instruction set"],
                      where["date"], others])  # fmt: skip
    return table(["command", "CPU", "cores", "instruction set", "date", "versions"], lines, words=6)


def files() -> str:
    """Links to the results as they were written: tables with every case, and the JSON that this page is made from."""
    lines = []
    for folder in (BENCHMARKS, EXPERIMENTS):
        place = Path(os.path.relpath(folder, ROOT / "docs")).as_posix()
        for path in sorted(folder.glob("*.json")):
            links = [f"[{path.stem}{end}]({place}/{path.stem}{end})" for end in (".json", ".md")]
            lines.append([links[0], links[1] if path.with_suffix(".md").exists() else ""])
    return table(["numbers", "tables"], lines, words=2)


BLOCKS: dict[str, Maker] = {
    "speed": speed,
    "accelerated": accelerated,
    "models": models,
    "layers": layers,
    "attach": attach,
    "memory": memory,
    "operator-speed": operator_speed,
    "theory": theory,
    "learning-resnet18": learning_resnet18,
    "learning-resnet20": learning_resnet20,
    "noise": noise,
    "costly-layers": costly_layers,
    "laws": laws,
    "explosion": drawn("explosion"),
    **{f"bits-{model}": drawn(f"bits-{model}") for model in ("resnet8", "charlm", "bert-mini")},
    "sparsity": sparsity,
    "predictions": predictions,
    "machine": machine,
    "files": files,
}
"""A function for each name of a block."""
