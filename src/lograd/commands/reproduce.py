"""`lograd reproduce`: a table or figure of the papers, or an experiment of our own, computed or trained anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidValue, nearest_name
from .console import Json, out, print_json, print_table, say, warnings_as_sentences

if TYPE_CHECKING:
    from ..papers import Result
    from ..papers.cells import Cell, CellFolder
    from ..papers.experiment import Experiment


Name = Annotated[
    str | None, typer.Argument(help="A table, figure or experiment, or all of them; none lists them with their cost.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The page; lograd-NAME.html by default, none with --json.")
]
Preset = Annotated[str | None, typer.Option(help="Size of an experiment: smoke, cpu or paper.", show_default="cpu")]
Data = Annotated[
    Path | None, typer.Option(help="The data of an experiment, such as an .npz of images, or a folder of several sets.")
]
Runs = Annotated[Path, typer.Option(help="Finished cells and runs are kept in NAME inside this folder.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many seeds.", show_default="by experiment")]
Only = Annotated[str | None, typer.Option(help="Restrict an experiment to some of its cases.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Another option of it; repeat it.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the cells in the folder; finished ones are not made again.")
]
Tabulate = Annotated[bool, typer.Option("--tabulate", help="Only draw the tables of the finished cells.")]
Results = Annotated[
    Path | None, typer.Option(help="Write the tables of an experiment into this folder as .md and .json as well.")
]


def reproduce(
    name: Name = None,
    output: Output = None,
    preset: Preset = None,
    data: Data = None,
    runs: Runs = Path("lograd-runs"),
    seeds: Seeds = None,
    only: Only = None,
    setting: Settings = None,
    resume: Resume = False,
    tabulate: Tabulate = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Compute a table or figure of the papers anew, the paper's value beside ours; or run an experiment.

    An experiment is a list of cells, trainings and measurements, each of which is
    kept when it is finished; tables are made from finished cells only. One that
    was stopped goes on with --resume. The smoke preset takes seconds, and the data
    inside the package where none is given. all runs every experiment that has the
    preset; without --preset it computes what follows from theory alone.
    """
    from ..papers import EXPERIMENTS, THEORY
    from ..papers.cells import CellFolder
    from ..report import check_folder

    if name is None:
        _list(as_json)
        return
    valid = [*THEORY, *EXPERIMENTS, "all"]
    if name not in valid:
        raise InvalidValue(f"{name!r} is not one of {', '.join(valid)}.{nearest_name(name, valid)}")
    if output is None and not as_json:
        output = Path(f"lograd-{name}.html")
    if output is not None:
        check_folder(output)
    options = {"data": data, "seeds": seeds, "only": only, **_pairs(setting or [])}
    given = {option: value for option, value in options.items() if value is not None}
    drawn = []
    if name in EXPERIMENTS or (name == "all" and preset is not None):
        with warnings_as_sentences():
            for chosen in _chosen(name, given, preset, runs):
                folder = CellFolder(runs / chosen.label)
                if name == "all" and tabulate and not folder.names:
                    continue
                drawn += _experiment(chosen, folder, results, resume=resume, tabulate=tabulate, quiet=as_json)
    elif given or preset or resume or tabulate or results:
        hint = " without --preset" * (name == "all")
        raise InvalidValue(f"{name}{hint} is computed from theory in a moment, and takes no options of experiments.")
    _show(name, [draw() for one, draw in THEORY.items() if name in (one, "all")] + drawn, output, as_json)


def _chosen(name: str, given: Mapping[str, Any], preset: str | None, runs: Path) -> list[Experiment]:
    """Return the experiment of that name, or all that have the preset; what cannot be is refused before any begins."""
    from ..papers import EXPERIMENTS, experiment_of
    from ..papers.sources import embedded_data

    if name != "all":
        kinds = [experiment_of(name)]
    else:
        if own := sorted(set(given) - {"data", "seeds"}):
            raise InvalidValue(f"{own[0]} belongs to one experiment, and all was asked for; give the name of one.")
        kinds = [kind for one in EXPERIMENTS if preset in (kind := experiment_of(one)).presets]
        if not kinds:
            experiment_of(next(iter(EXPERIMENTS))).make({}, preset)  # refuses the preset by name
    options = [{one: value for one, value in given.items() if name != "all" or one in kind.options()} for kind in kinds]
    made = [kind.make(option, preset) for kind, option in zip(kinds, options, strict=True)]
    if preset != "smoke" or "data" in given:
        return made
    return [
        replace(one, data=kind.make({"data": embedded_data(runs / "embedded")}, preset).data) if one.needs_data else one
        for kind, one in zip(kinds, made, strict=True)
    ]


