"""The frontier of a profile for people: predicted time over predicted noise, with uniform plans beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from ..errors import plural
from ..report import Chart, Line, Mark, Page, Points, Rule, TextTable, text_table
from ..theory import Choice, Problem, choose, frontier
from .methods import DENSE
from .optimizer import PlanProblem, milliseconds

MOST_ROWS = 12
"""Plans of the frontier in a table; a chart shows all."""
MUCH = 2.0
"""Noise beyond this is hardly told apart in a table."""
LEAST_SHOWN = 1e-5
"""Noise below this is drawn as this: a logarithm has no zero."""
COLUMNS = ("plan", "step", "faster", "rho", "pi", "progress", "<methods", "measured")
TEXT = (
    "Each method was timed in each layer, and its noise is counted in units of the variance that the minibatch itself "
    "has: rho is what the backward adds, pi what a rounded forward changes. A step with a noise of 0.25 is worth about "
    "one with 1 / 1.25 of the samples; progress is the predicted speed divided by 1 + rho + pi. Plans below choose a "
    "method for each layer; uniform ones have one method everywhere. `profile.plan(noise=0.2)`, "
    '`profile.plan(speed=2.0)` and `profile.plan(objective="progress")` choose from the same times.'
)


@final
@dataclass(frozen=True)
class Prospect:
    """A plan that could be made, and what is predicted of it.

    Args:
        name: "int8 everywhere", for a uniform plan; empty on the frontier.
        seconds: of a step.
        noise: rho.
        penalty: pi.
        methods: the number of layers with each method.
        measured: seconds that were measured, for a uniform plan.
    """

    name: str
    seconds: float
    noise: float
    penalty: float
    methods: Mapping[str, int]
    measured: float | None = None

    @property
    def total(self) -> float:
        """rho + pi."""
        return self.noise + self.penalty


@final
@dataclass(frozen=True, repr=False)
class Frontier:
    """Predicted time over predicted noise: the best plans, uniform plans, and the plain step.

    Args:
        plans: the best plans, from the fastest to the least noise.
        best: the one with the most progress per second.
        uniform: plans with one method in every layer.
        dense: seconds of the plain step.
        normalization: seconds that `Plan.normalization` saves in all of these plans.
    """

    plans: tuple[Prospect, ...]
    best: Prospect
    uniform: tuple[Prospect, ...]
    dense: float
    normalization: float = 0.0

    def progress(self, one: Prospect) -> float:
        """Return the predicted progress per second, relative to the plain step."""
        return self.dense / (one.seconds * (1 + one.total)) if one.seconds > 0 else float("inf")

    def table(self) -> TextTable:
        """Return a table for the terminal, from the plain step to the fastest plan."""
        return text_table(
            f"Time over noise: {plural(len(self.plans), 'best plan')}, and uniform ones",
            COLUMNS,
            [[str(cell) if cell is not None else "" for cell in row] for row in self.rows()],
            "Faster: than the plain step. rho: noise of the backward, pi: change by the forward's rounding, both in "
            "units of the minibatch's variance. Progress: speed / (1 + rho + pi). Measured: a step of a uniform plan."
            + self._switch(),
            droppable=("measured", "pi", "step"),
        )

    def _switch(self) -> str:
        if not self.normalization:
            return ""
        saved = milliseconds(self.normalization)
        return f" BatchNorm in one pass (Plan.normalization) saves {saved} in all of them, not in measured ones."

    def rows(self) -> list[list[str | None]]:
        """Return the cells of the table, by falling time."""
        shown = [one for one in _thinned(self.plans, MOST_ROWS) if set(one.methods) != {DENSE}] + [*self.uniform]
        if self.best not in shown:
            shown.append(self.best)
        shown.sort(key=lambda one: (-one.seconds, one.total))
        return [self._row(one) for one in shown]

    def _row(self, one: Prospect) -> list[str | None]:
        name = one.name or ("most progress" if one == self.best else "chosen by layer")
        return [
            name,
            milliseconds(one.seconds),
            f"{self.dense / one.seconds:.2f} times",
            _digits(one.noise),
            _digits(one.penalty),
            f"{self.progress(one):.2f}" if np.isfinite(one.total) else "none",
            ", ".join(f"{count} {name}" for name, count in one.methods.items()),
            None if one.measured is None else milliseconds(one.measured),
        ]

    def chart(self) -> Chart:
        """Return a chart of noise over time, with the uniform plans by name."""
        x, y = ([one.seconds * 1e3 for one in self.plans], [_shown(one) for one in self.plans])
        known = [one for one in self.uniform if np.isfinite(one.total) and set(one.methods) != {DENSE}]
        names = [one.name.removesuffix(" everywhere") for one in known]
        marks: list[Mark] = [
            Line(x, y, "chosen by layer", markers=True),
            Points(
                [one.seconds * 1e3 for one in known],
                [_shown(one) for one in known],
                "one method everywhere",
                names=names,
            ),
            Points([self.best.seconds * 1e3], [_shown(self.best)], "most progress"),
            Rule(self.dense * 1e3, "plain step", "x"),
        ]
        top = float(np.clip(max(map(_shown, (*self.plans, *known))), 1.0, 1e4))
        low = min(map(_shown, (*self.plans, *known)))
        return Chart(
            "Noise over time of a step", "milliseconds of a step, predicted",
            "added variance, in units of the minibatch's own", marks, y_scale="log10", y_range=(low / 1.5, top * 1.5),
            width=720, height=400,
            note=f"Lower left is better. Noise below {LEAST_SHOWN:g} is drawn there.",
        )  # fmt: skip

    def add_to(self, page: Page) -> None:
        """Add the section to the page of a profile."""
        page.heading("Speed and noise: what a plan can reach")
        page.text(TEXT + self._switch())
        page.charts(self.chart())
        rows = self.rows()
        best = [
            (row, column)
            for row, cells in enumerate(rows)
            for column in range(len(COLUMNS))
            if cells[0] == "most progress"
        ]
        names = [name.removeprefix("<") for name in COLUMNS]
        page.table(names, rows, "Plans by falling time; the one with the most progress stands out", "lrrrrrlr", best)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        fastest = self.dense / self.plans[0].seconds
        return f"Frontier({plural(len(self.plans), 'plan')}, up to {fastest:.2f} times as fast as the plain step)"


def frontier_of(task: PlanProblem) -> Frontier:
    """Return the frontier of a profile's problem, with the uniform plans of all methods that were timed."""
    plans = tuple(_prospect(task, one) for one in frontier(task.problem))
    best = _prospect(task, choose(task.problem, progress=True))
    names = dict.fromkeys(option.name for menu in task.timed.menus for option in menu)
    uniform = tuple(_uniform(task, name) for name in names)
    return Frontier(plans, best, uniform, task.dense, task.normalization)


