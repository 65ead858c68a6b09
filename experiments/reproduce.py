"""`./dev reproduce`: a table or figure of the papers, or an experiment of our own, computed or trained anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lograd.cli import Json, out, print_json, print_table, say, warnings_as_sentences
from lograd.errors import InvalidValue, nearest_name, plural

if TYPE_CHECKING:
    from .papers import Result
    from .papers.cells import CellFolder
    from .papers.experiment import Experiment

Name = Annotated[
    str | None, typer.Argument(help="A table, figure or experiment, or all of the papers; none lists them.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The page; lograd-NAME.html by default, none with --json.")
]
Preset = Annotated[str | None, typer.Option(help="Size of an experiment: smoke or cpu.", show_default="cpu")]
Data = Annotated[
    Path | None, typer.Option(help="The data of an experiment, such as an .npz of images, or a folder of several sets.")
]
Runs = Annotated[Path, typer.Option(help="Finished cells and runs are kept in NAME inside this folder.")]
Only = Annotated[str | None, typer.Option(help="Restrict an experiment to some of its cases.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Another option of it; repeat it.")
]
Tabulate = Annotated[bool, typer.Option("--tabulate", help="Only draw the tables of the finished cells.")]
Results = Annotated[
    Path | None, typer.Option(help="Take finished cells from this folder, and write the tables there as .md and .json.")
]


def reproduce(
    name: Name = None,
    output: Output = None,
    preset: Preset = None,
    data: Data = None,
    runs: Runs = Path("lograd-runs"),
    only: Only = None,
    setting: Settings = None,
    tabulate: Tabulate = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Compute a table or figure of the papers anew, the paper's value beside ours; or run an experiment.

    An experiment is a list of cells, trainings and measurements, each of which is
    kept when it is finished, so one that was stopped goes on. Tables are made from
    finished cells only. The smoke preset takes seconds, and the data inside the
    repository where none is given. all runs every table and figure of the papers
    that has the preset; without --preset those that theory alone gives.
    """
    from lograd.files import check_folder
    from lograd.progress import progress_shown

    from .papers import EXPERIMENTS, THEORY
    from .papers.cells import CellFolder

    if name is None:
        _list(as_json)
        return
    if name not in (valid := [*THEORY, *EXPERIMENTS, "all"]):
        raise InvalidValue(f"{name!r} is not one of {', '.join(valid)}.{nearest_name(name, valid)}")
    if output is None and not as_json:
        output = Path(f"lograd-{name}.html")
    if output is not None:
        check_folder(output)
    given = {option: value for option, value in {"data": data, "only": only}.items() if value is not None}
    given |= _pairs(setting or [])
    drawn: list[Result] = []
    if name in EXPERIMENTS or (name == "all" and preset is not None):
        chosen = _chosen(name, given, preset, runs)
        for one, folder in [(one, CellFolder(runs / one.label)) for one in chosen]:
            path = None if results is None else results / f"{one.label}.json"
            if path is not None and path.exists() and (count := folder.take(path)) and not as_json:
                say(f"{plural(count, 'finished cell')} taken from {path}")
            with warnings_as_sentences(silent=as_json), progress_shown(not as_json or None):
                for cell in () if tabulate else one.cells(folder):
                    folder.finish(cell)
            drawn += _saved(one, folder, results)
    elif given or preset or tabulate or results:
        hint = " without --preset" * (name == "all")
        raise InvalidValue(f"{name}{hint} is computed from theory in a moment, and takes no options of experiments.")
    _show(name, [draw() for one, draw in THEORY.items() if name in (one, "all")] + drawn, output, as_json)


