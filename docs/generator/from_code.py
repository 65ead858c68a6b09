"""Blocks that the code itself knows: recipes, references, operators with their signatures, commands with their help."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from typer.testing import CliRunner

from lograd import attachment, nn, ops
from lograd.cli import app, citations
from lograd.formats import CATALOGUE, BlockFormat
from lograd.ops import registry
from lograd.treatments.recipes import ALL_RECIPES, MODIFIERS

from .blocks import Maker, table

WIDTH = 110
"""Columns of the help texts; their wording is that of the typer in constraints.txt."""

REGISTERING = (ops, attachment, nn)
"""Packages whose import registers operators with PyTorch."""


def recipes() -> str:
    """Every family of names, with an example and the paper that it comes from."""
    rows = [[_names(one.name), f"`{one.example}`", one.words, one.reference] for one in ALL_RECIPES]
    return table(["name", "example", "what it does", "reference"], rows, words=4)


def _names(text: str) -> str:
    return ", ".join(f"`{name}`" for name in text.split(", "))


def endings() -> str:
    """The endings that a recipe may have."""
    rows = [[f"`-{ending}`", words] for ending, (words, _) in MODIFIERS.items()]
    return table(["ending", "what it does"], rows, words=2)


def references() -> str:
    """Key, title and year of the papers that recipes name."""
    named = {one.reference for one in ALL_RECIPES}
    rows = [[one.key, _field(one.bibtex, "title"), _field(one.bibtex, "year")] for one in citations()]
    return table(["key", "title", "year"], [row for row in rows if row[0] in named], words=3)


def _field(bibtex: str, name: str) -> str:
    found = re.search(rf"^\s*{name}\s*=\s*\{{(.*?)\}},?$", bibtex, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].replace("{", "").replace("}", "").split()) if found else ""


def formats() -> str:
    """The formats that have a name of their own."""
    rows = []
    for name, format in CATALOGUE.items():
        element: Any = format.element if isinstance(format, BlockFormat) else format
        bits = format.bits_per_element if isinstance(format, BlockFormat) else format.bits
        rows.append([f"`{name}`", f"`{format}`", f"{bits:g}", f"{element.max:.6g}", f"{element.min_positive:.6g}"])
    return table(["name", "text", "bits per element", "largest", "smallest positive"], rows, words=2)


def operators() -> str:
    """The functions of `lograd.ops`: name, arguments and the first line of the docstring, module by module."""
    parts = []
    functions = [one for name in ops.__all__ if inspect.isfunction(one := getattr(ops, name))]
    for module in dict.fromkeys(inspect.getmodule(one) for one in functions):
        assert module is not None
        rows = [[_call(one), _first_line(one)] for one in functions if inspect.getmodule(one) is module]
        parts.append(f"### {_title(module)}\n\n{table(['function', 'what it returns'], rows, words=2)}")
    return "\n\n".join(parts)


def _title(module: ModuleType) -> str:
    """The first line of a module's docstring, up to its first comma or colon."""
    return re.split(r"[,:.]", _first_line(module))[0]


def _call(function: Callable[..., Any]) -> str:
    """The call with argument names and defaults; types stand in `help(function)`."""
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in inspect.signature(function).parameters.values()]
    text = str(inspect.Signature(bare)).replace("torch.float32", "float32")
    return f"`{function.__name__}{text}`"


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def schemas() -> str:
    """The signatures under which PyTorch knows the operators."""
    lines = sorted(str(getattr(torch.ops.lograd, name).default._schema) for name in registry.operators)
    return "```\n" + "\n".join(lines) + "\n```"


def commands() -> str:
    """The help of every command, in the order of `lograd --help`."""
    app.rich_markup_mode = None  # plain text without boxes
    parts = [_help()]
    for info in app.registered_commands:
        assert info.callback is not None
        parts.append(_help(info.name or info.callback.__name__, inspect.getdoc(info.callback) or ""))
    return "\n\n".join(parts)


def _help(command: str = "", words: str = "") -> str:
    """The help of a command.  Its docstring replaces the folded copy, in which line breaks are lost."""
    arguments = [command, "--help"] if command else ["--help"]
    text = CliRunner().invoke(app, arguments, prog_name="lograd", terminal_width=WIDTH).output.rstrip()
    if words:
        usage, options = text.partition("\n\n")[0], re.search(r"^(Arguments|Options):", text, re.MULTILINE)
        assert options is not None
        text = f"{usage}\n\n{textwrap.indent(words, '  ')}\n\n{text[options.start() :]}"
    return f"## lograd {command}".rstrip() + f"\n\n```\n{text}\n```"


BLOCKS: dict[str, Maker] = {
    "recipes": recipes,
    "endings": endings,
    "references": references,
    "formats": formats,
    "operators": operators,
    "schemas": schemas,
    "commands": commands,
}
"""A function for each name of a block."""
