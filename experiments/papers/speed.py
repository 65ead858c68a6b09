"""Time to accuracy: how many seconds a fast run takes until it is as good as a dense float32 run at its end.

    ./dev reproduce speed --data cifar100_20k.npz --set model=resnet18 --set width=32 --set steps=1800

Dense and fast runs have the same seeds; a fast one may make more steps, over which its schedule is stretched.  All
fast runs train with one plan, which `lograd.accelerate` finds for the first seed on one thread; where it finds none,
a fast run is a dense one, to the bit.  What runs reach depends on their steps alone, so they may share the machine.
The seconds of a step are measured apart, in turns on a machine with nothing else to do: dense in both memory layouts,
of which the faster counts, and with the plan.  The seconds of finding a plan with that number of threads are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from lograd import InvalidValue, Plan, accelerate
from lograd.engine.layers import reason_not_channels_last
from lograd.errors import nearest_name, plural
from lograd.report.figures import COLORS, axes

from ..lab import TASKS, Config, Dataset, Metric, load_data, loss_of, metric_of, preserved, session_of
from ..lab.loop import build_model
from .cells import Cell, CellFolder, Found, Measured, Trained
from .experiment import Experiment
from .result import Result
from .runs import finished, seconds_in_turns
from .sources import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSE, CHANNELS_LAST, FAST = "dense", "channels last", "fast"
PLAN, TIMES = "plan", "times"
BATCHES = 4
"""Batches on which a plan is found."""
PARTS = (DENSE, FAST, TIMES)
"""The cells that `only` chooses from; the last two need a plan, which is found first."""


class Point(NamedTuple):
    """An evaluation."""

    step: int
    value: float


class Reached(NamedTuple):
    """The steps after which a dense run had its final value, and after which the fast one had it; None for never."""

    target: float
    dense: float
    fast: float | None
    final: float
    """The value of the fast run at its end."""


@final
@dataclass(frozen=True)
class Speed(Experiment):
    """One model on one data set, dense and fast.

    Args:
        data: images, text or sentences, as the model wants.
        only: some of dense, fast and times, with commas between them; empty for all.
        model: a built-in one, such as resnet18, charlm6 or bert-mini.
        width, batch, lr: None takes the usual ones of the model.
        pixels: sides that images are averaged down to; None leaves them as they are.
        warmup: steps over which the learning rate rises.
        steps: length of a dense run.
        stretch: length of a fast run over that of a dense one.
        points: evaluations of a run.
        seeds: how many; 0, 1, ...
        turns: steps of each way that are timed in turns, of which the last third counts; 0 times nothing.
    """

    needs_data: ClassVar[bool] = True
    keeps_figures: ClassVar[bool] = True
    words: ClassVar[str] = "seconds until a dense run's accuracy is reached, with the plan of lograd.accelerate"
    presets: ClassVar = {
        "smoke": {"model": "resnet8", "width": 8, "steps": 6, "batch": 16, "seeds": 1, "points": 2, "turns": 3},
        "cpu": {},
    }

    model: str = "resnet18"
    width: int | None = None
    batch: int | None = None
    lr: float | None = None
    pixels: int | None = None
    warmup: int = 0
    steps: int = 1500
    stretch: float = 1.1
    points: int = 20
    seeds: int = 3
    turns: int = 20

    @property
    def label(self) -> str:
        width = self.width or TASKS[self.model].width
        return f"speed-{self.model}-{width}" + (f"-{self.pixels}px" if self.pixels is not None else "")

    @property
    def data_kind(self) -> Kind | None:
        return TASKS[self.model].kind if self.model in TASKS else None

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        parts = self._parts()
        sizes = {"model": self.model, "width": self.width, "batch": self.batch, "pixels": self.pixels}
        if DENSE in parts:
            for seed in range(self.seeds):
                yield Trained(f"{DENSE}-{seed}", replace(self._config(), seed=seed))
        if FAST in parts or TIMES in parts:
            yield Measured(PLAN, sizes, self._find_plan, 1)
        if FAST in parts and (fast := self._fast_config(folder)).plan is not None:
            for seed in range(self.seeds):
                yield Trained(f"{FAST}-{seed}", replace(fast, seed=seed))
        for threads in (1, 2) if self.turns and TIMES in parts else ():
            given = sizes | {"turns": self.turns, "threads": threads}
            yield Measured(f"{TIMES}-{threads}", given, partial(self._time, folder, threads), threads)

    def _parts(self) -> list[str]:
        names = [name.strip() for name in self.only.split(",")] if self.only else list(PARTS)
        for name in names:
            if name not in PARTS:
                raise InvalidValue(f"{name!r} is not one of {', '.join(PARTS)}.{nearest_name(name, PARTS)}")
        return names

    def _config(self) -> Config:
        """Return the settings of a dense run."""
        return Config(
            self.model, str(self._data()), width=self.width, batch=self.batch, lr=self.lr, pixels=self.pixels,
            warmup=self.warmup, steps=self.steps, threads=1, evaluate_every=max(self.steps // self.points, 1),
        )  # fmt: skip

    def _fast_config(self, folder: CellFolder) -> Config:
        """Return the settings of a run with the plan, if there is one; it is left in a file."""
        found = folder.found(PLAN)
        if found is None or found["plan"] is None:
            return replace(self._config(), steps=self._fast_steps)
        plan = folder.keep_plan(FAST, Plan.from_dict(found["plan"]))
        return replace(self._config(), steps=self._fast_steps, plan=plan)

    @property
    def _fast_steps(self) -> int:
        return max(round(self.stretch * self.steps), 1)

    def _find_plan(self) -> Found:
        """Find the plan of the fast runs."""
        config = self._config()
        plan, words, _ = find_plan(config, load_data(config))
        return {"plan": plan.to_dict() if plan.layers else None, "words": words}

    def _time(self, folder: CellFolder, threads: int) -> Found:
        """Seconds of single steps, and of finding a plan.

        Steps are timed with the plan that the fast runs were trained with: another search may choose otherwise.
        """
        dense, fast = (replace(one, threads=threads) for one in (self._config(), self._fast_config(folder)))
        data = load_data(dense)
        planning = find_plan(dense, data)[2]
        sessions = {DENSE: session_of(dense, data)}
        if self.data_kind == "images" and reason_not_channels_last(sessions[DENSE].model) is None:
            sessions[CHANNELS_LAST] = session_of(replace(dense, channels_last=True), data)
        if fast.plan is not None:
            sessions[FAST] = session_of(fast, data, fast.load_plan())
        return {"steps": seconds_in_turns(sessions, self.turns), "planning": planning}

    # -- drawing --

    def draw(self, folder: CellFolder) -> list[Result]:
        config = self._config()
        metric = metric_of(config.task.kind)
        pairs = list(self._reached(folder, metric))
        columns = [
            "threads", "step, dense", "step, fast", "finding the plan", "seeds", f"{metric.words}, dense",
            f"{metric.words}, fast at its end", "seconds, dense", "seconds, fast", "times sooner", "spread over seeds",
        ]  # fmt: skip
        command = self.command(
            "model", "width", "batch", "lr", "pixels", "warmup", "steps", "stretch", "points", "seeds"
        )
        claim = (
            f"{self.model} of width {config.width}, batch {config.batch}, {config.optimizer}, learning rate "
            f"{config.lr:g} with a {config.schedule} schedule: dense runs of {self.steps} steps, and fast ones of "
            f"{self._fast_steps}. Seconds are those of training, without evaluations, until the final value of "
            f"the dense run of the same seed is reached, by straight lines between evaluations; those of a fast run "
            f"count finding its plan. "
            f"`{command}` makes this table."
        )
        rows, figures = [], []
        plan = folder.found(PLAN)
        notes = [] if plan is None else [f"On 1 thread, {plan['words']}"]
        for threads in (1, 2):
            if (found := folder.found(f"times-{threads}")) is None:
                continue
            rows.append(self._row(threads, found, pairs, metric))
            figures.append(self._figure(folder, threads, found, metric))
        return [Result(self.label, f"Time to accuracy: {self.model}", claim, columns, rows, figures, notes)]

    def _reached(self, folder: CellFolder, metric: Metric) -> Iterator[Reached]:
        for seed in range(self.seeds):
            runs = [_run(folder, way, seed) for way in (DENSE, FAST)]
            if any(finished(folder, run) is None for run in runs):
                continue
            dense, fast = (_points(folder, run, metric) for run in runs)
            target = dense[-1].value
            first = _first(dense, target, metric)
            assert first is not None, "the last evaluation is one of them"
            yield Reached(target, first, _first(fast, target, metric), fast[-1].value)

    def _row(self, threads: int, found: Found, pairs: list[Reached], metric: Metric) -> list[object]:
        dense, fast = _seconds(found)
        times = [(one.dense * dense, found["planning"] + one.fast * fast) for one in pairs if one.fast is not None]
        sooner = [before / after for before, after in times]
        factor, unit = (100, " %") if metric.percent else (1, "")

        def value(numbers: list[float]) -> str | None:
            return f"{factor * mean(numbers):.2f}{unit}" if numbers else None

        return [
            threads, f"{1e3 * dense:.1f} ms", f"{1e3 * fast:.1f} ms", f"{found['planning']:.0f} s",
            f"{len(times)} of {len(pairs)} reached" if len(times) < len(pairs) else len(pairs),
            value([one.target for one in pairs]), value([one.final for one in pairs]),
            f"{mean(one for one, _ in times):.0f}" if times else None,
            f"{mean(one for _, one in times):.0f}" if times else None,
            f"{mean(sooner):.2f}" if sooner else None, f"{stdev(sooner):.2f}" if len(sooner) > 1 else None,
        ]  # fmt: skip

    def _figure(self, folder: CellFolder, threads: int, found: Found, metric: Metric) -> Figure:
        dense, fast = _seconds(found)
        factor = 100 if metric.percent else 1
        unit = ", %" if metric.percent else ""
        figure, ax = axes(f"{self.model}, {plural(threads, 'thread')}", "seconds", f"test {metric.words}{unit}")
        ways = ((DENSE, dense, 0.0), (FAST, fast, found["planning"]))
        for color, (way, seconds, before) in zip(COLORS, ways, strict=False):
            for seed in range(self.seeds):
                if finished(folder, run := _run(folder, way, seed)) is not None:
                    points = _points(folder, run, metric)
                    places = [before + one.step * seconds for one in points]
                    values = [factor * one.value for one in points]
                    ax.plot(places, values, color=color, label=way if not seed else None)
        ax.legend(frameon=False)
        return figure


def find_plan(config: Config, data: Dataset) -> tuple[Plan, str, float]:
    """Return the plan of `lograd.accelerate` on the first batches, what it says, and the seconds that it took."""
    start = time.perf_counter()
    with preserved():
        batches = list(islice(data.batches(), BATCHES))
        with accelerate(build_model(config, data), batches, loss_of, quiet=True) as found:
            return found.plan, found.words, time.perf_counter() - start


def _run(folder: CellFolder, way: str, seed: int) -> str:
    """Return the name of a run; without a plan a fast run is a dense one."""
    found = folder.found(PLAN)
    return f"{DENSE if found is not None and found['plan'] is None else way}-{seed}"


def _seconds(found: Found) -> tuple[float, float]:
    """Return the seconds of a dense step in its better layout, and of a fast one, which may be dense too: medians."""
    taken: dict[str, Any] = found["steps"]
    dense = min(median(taken[name]) for name in (DENSE, CHANNELS_LAST) if name in taken)
    return dense, median(taken[FAST]) if FAST in taken else dense


def _points(folder: CellFolder, name: str, metric: Metric) -> list[Point]:
    """Return the evaluations of a run."""
    found = folder.found(name)
    assert found is not None, "only finished runs are drawn"
    return [Point(one["step"], one[metric.name]) for one in found["tests"]]


def _first(points: list[Point], target: float, metric: Metric) -> float | None:
    """Return the step at which the line through the evaluations first reaches the target; None if it never does."""
    sign = 1 if metric.higher_is_better else -1
    place = next((place for place, one in enumerate(points) if sign * one.value >= sign * target), None)
    if not place:
        return None if place is None else float(points[0].step)
    before, after = points[place - 1], points[place]
    return before.step + (after.step - before.step) * (target - before.value) / (after.value - before.value)