def _chosen(name: str, given: Mapping[str, Any], preset: str | None, runs: Path) -> list[Experiment]:
    """Return the experiment of that name, or all of the papers; what cannot be is refused before any begins."""
    from .papers import EXPERIMENTS, experiment_of
    from .papers.sources import embedded_data

    if name != "all":
        kinds = [experiment_of(name)]
    else:
        if own := sorted(set(given) - {"data", "seeds"}):
            raise InvalidValue(f"{own[0]} belongs to one experiment, and all was asked for; give the name of one.")
        kinds = [kind for one in EXPERIMENTS if (kind := experiment_of(one)).claim and preset in kind.presets]
        if not kinds:
            raise InvalidValue(f"no experiment has the preset {preset!r}; there are smoke and cpu.")
    made = []
    for kind in kinds:
        options = {one: value for one, value in given.items() if name != "all" or one in kind.options()}
        one = kind.make(options, preset)
        if preset == "smoke" and "data" not in given and one.needs_data:
            one = replace(one, data=kind.make({"data": embedded_data(runs / "embedded")}, preset).data)
        made.append(one)
    return made


def _list(as_json: bool) -> None:
    """Print all names, with what they are and the options that they take."""
    from .papers import EXPERIMENTS, THEORY, experiment_of

    rows: list[dict[str, Any]] = [
        {"name": name, "what": (draw.__doc__ or "").split("\n")[0], "options": {}, "presets": [], "cpu core-hours": 0.0}
        for name, draw in THEORY.items()
    ]
    for name in EXPERIMENTS:
        kind = experiment_of(name)
        options = {option: None if value is None else str(value) for option, value in kind.options().items()}
        rows.append({"name": name, "what": kind.words, "options": options, "presets": list(kind.presets),
                     "cpu core-hours": kind.make({}, "cpu").hours})  # fmt: skip
    if as_json:
        print_json(rows)
        return
    shown = []
    for row in rows:
        settings = (f"{name}={value or ''}" for name, value in row["options"].items() if name not in ("data", "only"))
        hours = "" if row["cpu core-hours"] is None else f"{row['cpu core-hours']:.2g}"
        shown.append([row["name"], row["what"], hours, ", ".join(row["presets"]), ", ".join(settings)])
    columns = ["name", "<what it shows", "core-hours, cpu", "<presets", "<options by --set"]
    print_table("Tables, figures and experiments", columns, shown)
    out.print(
        "\n./dev reproduce NAME makes one; ./dev reproduce all makes those of theory, and with --preset also the "
        "other tables and figures of the papers."
    )


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in settings:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidValue(f"--set takes OPTION=VALUE, such as --set steps=100; got {one!r}.")
        found[name] = value
    return found


def _saved(experiment: Experiment, folder: CellFolder, results: Path | None) -> list[Result]:
    """Return the tables of an experiment, written as Markdown and JSON where that is asked for, with some figures."""
    from lograd.files import replace_file
    from lograd.plots import svg

    drawn = experiment.draw(folder)
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        text = "\n".join(result.to_markdown() for result in drawn)
        cells = [folder.record(name) for name in folder.names]
        content = {"tables": [result.to_json() for result in drawn], "cells": cells}
        replace_file(results / f"{experiment.label}.md", text.encode())
        replace_file(
            results / f"{experiment.label}.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        )
        figures = [figure for result in drawn for figure in result.figures] if experiment.keeps_figures else []
        for number, figure in enumerate(figures, 1):
            replace_file(results / f"{experiment.label}-{number}.svg", svg(figure).encode())
    return drawn


def _show(name: str, drawn: Sequence[Result], output: Path | None, as_json: bool) -> None:
    """Print the tables, and save the page."""
    from lograd.plots import write_page

    from .papers.result import text

    title = "Tables and figures, computed anew"
    footer = f"Made by ./dev reproduce {name}."
    saved = None if output is None else write_page(output, title, [one.section() for one in drawn], footer)
    if as_json:
        print_json([result.to_json() for result in drawn])
        return
    for result in drawn:
        print_table(result.title, result.columns, [[text(cell) for cell in row] for row in result.rows])
        out.print(result.claim)
        for note in result.notes:
            out.print(f"  {note}", style="dim")
    out.print(f"\nThe page: {saved}")
