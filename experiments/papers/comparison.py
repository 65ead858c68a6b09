"""A table of ways to train one network: each way with the same seeds, its result beside the paper's.

An experiment of this kind names its ways; cells, options and the table are the same for all of them.  The paper's
networks are larger than those of the cpu preset, so what is compared with the paper is the difference to the run that
both start from, and not the accuracy itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from statistics import mean, stdev
from typing import ClassVar, NamedTuple

from lograd import InvalidValue, Plan
from lograd.errors import nearest_name, plural
from lograd.treatments import Backend

from ..lab import Config, metric_of
from ..lab.session import has_levels, treatments_of
from .cells import Cell, CellFolder, Found, Trained
from .experiment import Experiment
from .result import Result
from .sources import Kind
from .trainings import Training, training_of

BASE = "fp32"
SMOKE, CPU = "digits", "resnet8"
"""The networks of two presets."""


class Way(NamedTuple):
    """A way to train."""

    title: str
    recipe: str | None = None
    weights: str | None = None
    """The format in which weights are stored, with no copy in float32; None keeps them in float32."""
    plan: Plan | None = None
    """In place of a recipe."""
    paper: float | None = None
    """The result that the paper prints, in its own setting."""
    lost: float | None = None
    """The difference to its base that the paper prints, where it prints no result."""


class Outcome(NamedTuple):
    """The runs of a way."""

    values: dict[int, float]
    """Results by seed, of runs that reached their end."""
    diverged: tuple[int, ...]
    """Seeds of the others."""
    zeros: float | None
    """The share of zeros in the treated gradients, mean over the runs; None where nothing is pruned."""

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.values) + len(self.diverged)

    def differences(self, base: Outcome | None) -> list[float]:
        """Return the differences to the base, of runs of the same seed."""
        other = {} if base is None else base.values
        return [value - other[seed] for seed, value in self.values.items() if seed in other]


@dataclass(frozen=True)
class WaysToTrain(Experiment):
    """Ways to train one network, each with the same seeds.

    Args:
        data: what the network is trained on, or a folder of several sets.
        only: names of ways, with commas between them; empty for all.
        network: by its name in `trainings`.
        epochs, steps, batch, width, lr, pixels: None takes those of the network.
        seeds: how many; 0, 1, ...
    """

    needs_data: ClassVar[bool] = True
    base: ClassVar[str] = BASE
    """The way that differences are counted from."""
    title: ClassVar[str]
    """The heading of the table."""
    backend: ClassVar[Backend] = "dense"
    """The backend of the products in ways that prune or round to integers; the others have dense products."""
    keeps: ClassVar[tuple[str, ...] | None] = None
    """Layers that recipes leave alone, as in `Plan.uniform`; None for those that are usual for the recipe."""
    presets: ClassVar = {"smoke": {"network": SMOKE, "seeds": 1}, "cpu": {}}

    network: str = CPU
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    width: int | None = None
    lr: float | None = None
    pixels: int | None = None
    seeds: int = 3

    def __post_init__(self) -> None:
        training_of(self.network)

    @abstractmethod
    def ways(self) -> dict[str, Way]:
        """Return all ways by name, the base among them."""

    @property
    def label(self) -> str:
        name = type(self).__module__.rpartition(".")[2]
        length = "" if self.epochs is None else f"-{self.epochs}-epochs"
        return (name if self.network == CPU else f"{name}-{self.network}") + length

    @property
    def training(self) -> Training:
        """The network with its data."""
        return training_of(self.network)

    @property
    def data_kind(self) -> Kind | None:
        return None  # the training finds its own

    @property
    def hours(self) -> float | None:
        minutes, usual = self.training.minutes, self.training.options
        if minutes is None:
            return None
        lengths = {"epochs": self.epochs, "steps": self.steps}
        share: float = prod(
            given / usual[name] for name, given in lengths.items() if given is not None and name in usual
        )
        return len(self.chosen()) * self.seeds * minutes * share / 60

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        chosen = self.chosen()
        for seed in range(self.seeds):
            for name, way in chosen.items():
                config = self.config(folder, name, seed)
                yield Trained(f"{name}-{seed}", config, way.paper)

    def chosen(self) -> dict[str, Way]:
        """Return the ways that `only` names, or all."""
        ways = self.ways()
        names = [name.strip() for name in self.only.split(",")] if self.only else list(ways)
        for name in names:
            if name not in ways:
                raise InvalidValue(f"{name!r} is not one of {', '.join(ways)}.{nearest_name(name, ways)}")
        return {name: ways[name] for name in names}

    def config(self, folder: CellFolder, name: str, seed: int) -> Config:
        """Return the settings of a run; a plan that is more than a recipe is written into the folder."""
        way = self.ways()[name]
        treated = Plan.uniform(way.recipe, self.keeps) if way.recipe is not None else way.plan
        backend = (
            self.backend if has_levels(treated) or any(one.makes_zeros for one in treatments_of(treated)) else "dense"
        )
        config = replace(self.usual(), weights=way.weights, seed=seed, backend=backend)
        if treated is None or (way.recipe is not None and self.keeps is None):
            return replace(config, recipe=way.recipe)
        return replace(config, plan=folder.keep_plan(name, treated))

    def usual(self) -> Config:
        """Return the settings that all runs share."""
        changes = {name: getattr(self, name) for name in ("epochs", "steps", "batch", "width", "lr", "pixels")}
        return self.training.config(self._data(), **changes)

    # -- the table --

    def draw(self, folder: CellFolder) -> list[Result]:
        return [self.table(folder)]

    def table(self, folder: CellFolder) -> Result:
        """Return the table of the ways, the paper's numbers beside ours."""
        ways, found = self.ways(), outcomes(folder, self.ways(), self.seeds, self.training.kind)
        rows = [[*_paper(way, ways[self.base]), *self.numbers(folder, name, one, found.get(self.base))]
                for name, way in ways.items() if (one := found.get(name)) is not None]  # fmt: skip
        metric = metric_of(self.training.kind)
        columns = ["way to train", "paper", "paper, to its base", "seeds", f"test {metric.words}, mean",
                   "to the base, mean", "spread over seeds", *self.more_columns]  # fmt: skip
        usual = len(columns) - len(self.more_columns)
        shown = [place for place in range(len(columns)) if place < usual or any(row[place] is not None for row in rows)]
        rows = [[row[place] for place in shown] for row in rows]
        notes = [*self.notes, f"Trained on {' and '.join(_machines(folder))}."]
        return Result(self.label, self.title, self._words(), [columns[place] for place in shown], rows, notes=notes)

    more_columns: ClassVar[tuple[str, ...]] = ()
    """Columns beside the usual ones; one without a number is left out."""
    notes: ClassVar[tuple[str, ...]] = ()
    """Sentences below the table."""

    def numbers(self, folder: CellFolder, name: str, one: Outcome, base: Outcome | None) -> list[object]:
        """Return the cells of a row that are ours; more columns are added here."""
        percent = metric_of(self.training.kind).percent
        digits, unit = (2, " %") if percent else (3, "")
        differences = [] if name == self.base else one.differences(base)
        value = f"{mean(one.values.values()):.{digits}f}{unit}" if one.values else None
        if one.diverged:
            lost = f"{plural(len(one.diverged), 'run')} of {one.runs} diverged"
            value = lost if value is None else f"{value}; {lost}"
        return [
            one.runs, value, f"{mean(differences):+.{digits}f}" if differences else None,
            f"{stdev(differences):.{digits}f}" if len(differences) > 1 else None,
        ]  # fmt: skip

    def _words(self) -> str:
        """How the table is to be read."""
        config = self.training.options
        length = [f"{self.epochs} epochs"] * (self.epochs is not None) + [f"{self.steps} steps"] * (
            self.steps is not None
        )
        changed = f", but {' and '.join(length)}" if length else ""
        threads = ", one thread" * (config.get("threads") == 1)
        names = [one.name for one in fields(self) if one.name != "data"]
        base = self.ways()[self.base].title
        return (
            f"{self.claim} Here: {self.training.words}{changed}{threads}. Differences are those to {base}, of runs of "
            f"the same seed; the paper's are those of its own setting. `{self.command(*names)}` makes this table."
        )


