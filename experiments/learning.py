"""Does a network learn with pruned gradients?  CIFAR-100, dense against sparse, at equal steps and at equal time.

    .venv/bin/python experiments/learning.py --data ../shared/data/cifar100_20k.npz --runs /tmp/learning

Trains each case with the same seeds and schedule, by `lograd.training`, with whichever products are faster.  Plans come
from a profile after some dense steps, in which noise was measured.  Then one step of each case is timed in turns,
and the cases that are compared at equal time are trained again, with as many steps as the dense run has time for.  Runs
that stand in the folder already are not made again, so several processes may share it, each with its --case.  Writes
experiments/results/learning-MODEL.json and .md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.progress import track
from torch import Tensor, nn

import lograd
from lograd.laws.law import Values
from lograd.plan import Plan
from lograd.theory import Propagation
from lograd.training import Config, Run, build_model, load_data, train
from lograd.training.session import Session
from lograd.training.work import BuiltIn
from lograd.treatments import Prune

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from timing import machine, markdown, versions

RESULTS = Path(__file__).parent / "results"
ROUNDS, WARM_UP = 15, 30
"""Steps of each case that are timed, and those before."""
Maker = Callable[[lograd.Profile, float], Plan]


@dataclass(frozen=True)
class Case:
    """A way to train: what is pruned, by how much, and from which step on."""

    title: str
    plan: Maker | None
    sparsity: float = 0.0
    late: bool = False
    """Begin at the step of the profile, and not at the first."""
    again: bool = False
    """Train it at equal time as well."""


def uniform(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="uniform", everywhere=True)


def everything(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="uniform", keep=(), everywhere=True)


def ends_kept(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="uniform", keep=("first", "last"), everywhere=True)


def cosine(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="cosine", everywhere=True)


def noise(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="noise", everywhere=True)


def split(profile: lograd.Profile, sparsity: float) -> Plan:
    return profile.plan(sparsity=sparsity, allocation="noise", split=True, everywhere=True)


def two_copies(profile: lograd.Profile, sparsity: float) -> Plan:
    """Uniform, but each product prunes a copy of its own: the sparsities differ in the fourth digit."""
    plan = uniform(profile, sparsity)
    layers = {
        name: replace(layer, input=(Prune(sparsity),), weight=(Prune(sparsity + 1e-4),))
        for name, layer in plan.layers.items()
    }
    return replace(plan, layers=layers)


CASES = {
    "dense": Case("dense", None),
    "all-85": Case("uniform 85 %, every layer", everything, 0.85),
    "uniform-85": Case("uniform 85 %", uniform, 0.85),
    "ends-85": Case("uniform 85 %, first layer kept too", ends_kept, 0.85),
    "cosine-85": Case("common cosine 85 %", cosine, 0.85),
    "noise-85": Case("least noise 85 %", noise, 0.85),
    "copies-85": Case("uniform 85 %, two copies", two_copies, 0.85),
    "split-85": Case("least noise 85 %, split", split, 0.85),
    "late-85": Case("uniform 85 %, late", uniform, 0.85, late=True),
    "ends-late-85": Case("uniform 85 %, first layer kept too, late", ends_kept, 0.85, late=True),
    "cosine-late-85": Case("common cosine 85 %, late", cosine, 0.85, late=True),
    "split-late-85": Case("least noise 85 %, split, late", split, 0.85, late=True),
    "noise-late-80": Case("least noise 80 %, late", noise, 0.80, late=True, again=True),
    "noise-late-85": Case("least noise 85 %, late", noise, 0.85, late=True, again=True),
    "noise-late-90": Case("least noise 90 %, late", noise, 0.90, late=True, again=True),
    "late-90": Case("uniform 90 %, late", uniform, 0.90, late=True),
}


@dataclass(frozen=True)
class Experiment:
    """One model on one data set; the folder holds its profile, its plans and its runs."""

    folder: Path
    base: Config
    start: int
    """Dense steps before the profile, and before late cases begin."""

    def begun(self) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        """The first seed's network after some dense steps, and the next batch."""
        data = load_data(self.base)
        model = build_model(self.base, data).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=self.base.settled("lr"), momentum=0.9)
        for step in track(range(self.start), "Training before the profile"):
            images, labels = data.batch(0, step)
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        return model, data.batch(0, self.start)

    def profile(self) -> lograd.Profile:
        """Of that network; made once."""
        path = self.folder / "profile.npz"
        if path.exists():
            return lograd.Profile.load(path)
        model, batch = self.begun()
        found = lograd.profile(model, [batch], F.cross_entropy, noise=2)
        found.save(path)
        return found

    def config(self, case: Case, name: str, seed: int, steps: int | None = None) -> Config:
        settings: dict[str, Any] = {"seed": seed}
        if steps is not None:
            settings |= {"steps": steps, "epochs": None}
        if case.plan is not None:
            path = self.folder / f"{name}.json"
            if not path.exists():
                case.plan(self.profile(), case.sparsity).save(path)
            settings |= {"plan": str(path), "backend": "auto", "start": self.start * case.late}
        return replace(self.base, **settings)

    def run(self, case: Case, name: str, seed: int, steps: int | None = None) -> Run:
        """The finished run, which is made if it is not there."""
        path = self.folder / (f"{name}-{seed}" if steps is None else f"{name}-{seed}-{steps}")
        if (path / "summary.json").exists():
            return Run.load(path)
        return train(self.config(case, name, seed, steps), path, overwrite=True)

    def predicted_noise(self, case: Case, name: str) -> float | None:
        """In dW, summed over the layers, at the step of the profile; None where pruning does not begin there."""
        if not case.late:
            return None
        return Predicted.of(self.profile(), Plan.load(self.folder / f"{name}.json")).numbers()["noise"]

    def speeds(self, cases: dict[str, Case]) -> dict[str, float]:
        """How many steps of each case take as long as one dense step: ratio of medians of steps in turns."""
        times = self.folder / "times.json"
        if times.exists():
            taken: dict[str, list[float]] = json.loads(times.read_text())
        else:
            torch.set_num_threads(1)
            data = load_data(self.base)
            sessions = {}
            for name, case in cases.items():
                config = replace(self.config(case, name, 0), start=0)
                sessions[name] = Session(BuiltIn(config, data), config.load_plan())
            taken = {name: [] for name in cases}
            for turn in track(range(WARM_UP + ROUNDS), "Timing steps"):
                for name, session in sessions.items():
                    before = perf_counter()
                    session.step()
                    if turn >= WARM_UP:
                        taken[name].append(perf_counter() - before)
            times.write_text(json.dumps(taken))
        return {name: median(taken["dense"]) / median(seconds) for name, seconds in taken.items()}