def _list(as_json: bool) -> None:
    """All names, with what they are and the options that they take."""
    from ..papers import EXPERIMENTS, THEORY, experiment_of

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
    shown = [
        [row["name"], row["what"], _hours(row["cpu core-hours"]), ", ".join(row["presets"]), _options(row["options"])]
        for row in rows
    ]
    columns = ["name", "<what it shows", "core-hours, cpu", "<presets", "<options by --set"]
    print_table("Tables, figures and experiments", columns, shown)
    out.print(
        "\nlograd reproduce NAME makes one; lograd reproduce all makes those of theory, and with --preset all of them."
    )


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.1f}" if hours >= 0.05 else "0"


def _options(options: Mapping[str, str | None]) -> str:
    common = ("data", "only", "seeds")  # these have options of their own
    return ", ".join(
        f"{name}={'' if value is None else value}" for name, value in options.items() if name not in common
    )


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in settings:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidValue(f"--set takes OPTION=VALUE, such as --set steps=100; got {one!r}.")
        found[name] = value
    return found


def _experiment(
    chosen: Experiment, folder: CellFolder, results: Path | None, *, resume: bool, tabulate: bool, quiet: bool
) -> list[Result]:
    """Finish the cells of an experiment, and draw its tables."""
    from ..papers.experiment import carry_out
    from ..training import Interrupted
    from ..training.folder import make_folder
    from .progress import display

    if tabulate:
        if not folder.names:
            raise InvalidValue(f"the folder {folder} has no finished cell; without --tabulate they are worked out.")
        return _saved(chosen, folder, results)
    if folder.begun and not resume:
        raise InvalidValue(
            f"the folder {folder} has cells already; go on with them by --resume, or give another --runs."
        )
    if results is not None:
        make_folder(results)
    try:
        with display(chosen.label, quiet) as progress:
            carry_out(chosen, folder, None if quiet else _tell, progress)
    except Interrupted as error:
        say(f"stopped; go on with the same command and --resume ({error})")
        raise typer.Exit(128 + error.number) from None
    return _saved(chosen, folder, results)


def _tell(cell: Cell, finished: bool) -> None:
    say(f"{cell.name}: {'finished before' if finished else 'at work'}")


def _saved(experiment: Experiment, folder: CellFolder, results: Path | None) -> list[Result]:
    """The tables of an experiment, written as Markdown and JSON where that is asked for."""
    from ..files.atomic import replace_file

    drawn = experiment.draw(folder)
    if results is not None:
        text = "\n".join(result.to_markdown() for result in drawn)
        cells = [folder.record(name) for name in folder.names]
        content = {"tables": [result.to_json() for result in drawn], "cells": cells}
        replace_file(results / f"{experiment.label}.md", text.encode())
        replace_file(
            results / f"{experiment.label}.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        )
    return drawn


def _show(name: str, drawn: Sequence[Result], output: Path | None, as_json: bool) -> None:
    """Print the tables, and save the page."""
    from ..papers.result import text
    from ..report import Page

    page = Page("lograd reproduce", "Tables and figures, computed anew.", f"lograd reproduce {name}")
    for result in drawn:
        result.add_to(page)
    saved = page.save(output) if output is not None else None
    if as_json:
        print_json([result.to_json() for result in drawn])
        return
    for result in drawn:
        print_table(result.title, result.columns, [[text(cell) for cell in row] for row in result.rows])
        out.print(result.claim)
        for note in result.notes:
            out.print(f"  {note}", style="dim")
    out.print(f"\nThe page: {saved}")
