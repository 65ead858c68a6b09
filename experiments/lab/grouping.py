"""Runs in groups that differ only in the seed, and groups in families of one model on the same data.

Only within a family are runs held against each other.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

from .measuring import Metric
from .runs import Run
from .summary import best_of, seconds_per_step

NOT_COMPARED = ("seed", "data", "plan", "tensorboard", "checkpoint_every")
"""Settings that do not make two runs different; data and plans are told apart by their content, not by their path."""


class Spread(NamedTuple):
    """The mean over seeds, and the standard deviation (of a sample) where there are two or more."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that exist; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


@final
@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    runs: tuple[Run, ...]
    names: tuple[str, ...]

    @property
    def first(self) -> Run:
        """The run that stands for the settings of all."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """Short enough for a table; the seeds tell the runs apart."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} ({len(self.names)} runs)"

    @property
    def seeds(self) -> str:
        """The seeds, with commas between them."""
        return ", ".join(str(run.config.seed) for run in self.runs)

    @property
    def status(self) -> str:
        """In words, why runs are not finished; empty if all are."""
        open_runs = [run for run in self.runs if run.status != "finished"]
        return ", ".join(f"{run.status} at step {run.steps}" for run in open_runs)

    @cached_property
    def final(self) -> Spread | None:
        """The metric at the end."""
        return self._over(lambda run: run.judged[-1][run.metric.name] if run.judged else None)

    @cached_property
    def best(self) -> Spread | None:
        """The best value of the metric."""
        return self._over(lambda run: (best_of(run.judged, run.metric) or {}).get(run.metric.name))

    @cached_property
    def seconds_per_step(self) -> Spread | None:
        """Seconds of a training step."""
        return self._over(lambda run: seconds_per_step(list(run.lines)))

    @cached_property
    def sparsity(self) -> Spread | None:
        """The share of zeros in treated gradients."""
        return self._over(lambda run: run.judged[-1]["sparsity"] if run.judged else None)

    @cached_property
    def bits(self) -> Spread | None:
        """Bits per element of treated gradients."""
        return self._over(lambda run: run.judged[-1]["bits"] if run.judged else None)

    def _over(self, value: Callable[[Run], float | None]) -> Spread | None:
        return Spread.of(value(run) for run in self.runs)


@final
@dataclass(frozen=True)
class Family:
    """Runs of one model on the same data, the first of them is what the others are held against."""

    groups: tuple[Group, ...]

    @property
    def metric(self) -> Metric:
        """The number that all its runs are judged by."""
        return self.groups[0].first.metric

    @property
    def title(self) -> str:
        """Model and data in a few words."""
        run = self.groups[0].first
        if run.config.data is None:
            return run.config.model
        return f"{run.config.model} on {os.path.basename(os.path.normpath(run.config.data))}"

    def labels(self) -> list[str]:
        """The name of each group in a chart: its treatment, or its own name where that says more."""
        treatments = [group.first.config.treatment for group in self.groups]
        return treatments if len(set(treatments)) == len(treatments) else [group.name for group in self.groups]

    def difference(self, group: Group) -> float | None:
        """The difference of the final metric to the first group's; None for the first group itself."""
        first = self.groups[0].final
        if group is self.groups[0] or first is None or group.final is None:
            return None
        return group.final.mean - first.mean

    def ratio(self, group: Group) -> float | None:
        """The time of a step over the first group's."""
        first = self.groups[0].seconds_per_step
        if not first or not first.mean or group.seconds_per_step is None:
            return None
        return group.seconds_per_step.mean / first.mean

    def differing(self) -> list[tuple[str, list[str]]]:
        """Settings in which the groups differ, and the value of each group."""
        tables = [settings_of(group.first) for group in self.groups]
        names = dict.fromkeys(name for table in tables for name in table)
        rows = [(name, [_plain(table.get(name)) for table in tables]) for name in names]
        return [(name, values) for name, values in rows if len(set(values)) > 1]


COLUMNS = (
    "run", "<model", "<treatment", "seed", "steps", "<metric", "final", "best", "difference", "ms/step", "ratio",
    "zeros", "bits",
)  # fmt: skip


def rows(family: Family) -> list[list[str]]:
    """The cells of `COLUMNS`, one row for each group."""
    cells = []
    for group in family.groups:
        difference, ratio, time = family.difference(group), family.ratio(group), group.seconds_per_step
        cells.append(
            [
                group.name,
                group.first.config.model,
                group.first.config.treatment,
                group.seeds,
                str(max(run.steps for run in group.runs)),
                family.metric.words,
                in_words(group.final, family.metric),
                in_words(group.best, family.metric),
                "–" if difference is None else _signed(difference, family.metric),
                "–" if time is None else f"{time.mean * 1e3:.1f}",
                "–" if ratio is None else f"{ratio:.2f}",
                "–" if group.sparsity is None else f"{group.sparsity.mean:.1%}",
                "–" if group.bits is None else f"{group.bits.mean:.4g}",
            ]
        )
    return cells


def in_words(value: Spread | None, metric: Metric) -> str:
    """Mean and spread of a metric as a table shows them."""
    if value is None:
        return "–"
    if not metric.percent:
        return f"{value.mean:.4f}" + ("" if value.deviation is None else f" ± {value.deviation:.4f}")
    spread = "" if value.deviation is None else f" ± {100 * value.deviation:.2f}"
    return f"{100 * value.mean:.2f}{spread} %"


def _signed(difference: float, metric: Metric) -> str:
    return f"{100 * difference:+.2f}" if metric.percent else f"{difference:+.4f}"


def _plain(value: Any) -> str:
    return "–" if value is None else str(value)


def settings_of(run: Run) -> dict[str, Any]:
    """Settings, plan and versions of a run, by which runs are told apart."""
    settings = {name: value for name, value in run.config.to_json().items() if name not in NOT_COMPARED}
    versions: dict[str, str] = run.record["versions"]
    source = {"hash of the source": run.record["data"]["fingerprint"]} if run.config.own else {}
    return settings | {"hash of the plan": run.record["plan"], "threads": run.record["threads"]} | source | versions
