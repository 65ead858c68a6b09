"""`./dev reproduce`: a table or figure of the papers, or an experiment of our own, computed or trained anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lograd.commands.console import Json, out, print_json, print_table, say, warnings_as_sentences
from lograd.errors import InvalidValue, nearest_name, plural

if TYPE_CHECKING:
    from .lab.ranks import Ranks
    from .papers import Result
    from .papers.cells import Cell, CellFolder
    from .papers.experiment import Experiment


Name = Annotated[
    str | None, typer.Argument(help="A table, figure or experiment, or all of the papers; none lists them.")
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
    bool,
    typer.Option("--resume", help="Go on with the cells in the folder, and in --results; finished ones are kept."),
]
Tabulate = Annotated[bool, typer.Option("--tabulate", help="Only draw the tables of the finished cells.")]
Results = Annotated[
    Path | None,
    typer.Option(help="Write the tables into this folder as .md and .json as well; --resume takes cells from there."),
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
    inside the package where none is given. all runs every table and figure of the
    papers that has the preset; without --preset those that theory alone gives.
    """
    from lograd.report import check_folder

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
    options = {"data": data, "seeds": seeds, "only": only, **_pairs(setting or [])}
    given = {option: value for option, value in options.items() if value is not None}
    drawn: list[Result] = []
    if name in EXPERIMENTS or (name == "all" and preset is not None):
        with _together() as ranks:
            with ranks.together():
                found = [(one, CellFolder(runs / one.label)) for one in _chosen(name, given, preset, runs)]
                if results is not None and ranks.main:
                    _prepare(found, results, resume=resume, quiet=as_json)
            with ranks.together():
                if name == "all" and tabulate:
                    found = [(one, folder) for one, folder in found if folder.names]
                for one, folder in found if ranks.main else []:
                    _check(folder, resume=resume, tabulate=tabulate)
                    _check_kept(one, folder, results)
            for one, folder in found:
                if not tabulate:
                    _finish(one, folder, ranks, quiet=as_json or not ranks.main)
                drawn += _saved(one, folder, results if ranks.main else None)
            if not ranks.main:
                return
    elif given or preset or resume or tabulate or results:
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
        every = [experiment_of(one) for one in EXPERIMENTS]
        kinds = [kind for kind in every if kind.claim and preset in kind.presets]
        if not kinds:
            every[0].make({}, preset)  # refuses the preset by name
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
    shown = [
        [row["name"], row["what"], _hours(row["cpu core-hours"]), ", ".join(row["presets"]), _options(row["options"])]
        for row in rows
    ]
    columns = ["name", "<what it shows", "core-hours, cpu", "<presets", "<options by --set"]
    print_table("Tables, figures and experiments", columns, shown)
    out.print(
        "\n./dev reproduce NAME makes one; ./dev reproduce all makes those of theory, and with --preset also the "
        "other tables and figures of the papers."
    )


def _hours(hours: float | None) -> str:
    if not hours:
        return "" if hours is None else "0"
    return f"{hours:.1f}" if hours >= 0.1 else f"{hours:.2f}"


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


@contextmanager
def _together() -> Iterator[Ranks]:
    """Yield the processes that share the work under torchrun, of which rank 0 speaks for all."""
    from .lab import FailedElsewhere, Interrupted, LostRank, joined

    main = True
    try:
        with joined() as ranks, warnings_as_sentences(silent=not ranks.main):
            main = ranks.main
            yield ranks
    except Interrupted as error:
        if main:
            say(f"stopped; go on with the same command and --resume ({error})")
        raise typer.Exit(128 + error.number) from None
    except LostRank as error:
        say(str(error))
        raise typer.Exit(1) from None
    except FailedElsewhere:
        raise typer.Exit(2) from None


def _prepare(found: Sequence[tuple[Experiment, CellFolder]], results: Path, *, resume: bool, quiet: bool) -> None:
    """Make the folder of results, and take the cells that are finished there if work is to be resumed."""
    from .lab.folder import make_folder

    make_folder(results)
    for one, folder in found if resume else ():
        path = results / f"{one.label}.json"
        if path.exists() and (count := folder.take(path)) and not quiet:
            say(f"{plural(count, 'finished cell')} taken from {path}")


def _check(folder: CellFolder, *, resume: bool, tabulate: bool) -> None:
    """Refuse a folder that has nothing to draw, or cells that nobody has asked to go on with."""
    if tabulate and not folder.names:
        raise InvalidValue(f"the folder {folder} has no finished cell; without --tabulate they are worked out.")
    if folder.begun and not resume and not tabulate:
        raise InvalidValue(
            f"the folder {folder} has cells already; go on with them by --resume, or give another --runs."
        )


def _check_kept(chosen: Experiment, folder: CellFolder, results: Path | None) -> None:
    """Refuse to replace a file of results by one without some of its cells; --resume has taken them all."""
    from .papers.cells import records_of

    if results is None:
        return
    path = results / f"{chosen.label}.json"
    had = [record["name"] for record in records_of(path)] if path.exists() else []
    if lost := [name for name in had if name not in folder.names]:
        raise InvalidValue(
            f"{path} has {plural(len(lost), 'finished cell')} that {folder} lacks, such as {lost[0]!r}; go on with "
            "them by --resume, or give another --results."
        )


def _finish(chosen: Experiment, folder: CellFolder, ranks: Ranks, *, quiet: bool) -> None:
    """Finish the cells of an experiment."""
    from .papers.experiment import carry_out
    from .progress import display

    with display(chosen.label, quiet) as progress:
        carry_out(chosen, folder, None if quiet else _tell, progress, ranks)


def _tell(cell: Cell, finished: bool) -> None:
    say(f"{cell.name}: {'finished before' if finished else 'at work'}")


def _saved(experiment: Experiment, folder: CellFolder, results: Path | None) -> list[Result]:
    """The tables of an experiment, written as Markdown and JSON where that is asked for, and some charts as SVG."""
    from lograd.files.atomic import replace_file

    drawn = experiment.draw(folder)
    if results is not None:
        text = "\n".join(result.to_markdown() for result in drawn)
        cells = [folder.record(name) for name in folder.names]
        content = {"tables": [result.to_json() for result in drawn], "cells": cells}
        replace_file(results / f"{experiment.label}.md", text.encode())
        replace_file(
            results / f"{experiment.label}.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
        )
        charts = [chart for result in drawn for chart in result.charts] if experiment.keeps_charts else []
        for number, chart in enumerate(charts, 1):
            replace_file(results / f"{experiment.label}-{number}.svg", chart.svg().encode())
    return drawn


def _show(name: str, drawn: Sequence[Result], output: Path | None, as_json: bool) -> None:
    """Print the tables, and save the page."""
    from lograd.report import Page

    from .papers.result import text

    page = Page("lograd reproduce", "Tables and figures, computed anew.", f"./dev reproduce {name}")
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