def _prospect(task: PlanProblem, choice: Choice) -> Prospect:
    return Prospect("", choice.seconds, choice.noise, choice.penalty, _counted(task.problem, choice))


def _uniform(task: PlanProblem, name: str) -> Prospect:
    choice = task.timed.uniform(name)
    label = "plain step" if name == DENSE else f"{name} everywhere"
    measured = task.dense if name == DENSE else task.measured.get(name)
    seconds = task.dense if name == DENSE else choice.seconds
    return Prospect(label, seconds, choice.noise, choice.penalty, _counted(task.timed, choice), measured)


def _counted(problem: Problem, choice: Choice) -> dict[str, int]:
    found = Counter(menu[place].name for menu, place in zip(problem.menus, choice.places, strict=True))
    return dict(found.most_common())


def _thinned(plans: tuple[Prospect, ...], most: int) -> list[Prospect]:
    """Return some of the plans, evenly apart in what they do to progress, with both ends."""
    if len(plans) <= most:
        return list(plans)
    seconds = np.log([max(one.seconds, 1e-300) for one in plans])
    noise = np.log1p([min(one.total, MUCH) for one in plans])  # plans with more are of no use, whatever they are
    way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(seconds)) + np.abs(np.diff(noise)))])
    places = {int(np.argmin(np.abs(way - target))) for target in np.linspace(0.0, way[-1], most)}
    return [plans[place] for place in sorted(places)]


def _shown(one: Prospect) -> float:
    return max(one.total, LEAST_SHOWN)


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2g}" if 1e-4 <= value < 99.5 else f"{value:.0f}" if 99.5 <= value < 1e4 else f"{value:.0e}"
