"""The page of a comparison: the table first, then curves over steps and over seconds, then what was set otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lograd.report import Chart, Line, Page

from .grouping import COLUMNS, Family, rows
from .journal import Line as MetricsLine

MOST_POINTS = 300
"""The most points of a curve; a longer one is shown as the means of neighbours."""


TOLD_BY_THE_HEADING = ("<model", "<metric")
"""Columns that a family's section does without."""


def build(families: Sequence[Family], notes: Sequence[str], footer: str) -> Page:
    """The page of a comparison: tables, curves, and settings that differ."""
    page = Page("Runs compared", f"{', '.join(family.title for family in families)}.", footer)
    for note in notes:
        page.note(note)
    for family in families:
        page.heading(family.title)
        shown = [place for place, name in enumerate(COLUMNS) if name not in TOLD_BY_THE_HEADING]
        page.table(
            [COLUMNS[place].removeprefix("<") for place in shown],
            [[row[place] for place in shown] for row in rows(family)],
            f"Final and best {family.metric.words}{'' if family.metric.tested else ', means over the steps to a line'}"
            f"{'' if family.groups[0].first.config.own else ' on the test part'}. The difference is that of the final "
            "one to the first row"
            + (", in percentage points" if family.metric.percent else "")
            + "; ± is the standard deviation over seeds. Zeros and bits are means over the treated gradients.",
            "".join("l" if place == 0 or COLUMNS[place].startswith("<") else "r" for place in shown),
        )
        page.charts(*_charts(family))
        if differing := family.differing():
            page.table(
                ["setting", *family.labels()],
                [[name, *values] for name, values in differing],
                "Settings that differ",
                "l" * (1 + len(family.groups)),
            )
    return page.text(
        "Seconds are those of training steps, without evaluations and checkpoints, on a machine as busy as it was. "
        "Low-bit formats are simulated, so rounding costs time here; what it would save on other hardware is not "
        "measured. Products of pruned gradients are dense, and save nothing, unless a run has the backend "
        "sparse or auto."
    )


def _charts(family: Family) -> list[Chart]:
    metric = family.metric
    charts = []
    shown = [("train", "loss", "Training loss")]
    if metric.tested:
        own = family.groups[0].first.config.own
        shown.append(("test", metric.name, metric.words.capitalize() if own else f"Test {metric.words}"))
    for kind, name, title in shown:
        for place, over, x_label in (("step", "steps", "step"), ("seconds", "time", "seconds of training")):
            charts.append(
                Chart(
                    f"{title} over {over}",
                    x_label,
                    name.replace("_", " "),
                    _curves(family, kind, place, name),
                    y_percent=metric.percent and name == metric.name,
                    x_whole=place == "step",
                )
            )
    return charts


def _curves(family: Family, kind: str, place: str, name: str) -> list[Line]:
    """One line for each run; seeds of one group share their colour, and the first carries the name."""
    curves = []
    for color, (group, label) in enumerate(zip(family.groups, family.labels(), strict=True)):
        for number, run in enumerate(group.runs):
            x, y = _points([line for line in run.lines if line["kind"] == kind], place, name)
            curves.append(Line(x, y, "" if number else label, color, markers=kind == "test"))
    return curves


def _points(lines: list[MetricsLine], place: str, name: str) -> tuple[list[float], list[float]]:
    x, y = (np.array([line[key] for line in lines], dtype=np.float64) for key in (place, name))
    parts = min(MOST_POINTS, len(lines))
    if len(lines) > MOST_POINTS:
        x, y = (np.array([part.mean() for part in np.array_split(values, parts)]) for values in (x, y))
    return x.tolist(), y.tolist()
