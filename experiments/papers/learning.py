"""Does a network learn with pruned gradients?  Dense against sparse, at equal steps and at equal time.

    ./dev reproduce learning --data cifar100_20k.npz --runs runs

Each case is trained with the same seeds and schedule, with whichever products are faster.  Plans come from a profile
after some dense steps, in which noise was measured.  Then one step of each case is timed in turns, and the cases that
are compared at equal time are trained again, with as many steps as the dense run has time for.  Several processes may
share a folder, each with cases of its own (--only).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import Any, ClassVar, final

import torch.nn.functional as F

from lograd import InvalidValue, Plan, Profile, profile
from lograd.errors import nearest_name

from ..lab import Config, load_data
from .cells import Cell, CellFolder, Found, Measured, Trained
from .experiment import Experiment
from .pruned import Maker, Predicted, begun, cosine, ends_kept, noise, split, two_copies, uniform
from .result import Result
from .runs import finished, speeds, timed_in_turns

DENSE, TIMES = "dense", "times"


@final
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


CASES = {
    "dense": Case("dense", None),
    "uniform-85": Case("uniform 85 %", uniform, 0.85),
    "ends-85": Case("uniform 85 %, first layer kept too", ends_kept, 0.85),
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


TIMED = {name: case for name, case in CASES.items() if case.again or name in (DENSE, "late-85", "split-late-85")}


@final
@dataclass(frozen=True)
class Learning(Experiment):
    """One model on one data set, trained in each way.

    Args:
        data: an .npz with images.
        only: names of cases, with commas between them; empty for all.
        model: resnet8, resnet20, resnet18 or vgg.
        width: channels of the first layer; None takes the usual number of the model.
        epochs: length of the dense run.
        batch: images of a step.
        lr: the largest learning rate.
        start: dense steps before the profile, and before late cases begin.
        seeds: how many; 0, 1, ...
        turns: steps of each case that are made in turns to time them, of which the last third counts.
    """

    needs_data: ClassVar[bool] = True
    words: ClassVar[str] = "accuracy with pruned gradients against dense, at equal steps and at equal time"
    presets: ClassVar = {
        "smoke": {"model": "resnet8", "width": 8, "epochs": 1, "batch": 16, "start": 1, "seeds": 1, "turns": 3,
                  "only": "dense,noise-late-85"},
        "cpu": {},
    }  # fmt: skip

    model: str = "resnet20"
    width: int | None = None
    epochs: int = 3
    batch: int = 64
    lr: float = 0.05
    start: int = 100
    seeds: int = 3
    turns: int = 45

    @property
    def label(self) -> str:
        return f"learning-{self.model}"

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        chosen = self._chosen()
        for seed in range(self.seeds):
            for name, case in chosen.items():
                yield Trained(f"{name}-{seed}", self._config(folder, name, case, seed))
        given = {"model": self.model, "width": self.width, "batch": self.batch, "turns": self.turns}
        yield Measured(TIMES, given, partial(self._time, folder), threads=1)
        faster = speeds(folder.found(TIMES), DENSE)
        base = self._base()
        steps = base.total_steps(load_data(base).steps_per_epoch)
        for seed in range(self.seeds):
            for name, case in chosen.items():
                if case.again:
                    late = self.start * case.late
                    config = self._config(folder, name, case, seed)
                    longer = replace(config, epochs=None, steps=round(late + (steps - late) * faster[name]))
                    yield Trained(f"{name}-{seed}-equal-time", longer)
        for name, case in chosen.items():
            if case.late:
                settings = {"case": name, "sparsity": case.sparsity, "start": self.start}
                yield Measured(f"{name}-noise", settings, partial(self._predict, folder, name))

    def draw(self, folder: CellFolder) -> list[Result]:
        rows = list(self._rows(folder))
        columns = [
            "way to train", "compared at", "steps", "seeds", "zeros", "test accuracy, mean",
            "difference to dense, mean", "spread over seeds", "steps in the time of a dense one", "predicted noise",
        ]  # fmt: skip
        sources = {str(record["settings"].get("data")) for name in folder.names if (record := folder.record(name))}
        source = ", ".join(sorted(sources - {"None"})) or "no data yet"
        command = (
            f"./dev reproduce learning --data FILE --set model={self.model} --set epochs={self.epochs} "
            f"--set start={self.start}" + ("" if self.width is None else f" --set width={self.width}")
        )
        claim = (
            f"{self.model} on {source}: {self.epochs} epochs of the dense run, batch {self.batch}, SGD, learning rate "
            f"{self.lr:g} with a cosine schedule, no augmentation. Zeros are those of the pruned layers: all but the "
            f"last, unless it says so. Plans are from a profile after {self.start} dense steps; late means that "
            "pruning begins there, and not at the first step. Noise is what the plan is predicted to bring into the "
            f"weight gradients, summed over the layers, at that step. `{command}` makes this table."
        )
        return [Result(self.label, f"Learning with pruned gradients: {self.model}", claim, columns, rows)]

    # -- the cells --

    def _chosen(self) -> dict[str, Case]:
        names = [name.strip() for name in self.only.split(",")] if self.only else list(CASES)
        for name in names:
            if name not in CASES:
                raise InvalidValue(f"{name!r} is not one of {', '.join(CASES)}.{nearest_name(name, CASES)}")
        return {name: CASES[name] for name in names}

    def _base(self) -> Config:
        return Config(
            self.model, str(self._data()), width=self.width, epochs=self.epochs, batch=self.batch, lr=self.lr,
            augment=False, threads=1, evaluate_every=10**6,
        )  # fmt: skip

    def _config(self, folder: CellFolder, name: str, case: Case, seed: int) -> Config:
        settings: dict[str, Any] = {"seed": seed}
        if case.plan is not None:
            path = folder.path / f"{name}.json"
            if not path.exists():
                case.plan(self._profile(folder), case.sparsity).save(path)
            settings |= {"plan": str(path), "backend": "auto", "start": self.start * case.late}
        return replace(self._base(), **settings)

    def _profile(self, folder: CellFolder) -> Profile:
        """The profile of the first seed's network after the dense steps; made once."""
        folder.path.mkdir(parents=True, exist_ok=True)
        path = folder.path / "profile.npz"
        if path.exists():
            return Profile.load(path)
        model, batch = begun(self._base(), self.start)
        found = profile(model, [batch], F.cross_entropy, noise=2)
        found.save(path)
        return found

    def _time(self, folder: CellFolder) -> Found:
        """Seconds of single steps of each case, taken in turns, or they could not be compared."""
        configs = {name: replace(self._config(folder, name, case, 0), start=0) for name, case in TIMED.items()}
        return timed_in_turns({name: (config, config.load_plan()) for name, config in configs.items()}, self.turns)

    def _predict(self, folder: CellFolder, name: str) -> Found:
        plan = Plan.load(folder.path / f"{name}.json")
        return {"noise": Predicted.of(self._profile(folder), plan).numbers()["noise"]}

    # -- the table --

    def _rows(self, folder: CellFolder) -> Iterator[list[object]]:
        """A row for each case with a finished run: means over the seeds, and differences to the dense runs of them."""
        seeds = range(self.seeds)
        dense = {seed: found for seed in seeds if (found := finished(folder, f"{DENSE}-{seed}"))}
        faster = speeds(folder.found(TIMES), DENSE)
        for name, case in CASES.items():
            predicted = folder.found(f"{name}-noise")
            for kind, ending in (("equal steps", ""), ("equal time", "-equal-time")):
                runs = {seed: found for seed in seeds if (found := finished(folder, f"{name}-{seed}{ending}"))}
                if not runs:
                    continue
                others = {} if name == DENSE else dense
                differences = [_accuracy(run) - _accuracy(others[seed]) for seed, run in runs.items() if seed in others]
                yield [
                    case.title, kind, next(iter(runs.values()))["steps"], len(runs),
                    f"{mean(float(run['final']['sparsity'] or 0.0) for run in runs.values()):.1%}",
                    f"{mean(map(_accuracy, runs.values())):.2f} %",
                    f"{mean(differences):+.2f}" if differences else None,
                    f"{stdev(differences):.2f}" if len(differences) > 1 else None,
                    f"{faster[name]:.2f}" if name in faster else None,
                    None if predicted is None else f"{predicted['noise']:.2f}",
                ]  # fmt: skip


def _accuracy(run: Found) -> float:
    return 100 * float(run["final"]["accuracy"])