def outcomes(folder: CellFolder, ways: Mapping[str, Way], seeds: int, kind: Kind) -> dict[str, Outcome]:
    """Return the outcomes of the ways that have a run, from the files of the cells."""
    metric = metric_of(kind)
    factor = 100 if metric.percent else 1
    found = {}
    for name in ways:
        runs = {seed: run for seed in range(seeds) if (run := folder.found(f"{name}-{seed}")) is not None}
        ended = {seed: run for seed, run in runs.items() if run["status"] == "finished"}
        if runs:
            values = {seed: factor * float(run["final"][metric.name]) for seed, run in ended.items()}
            found[name] = Outcome(
                values, tuple(seed for seed in runs if seed not in ended), _zeros(list(ended.values()))
            )
    return found


def _machines(folder: CellFolder) -> list[str]:
    """Return the CPUs on which cells were finished, sorted."""
    records = [record for name in folder.names if (record := folder.record(name)) is not None]
    return sorted({record["machine"]["cpu"] for record in records})


def _zeros(runs: list[Found]) -> float | None:
    shares = [share for run in runs if (share := run["final"].get("sparsity")) is not None]
    return mean(shares) if shares else None


def _paper(way: Way, base: Way) -> list[object]:
    """Return the title of a way, the paper's result, and its difference to that of the base."""
    lost = way.lost
    if lost is None and way.paper is not None and base.paper is not None and way is not base:
        lost = way.paper - base.paper
    return [way.title, way.paper, None if lost is None else f"{lost:+.4g}"]


def whole_numbers(name: str, text: str, least: int, most: int) -> list[int]:
    """Return the whole numbers of an option that has commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and least <= int(part) <= most for part in parts):
        raise InvalidValue(f"{name} must be whole numbers from {least} to {most} with commas between; got {text!r}.")
    return [int(part) for part in parts]
