"""The command line: `lograd COMMAND`.  All commands have --json.  Bad input is told what is valid; exit code 2."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .commands import COMMANDS
from .commands.console import Json, out, print_json, print_table
from .commands.stopping import StoppableGroup
from .errors import InvalidValue, LogradError, nearest_name

app = typer.Typer(
    cls=StoppableGroup,
    help="Backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: errors raised on purpose become one sentence on standard error."""
    try:
        app()
    except LogradError as error:
        print(f"lograd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        out.on_broken_pipe()


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


for command in COMMANDS:
    app.command()(command)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("lograd-demo.html"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps only: shows that everything works.")] = False,
    as_json: Json = False,
) -> None:
    """Profile two small networks on real data, plan, train dense, with 6 bits and with 85 % zeros; ends in a page."""
    from .report import check_folder

    check_folder(output)  # before the work and before torch, which takes a second to import
    from .demo.command import run

    run(output, quick, as_json, out)


@app.command()
def formats(
    format: Annotated[str | None, typer.Argument(help="A format such as 1-4-1, int4 or mxfp4; none for all.")] = None,
    as_json: Json = False,
) -> None:
    """The catalogue of number formats, or every code of one format."""
    from .formats import CATALOGUE, BlockFormat, parse_format

    if format is None:
        rows = [_summary(name, entry) for name, entry in CATALOGUE.items()]
        if as_json:
            print_json(rows)
        else:
            print_table("Formats with a name", list(rows[0]), [list(map(_cell, row.values())) for row in rows])
            out.print("\nAny other: 1-EXPONENT-MANTISSA (lograd formats 1-4-1), intBITS, ELEMENT/SIZE/SCALE.")
        return
    chosen = parse_format(format)
    summary = _summary(format, chosen)
    element = chosen.element if isinstance(chosen, BlockFormat) else chosen
    codes = _codes(element)
    if as_json:
        print_json(summary | {"codes": codes})
        return
    print_table(str(chosen), ["property", "value"], [[key, _cell(value)] for key, value in summary.items()])
    if not codes:
        out.print(f"\n{element} is too wide to list, or has no codes; formats of up to 8 bits list theirs.")
        return
    title = "Elements of a block, before its scale" if isinstance(chosen, BlockFormat) else "Every code"
    half = (len(codes) + 1) // 2  # two columns: in a signed float, the negative codes beside the positive ones
    pairs = [
        [*codes[i].values(), *(codes[i + half].values() if i + half < len(codes) else ("", ""))] for i in range(half)
    ]
    print_table(title, ["code", "value", "code", "value"], [[_cell(cell) for cell in row] for row in pairs])


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe such as int5-bhq; none for all families.")] = None,
    as_json: Json = False,
) -> None:
    """Treatments by name, each with one line and its reference; or what one name stands for."""
    from .treatments import OPERANDS, PRODUCTS, RECIPES, SYMBOLS, describe, recipe, to_json
    from .treatments.recipes import MODIFIERS

    if name is not None:
        found = recipe(name)
        sites = {
            product: {operand: getattr(getattr(found, product), operand) for operand in OPERANDS[product]}
            for product in PRODUCTS
        }
        if as_json:
            print_json({p: {operand: to_json(part) for operand, part in parts.items()} for p, parts in sites.items()})
            return
        rows = [
            [f"{product} ({SYMBOLS[product]})", operand, describe(part)]
            for product, parts in sites.items()
            for operand, part in parts.items()
        ]
        print_table(name, ["product", "<operand", "<treatment"], rows)
        return
    if as_json:
        columns = ("name", "example", "words", "reference")
        print_json([{column: getattr(entry, column) for column in columns} for entry in RECIPES])
        return
    rows = [[entry.name, entry.example, entry.words, entry.reference] for entry in RECIPES]
    print_table("Recipes", ["name", "<example", "<what it does", "<reference"], rows)
    out.print("\nEndings: " + "; ".join(f"-{ending}, {words}" for ending, (words, _) in MODIFIERS.items()) + ".")
    out.print("A+B applies B after A.  A/B treats the gradient by A for dX and by B for dW.")
    out.print("References: lograd cite.")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="table2, fig3a, fig3b, fig3c, fig4, or all.")] = "all",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; lograd-NAME.html by default, none with --json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute a table or figure of the papers anew, the paper's value beside ours."""
    from .papers import REPRODUCTIONS
    from .papers.result import text
    from .report import Page, check_folder

    names = list(REPRODUCTIONS) if name == "all" else [name]
    if unknown := [one for one in names if one not in REPRODUCTIONS]:
        hint = nearest_name(unknown[0], REPRODUCTIONS)
        raise InvalidValue(f"{unknown[0]!r} is not one of {', '.join(REPRODUCTIONS)}, all.{hint}")
    if output is None and not as_json:
        output = Path(f"lograd-{name}.html")
    if output is not None:
        check_folder(output)
    results = [REPRODUCTIONS[one]() for one in names]
    page = Page("lograd reproduce", "The papers' tables and figures, computed anew.", f"lograd reproduce {name}")
    for result in results:
        result.add_to(page)
    saved = page.save(output) if output is not None else None
    if as_json:
        print_json([result.to_json() for result in results])
        return
    for result in results:
        print_table(result.title, result.columns, [[text(cell) for cell in row] for row in result.rows])
        out.print(result.claim)
        for note in result.notes:
            out.print(f"  {note}", style="dim")
    out.print(f"\nThe page: {saved}")


@app.command()
def env(as_json: Json = False) -> None:
    """Versions, CPU features, native kernels in use, threads: what a bug report needs."""
    from .environment import describe

    sections = describe()
    if as_json:
        print_json(sections)
        return
    for title, section in sections.items():
        print_table(title, ["", ""], [[key, _cell(value)] for key, value in section.items()], header=False)


@app.command()
def cite(as_json: Json = False) -> None:
    """BibTeX of the papers and specifications that the package implements."""
    from .citation import citations

    found = citations()
    if as_json:
        print_json([{"key": entry.key, "bibtex": entry.bibtex, "used_by": entry.used_by} for entry in found])
    else:
        print("\n\n".join(f"% {', '.join(entry.used_by)}\n{entry.bibtex}" for entry in found))


def _summary(name: str, format: Any) -> dict[str, Any]:
    from .formats import BlockFormat

    element = format.element if isinstance(format, BlockFormat) else format
    listable = element.bits <= 16
    return {
        "name": name,
        "text": str(format),
        "bits per element": format.bits_per_element if isinstance(format, BlockFormat) else format.bits,
        "finite values": len(element.values()) if listable else None,
        "largest": element.max,
        "smallest positive": element.min_positive,
        "infinity and NaN": getattr(element, "specials", "none"),
    }


def _codes(format: Any) -> list[dict[str, Any]]:
    from .formats import IdealFormat

    if isinstance(format, IdealFormat) or format.bits > 8:
        return []
    return [{"code": f"{code:0{format.bits}b}", "value": _plain(format.decode(code))} for code in range(2**format.bits)]


def _plain(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
