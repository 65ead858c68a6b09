"""A report as one self-contained HTML file: text, tables, and matplotlib figures as inline SVG.

The template beside this file is the only one.  Jinja2 and matplotlib belong to the extra `plot` and are imported when
a page is written.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from ..files import check_folder, replace_file
from .figures import plotting
from .text import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Section:
    """One part of a page; what it has is shown in the order of the arguments.

    Args:
        heading: empty for a section without one.
        text: paragraphs, separated by an empty line; words between backticks are set as code.
        numbers: large numbers to begin with, by their label.
        figures: drawn side by side where the screen has room.
        tables: as `text_table` returns them.
        folded: hidden below the heading until a reader opens it.
    """

    heading: str = ""
    text: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    tables: Sequence[TextTable] = ()
    folded: bool = False


def render(title: str, sections: Sequence[Section], footer: str = "") -> str:
    """Return the HTML text of a page; all text is escaped."""
    with plotting("An HTML page"):
        import jinja2
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"code": _code, "svg": _inline}
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.render(title=title, sections=sections, footer=footer)


def write_page(
    path: str | os.PathLike[str], title: str, sections: Sequence[Section], footer: str = "Made by lograd."
) -> Path:
    """Write a page and return its resolved path; a failure leaves an existing file as it was."""
    check_folder(path)  # before the figures are drawn
    return replace_file(path, render(title, sections, footer).encode())


def svg(figure: Figure) -> str:
    """Return a figure as an SVG text, equal for equal figures."""
    with plotting("A figure"):
        import matplotlib
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lograd"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    return re.sub("<metadata>.*</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _inline(figure: Figure) -> str:
    from markupsafe import Markup

    # Ids of groups, such as figure_1, would stand twice on a page; those that are referred to are hashes of content.
    return Markup(re.sub(r' id="[\w.]+_\d+"', "", svg(figure)))


def _code(text: str) -> str:
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
