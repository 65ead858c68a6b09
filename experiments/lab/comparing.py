"""Runs side by side: `compare` reads their folders, and a `Comparison` is a table, a page and JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from lograd import InvalidValue
from lograd.errors import plural
from lograd.report import Page, TextTable, text_table

from . import comparison_page
from .grouping import COLUMNS, Family, Group, Spread, rows, settings_of
from .runs import Run


@final
@dataclass(frozen=True)
class Comparison:
    """Families of runs; `table()` for the terminal, `page()` for a browser, `to_json()` for a program."""

    families: tuple[Family, ...]

    @property
    def notes(self) -> list[str]:
        """Sentences that a reader must know before holding numbers against each other."""
        notes = []
        if len(self.families) > 1:
            titles = "; ".join(family.title for family in self.families)
            notes.append(
                f"These runs train {len(self.families)} different models or data ({titles}). Differences and ratios "
                "are to the first run of the same model and data; across them nothing is compared."
            )
        for family in self.families:
            notes += [
                f"{group.name}: {group.status}; its last evaluation stands for the final one."
                for group in family.groups
                if group.status
            ]
            notes += [
                f"{group.name}: several of its runs have the same seed, so ± does not show how far seeds differ."
                for group in family.groups
                if len({run.config.seed for run in group.runs}) < len(group.runs)
            ]
            sources = {group.first.record["data"]["fingerprint"] for group in family.groups}
            if len(sources) > 1:
                notes.append(f"{family.title}: its source was changed between these runs.")
            lengths = {group.first.record["total_steps"] for group in family.groups}
            if len(lengths) > 1:
                notes.append(f"{family.title}: runs of different length, {', '.join(map(str, sorted(lengths)))} steps.")
        return notes

    def table(self) -> TextTable:
        """A row for each group of runs, with the notes below."""
        return text_table(
            plural(sum(len(group.runs) for family in self.families for group in family.groups), "run"),
            COLUMNS,
            [row for family in self.families for row in rows(family)],
            "\n".join(self.notes),
        )

    def page(self, footer: str = "") -> Page:
        """The page with the curves; the footer says how it was made."""
        return comparison_page.build(self.families, self.notes, footer)

    def to_json(self) -> dict[str, Any]:
        """Plain values of all families and groups."""
        return {
            "notes": self.notes,
            "families": [
                {
                    "model": family.groups[0].first.config.model,
                    "data": family.groups[0].first.record["data"]["fingerprint"],
                    "metric": family.metric.name,
                    "groups": [_group_json(family, group) for group in family.groups],
                    "differing": dict(family.differing()),
                }
                for family in self.families
            ],
        }


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Read runs from their folders and put them side by side; the first of each model and data is the reference."""
    if not paths:
        raise InvalidValue("compare needs the folder of at least one run; got none.")
    known: set[Path] = set()
    for path in paths:
        if (place := Path(path).resolve()) in known:
            raise InvalidValue(f"the run {path} was given twice.")
        known.add(place)
    runs = [Run.load(path) for path in paths]
    families: dict[Any, dict[Any, list[tuple[Run, str]]]] = {}
    for run, name in zip(runs, _names(paths), strict=True):
        family = families.setdefault(_subject(run), {})
        family.setdefault(_identity(run), []).append((run, name))
    return Comparison(
        tuple(
            Family(tuple(Group(*map(tuple, zip(*members, strict=True))) for members in family.values()))
            for family in families.values()
        )
    )


def _names(paths: Sequence[str | Path]) -> list[str]:
    """The last part of each path where that tells them apart, or else the whole path."""
    short = [os.path.basename(os.path.normpath(path)) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _subject(run: Run) -> tuple[str, str]:
    """Return the model and its data, or the metric where the model brings its own data; runs of a family share them."""
    return run.config.model, run.metric.name if run.config.own else run.record["data"]["fingerprint"]


def _identity(run: Run) -> tuple[str, ...]:
    """Return what the runs of a group share; one that ended early has no mean with those that did not."""
    settings = [f"{name} {value}" for name, value in settings_of(run).items()]
    return (*settings, "" if run.status == "finished" else f"{run.status} {run.path}")


def _group_json(family: Family, group: Group) -> dict[str, Any]:
    def spread(value: Spread | None) -> dict[str, float | None] | None:
        return None if value is None else value._asdict()

    return {
        "runs": [str(run.path) for run in group.runs],
        "seeds": [run.config.seed for run in group.runs],
        "treatment": group.first.config.treatment,
        "status": [run.status for run in group.runs],
        "steps": [run.steps for run in group.runs],
        "final": spread(group.final),
        "best": spread(group.best),
        "difference": family.difference(group),
        "seconds_per_step": spread(group.seconds_per_step),
        "ratio": family.ratio(group),
        "sparsity": spread(group.sparsity),
        "bits": spread(group.bits),
    }