@dataclass(frozen=True)
class Predicted:
    """What a plan brings into the weight gradients."""

    factors: Propagation
    input: Values
    weight: Values
    """Noise-to-signal ratios of the layers in the two products."""

    @classmethod
    def of(cls, profile: lograd.Profile, plan: Plan, left: dict[str, float] | None = None) -> Predicted:
        """`left` is what is left of the noise in a layer's own dW; all of it, if not given."""
        assert profile.noise is not None
        names = list(plan.layers)
        found = profile.noise.among(names)
        share = np.array([1.0 if left is None else left[name] for name in names])
        input, weight = (
            np.array([1 / getattr(plan.layers[name], side).cosine ** 2 - 1 for name in names])
            for side in ("predicted_input_gradient", "predicted_weight_gradient")
        )
        input *= np.array([plan.work[name][0] > 0 for name in names])
        return cls(Propagation(share * found.own, found.passed, found.transfer), input, weight)

    def numbers(self) -> dict[str, float]:
        """The sum over layers of |error of dW|^2 / |dW|^2, and the largest growth of a gradient's energy."""
        total = self.factors.total(self.input, self.weight)
        return {"noise": total, "growth": float(self.factors.growth(self.input).max())}

    def won_by_keeping(self, place: int) -> float:
        """The share of the noise that is gone if a layer is not pruned."""
        others = np.arange(self.input.size) != place
        return 1 - self.factors.total(self.input * others, self.weight * others) / self.numbers()["noise"]


def accuracy(run: Run) -> float:
    return 100 * float(run.tests[-1]["accuracy"])


