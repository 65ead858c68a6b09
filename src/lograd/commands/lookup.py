"""Commands that look things up: `lograd formats`, `lograd recipes` and `lograd cite`."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import lograd

from .console import Json, cell, out, print_json, print_table


def formats(
    format: Annotated[str | None, typer.Argument(help="A format such as 1-4-1, int4 or mxfp4; none for all.")] = None,
    as_json: Json = False,
) -> None:
    """The catalogue of number formats, or every code of one format."""
    from ..formats import CATALOGUE, BlockFormat, parse_format

    if format is None:
        rows = [_summary(name, entry) for name, entry in CATALOGUE.items()]
        if as_json:
            print_json(rows)
        else:
            print_table("Formats with a name", list(rows[0]), [list(map(cell, row.values())) for row in rows])
            out.print("\nAny other: 1-EXPONENT-MANTISSA (lograd formats 1-4-1), intBITS, ELEMENT/SIZE/SCALE.")
        return
    chosen = parse_format(format)
    summary = _summary(format, chosen)
    element = chosen.element if isinstance(chosen, BlockFormat) else chosen
    codes = _codes(element)
    if as_json:
        print_json(summary | {"codes": codes})
        return
    print_table(str(chosen), ["property", "value"], [[key, cell(value)] for key, value in summary.items()])
    if not codes:
        out.print(f"\n{element} is too wide to list, or has no codes; formats of up to 8 bits list theirs.")
        return
    title = "Elements of a block, before its scale" if isinstance(chosen, BlockFormat) else "Every code"
    half = (len(codes) + 1) // 2  # two columns: in a signed float, the negative codes beside the positive ones
    pairs = [
        [*codes[i].values(), *(codes[i + half].values() if i + half < len(codes) else ("", ""))] for i in range(half)
    ]
    print_table(title, ["code", "value", "code", "value"], [[cell(value) for value in row] for row in pairs])


def _summary(name: str, format: Any) -> dict[str, Any]:
    from ..formats import BlockFormat

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
    from ..formats import IdealFormat

    if isinstance(format, IdealFormat) or format.bits > 8:
        return []
    return [{"code": f"{code:0{format.bits}b}", "value": _plain(format.decode(code))} for code in range(2**format.bits)]


def _plain(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe such as int5-bhq; none for all families.")] = None,
    as_json: Json = False,
) -> None:
    """Treatments by name, each with one line and its reference; or what one name stands for."""
    from ..treatments import ALL_RECIPES, OPERANDS, PRODUCTS, SYMBOLS, describe, recipe, to_json
    from ..treatments.recipes import MODIFIERS, registered

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
        print_json([{column: getattr(entry, column) for column in columns} for entry in ALL_RECIPES])
        return
    rows = [[entry.name, entry.example, entry.words, entry.reference] for entry in ALL_RECIPES]
    rows += [[own, own, "registered in this process", ""] for own in registered]
    print_table("Recipes", ["name", "<example", "<what it does", "<reference"], rows)
    out.print("\nEndings: " + "; ".join(f"-{ending}, {words}" for ending, (words, _) in MODIFIERS.items()) + ".")
    out.print("A+B applies B after A.  A/B treats the gradient by A for dX and by B for dW.")
    out.print(
        "Recipes of all three products leave biases, norms, the first convolution and the last linear layer in "
        "float32; Plan.uniform(name, keep=()) treats these two layers as well."
    )
    out.print("References: lograd cite.")


_ENTRY = re.compile(r"^@\w+\{(?P<key>\w+),\n.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Citation:
    """One entry, and the functions, classes and modules that rest on it."""

    key: str
    bibtex: str
    used_by: tuple[str, ...]


def cite(as_json: Json = False) -> None:
    """BibTeX of the papers and specifications that the package implements."""
    found = citations()
    if as_json:
        print_json([{"key": entry.key, "bibtex": entry.bibtex, "used_by": entry.used_by} for entry in found])
    else:
        print("\n\n".join(f"% {', '.join(entry.used_by)}\n{entry.bibtex}" for entry in found))


def citations() -> list[Citation]:
    """Every BibTeX entry in lograd's docstrings, sorted by key."""
    documents = dict(_documents())
    entries = {match["key"]: match[0] for text in documents.values() for match in _ENTRY.finditer(text)}
    return [
        Citation(
            key,
            entries[key],
            tuple(sorted(name for name, text in documents.items() if f"[{key}]" in text or entries[key] in text)),
        )
        for key in sorted(entries)
    ]


def _documents() -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of every module, and of what it defines."""
    for info in pkgutil.walk_packages(lograd.__path__, "lograd."):
        if info.name.startswith("lograd._"):
            continue
        module = importlib.import_module(info.name)
        yield info.name, _clean(module)
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) == info.name and (
                inspect.isclass(member) or inspect.isfunction(member)
            ):
                yield f"{info.name}.{name}", _clean(member)


def _clean(documented: object) -> str:
    return textwrap.dedent(inspect.cleandoc(documented.__doc__ or ""))
