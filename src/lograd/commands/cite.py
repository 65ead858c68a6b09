"""`lograd cite`: the BibTeX of what the package implements, collected from the docstrings that carry it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import lograd

from .console import Json, print_json

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
