"""Blocks of a page: text between two comments, which a function makes; and the tables that most of them are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from lograd.text import markdown_row as line

Maker = Callable[[], str]

_START = re.compile(r"<!-- made by \./dev docs: (?P<name>[a-z0-9-]+) -->")
_BLOCK = re.compile(_START.pattern + r"\n.*?<!-- end -->", re.DOTALL)


def filled(page: str, makers: Mapping[str, Maker], title: str = "the page") -> str:
    """The page with every block made anew; the text around the blocks stays as it is.

    Args:
        page: Markdown with blocks between `<!-- made by ./dev docs: NAME -->` and `<!-- end -->`.
        makers: a function for each name.
        title: what the page is called in an error.
    """

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in makers:
            raise SystemExit(f"{title}: there is no block {name!r}; there are {', '.join(sorted(makers))}.")
        if _START.search(match[0], len(name) + 10):
            raise SystemExit(f"{title}: the block {name!r} has no end; write <!-- end --> behind it.")
        return f"<!-- made by ./dev docs: {name} -->\n{makers[name]().strip()}\n<!-- end -->"

    done = _BLOCK.sub(made, page)
    if len(_START.findall(page)) != len(_BLOCK.findall(page)):
        raise SystemExit(f"{title}: a block has no end; write <!-- end --> behind it.")
    return done


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1) -> str:
    """A Markdown table whose first columns, `words` many, are text; the others are numbers and stand to the right."""
    lines = [line(columns), "|" + "---|" * words + "---:|" * (len(columns) - words)]
    return "\n".join([*lines, *map(line, rows)])