def rows(experiment: Experiment, seeds: range, speeds: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Of each case with a run: accuracies by seed, and the differences to the dense runs of the same seeds."""
    dense = {seed: run for seed in seeds if (run := _finished(experiment, f"dense-{seed}"))}
    for name, case in CASES.items():
        for kind, suffix in (("equal steps", ""), ("equal time", "-*")):
            runs = {seed: run for seed in seeds if (run := _finished(experiment, f"{name}-{seed}{suffix}"))}
            if not runs:
                continue
            scores = [accuracy(run) for run in runs.values()]
            differences = [accuracy(run) - accuracy(dense[seed]) for seed, run in runs.items() if seed in dense]
            yield {
                "case": name, "title": case.title, "compared at": kind, "seeds": sorted(runs),
                "steps": next(iter(runs.values())).steps, "accuracy": scores, "difference": differences,
                "sparsity": mean(float(run.tests[-1]["sparsity"] or 0.0) for run in runs.values()),
                "steps in the time of a dense one": speeds.get(name),
                "predicted noise": experiment.predicted_noise(case, name),
            }  # fmt: skip


def _finished(experiment: Experiment, pattern: str) -> Run | None:
    found = [path.parent for path in experiment.folder.glob(f"{pattern}/summary.json")]
    return Run.load(found[0]) if found else None


def table(found: list[dict[str, Any]]) -> str:
    lines = []
    for row in found:
        differences = [] if row["case"] == "dense" else row["difference"]
        speed, noise = row["steps in the time of a dense one"], row["predicted noise"]
        lines.append({
            "way to train": row["title"],
            "compared at": row["compared at"],
            "steps": row["steps"],
            "seeds": len(row["seeds"]),
            "zeros": f"{row['sparsity']:.1%}",
            "test accuracy, mean": f"{mean(row['accuracy']):.2f} %",
            "difference to dense, mean": f"{mean(differences):+.2f}" if differences else "–",
            "spread over seeds": f"{stdev(differences):.2f}" if len(differences) > 1 else "–",
            "steps in the time of a dense one": "–" if speed is None else f"{speed:.2f}",
            "predicted noise": "–" if noise is None else f"{noise:.2f}",
        })  # fmt: skip
    return markdown(lines, list(lines[0]))


def main(
    data: Annotated[Path, typer.Option(help="An .npz with train_images, train_labels and the same of test.")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")],
    model: Annotated[str, typer.Option(help="resnet8, resnet20, resnet18 or vgg.")] = "resnet20",
    width: Annotated[int | None, typer.Option(help="Channels of the first layer.", show_default="by model")] = None,
    epochs: Annotated[int, typer.Option(help="Length of the dense run.")] = 3,
    batch: Annotated[int, typer.Option(help="Images of a step.")] = 64,
    lr: Annotated[float, typer.Option(help="Largest learning rate.")] = 0.05,
    start: Annotated[int, typer.Option(help="Dense steps before the profile, and before late cases begin.")] = 100,
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ...")] = 3,
    case: Annotated[list[str] | None, typer.Option(help="Only these, and no table; repeat it.")] = None,
    tabulate: Annotated[bool, typer.Option(help="Only make the table of the runs that are there.")] = False,
) -> None:
    """Train, time and compare."""
    base = Config(
        model, str(data), width=width, epochs=epochs, batch=batch, lr=lr, augment=False, threads=1,
        evaluate_every=10**6, checkpoint_every=10**6,
    )  # fmt: skip
    runs.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(runs, base, start)
    chosen = {name: CASES[name] for name in case} if case else CASES
    again = {name: one for name, one in chosen.items() if one.again}
    if not tabulate:
        for seed in range(seeds):
            for name, one in chosen.items():
                experiment.run(one, name, seed)
    timed = {name: one for name, one in CASES.items() if one.again or name in ("dense", "late-85", "split-late-85")}
    speeds = experiment.speeds(timed)
    if not tabulate:
        steps = base.total_steps(load_data(base).steps_per_epoch)
        for seed in range(seeds):
            for name, one in again.items():
                late = start * one.late
                experiment.run(one, name, seed, round(late + (steps - late) * speeds[name]))
    if case:
        return
    found = list(rows(experiment, range(seeds), speeds))
    name = f"learning-{model}"
    settings = {"model": model, "width": base.width, "epochs": epochs, "batch": batch, "lr": lr, "backend": "auto",
                "threads": 1, "augment": False, "start": start, "schedule": base.schedule}  # fmt: skip
    result = {
        "machine": machine(),
        "versions": versions("torch", "numpy", "lograd"),
        "settings": settings,
        "rows": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    command = (
        f"experiments/learning.py --data FILE --runs FOLDER --model {model} --width {base.width} --epochs {epochs} "
        f"--start {start}"
    )
    words = (
        f"{model} of width {base.width} on CIFAR-100 (20,000 images): {epochs} epochs of the dense run, batch {batch}, "
        f"SGD, learning rate {lr:g} with a cosine schedule, no augmentation. Zeros are those of the pruned layers: "
        f"all but the last, unless it says so. Plans are from a profile after {start} dense steps; late means that "
        f"pruning begins there, and not at the first step. Noise is what the plan is predicted to bring into the "
        f"weight gradients, summed over the layers, at that step. `{command}` makes this table.\n\n"
    )
    (RESULTS / f"{name}.md").write_text(words + table(found) + "\n")
    print(words + table(found))


if __name__ == "__main__":
    typer.run(main)
