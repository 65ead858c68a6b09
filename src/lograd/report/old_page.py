"""A page as one self-contained HTML file: styles and drawings inside, no script, no font, no network.

A `Page` is filled from top to bottom.  All text is escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import InvalidValue, sentence
from ..files.atomic import replace_file
from .chart import Chart
from .heatmap import HeatMap
from .svg import escape, number, text_width
from .theme import CHART_CSS

_PAGE_CSS = """
:root{--page:#f5f7f9;--tint:#e3f0f9;--code:#eef1f4;--shade:rgb(20 40 60/.32);color-scheme:light dark}
:root{--good:#12704f;--bad:#b3261e}
@media screen and (prefers-color-scheme:dark){:root{--page:#0f141a;--tint:#173246;--code:#222b35}
:root{--shade:rgb(180 210 240/.34);--good:#4cc79b;--bad:#ff8f85}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--lg-ink);font:16px/1.55 var(--lg-font);-webkit-text-size-adjust:100%}
main,header,footer{max-width:1180px;margin:0 auto;padding:0 20px}
header{padding-top:40px} h1{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
header p{margin:0;color:var(--lg-muted);font-size:18px}
h2{font-size:21px;line-height:1.3;margin:44px 0 10px}
p{margin:12px 0;max-width:74ch}
.note{border-left:3px solid var(--lg-c0);padding:2px 0 2px 14px;color:var(--lg-muted)}
code,pre{font:.875em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code,pre{background:var(--code);border-radius:5px} code{padding:1px 5px} pre{padding:14px 16px;overflow-x:auto}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,165px),1fr));gap:14px;margin:22px 0}
.tile,.card{background:var(--lg-surface);border:1px solid var(--lg-grid);border-radius:10px}
.tile{padding:16px 18px} .tile b{display:block;font-size:30px;line-height:1.15;font-variant-numeric:tabular-nums}
.tile.good b{color:var(--good)} .tile.bad b{color:var(--bad)}
.tile span{display:block;font-weight:600;margin-top:4px} .tile small{color:var(--lg-muted);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:16px;margin:18px 0}
.charts .card{margin:0;padding:6px;overflow:hidden}
.charts svg{display:block;width:100%;height:auto;max-width:700px;margin:0 auto} .charts .narrow{display:none}
details{margin:10px 0;padding:0 18px} details[open]{padding-bottom:8px}
summary{cursor:pointer;padding:11px 0;font-variant-numeric:tabular-nums} summary:hover{color:var(--lg-c0)}
figure{margin:18px 0} figcaption{color:var(--lg-muted);font-size:14px;margin:0 0 8px}
.card.scroll{overflow-x:auto;scrollbar-width:thin;scrollbar-color:var(--lg-axis) transparent;
background:linear-gradient(to right,var(--lg-surface) 40%,transparent) left/40px 100% no-repeat local,
linear-gradient(to left,var(--lg-surface) 40%,transparent) right/40px 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) left/18px 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) right/18px 100% no-repeat scroll,var(--lg-surface)}
.hint{display:none;color:var(--lg-muted);font-size:13px;margin:0 2px 6px;text-align:right;max-width:none}
.hint.h2{display:block}
.s{position:sticky;left:0;z-index:1;background:var(--lg-surface);box-shadow:1px 0 var(--lg-grid)} .s wbr{display:none}
td.w{white-space:normal;min-width:26ch}
table{border-collapse:collapse;width:100%;font-size:14.5px}
th,td{padding:8px 14px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--lg-grid)}
td{font-variant-numeric:tabular-nums}
th{color:var(--lg-muted);font-weight:600;border-bottom-color:var(--lg-axis)} tr:last-child td{border-bottom:0}
.r{text-align:right} .c{text-align:center} td.hit{background:var(--tint);font-weight:600}
footer{margin-top:48px;padding-bottom:36px;color:var(--lg-muted);font-size:13px}
@media (max-width:1000px){.hint.h1{display:block}}
@media (max-width:560px){
.hint.h0{display:block} .s{max-width:44vw;min-width:12ch;white-space:normal;overflow-wrap:break-word}
.s wbr{display:inline}
main,header,footer{padding-left:14px;padding-right:14px} header{padding-top:24px}
h1{font-size:25px} header p{font-size:16px} .charts .wide{display:none} .charts .narrow{display:block}
.tiles{grid-template-columns:1fr 1fr;gap:10px} .tile{padding:12px 14px} .tile b{font-size:25px}
th,td{padding:7px 10px}}
@media print{body{background:#fff;font-size:10.5pt} header{padding-top:0} .tile,.card,tr{break-inside:avoid}
h2{break-after:avoid} .charts{grid-template-columns:1fr 1fr} .tile b{font-size:19pt} .tile span{font-size:10pt}
.card.scroll{overflow:visible;background:none} .hint{display:none!important} .s{position:static;box-shadow:none}
th,td{white-space:normal;padding:4px 7px} table{font-size:9pt} pre{white-space:pre-wrap}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
_PHONE = 380
"""Pixels of the width of charts for phones, which are drawn again so that their text keeps its size."""
LONG = 48
"""Characters beyond which the text of a cell is wrapped."""
_WIDTHS = {"h2": 1120, "h1": 640, "h0": 330}
"""Pixels beyond which a table does not fit a screen, a small window or a phone, by CSS class of the hint."""


def _scroll_hint(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a line above a table that says to scroll, shown by CSS on screens that are estimated to be too narrow."""
    lines = [[escape(name) for name in columns], *rows]
    pixels = sum(28 + max(text_width(cell[:LONG], 14.5) for cell in column) for column in zip(*lines, strict=True))
    kind = next((kind for kind, room in _WIDTHS.items() if pixels > room), None)
    return f'<p class="hint {kind}">More columns: scroll sideways →</p>' if kind else ""


def _breakable(name: str) -> str:
    """Allow line breaks behind the dots and underscores of a layer's name, for phones."""
    return re.sub(r"([._/])(?=\w)", r"\1<wbr/>", name) if "&" not in name and "<" not in name else name


def _prose(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, Real) and not isinstance(cell, bool))


def _cell(cell: object) -> str:
    match cell:
        case None:
            return "–"
        case bool():
            return "yes" if cell else "no"
        case Integral():
            return f"{int(cell):,}".replace("-", "−")
        case Real():
            return number(float(cell))
    return escape(cell)


class Tile(NamedTuple):
    """A big number with a label and a hint; `tone` colours it as good or bad."""

    value: str
    label: str
    hint: str = ""
    tone: Literal["", "good", "bad"] = ""


@dataclass
class Page:
    """A page under construction; every method that adds a block returns the page.

    Args:
        footer: small print at the end, such as versions and the command that made the page.

    >>> page = Page("Results").heading("Speed").text("Measured on `cpu0`.")
    >>> "<h2>Speed</h2>" in page.html()
    True
    """

    title: str
    subtitle: str = ""
    footer: str = ""
    _blocks: list[str] = field(default_factory=list, init=False, repr=False)

    def _add(self, block: str) -> Page:
        self._blocks.append(block)
        return self

    def heading(self, text: str) -> Page:
        """Add the heading of a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> Page:
        """Add a paragraph; words between backticks are set as code."""
        return self._add(f"<p>{_prose(text)}</p>")

    def note(self, text: str) -> Page:
        """Add a paragraph that stands out, for limits and caveats."""
        return self._add(f'<p class="note">{_prose(text)}</p>')

    def code(self, text: str) -> Page:
        """Add a block of code."""
        return self._add(f"<pre>{escape(text)}</pre>")

    def metrics(self, tiles: Sequence[tuple[str, str, str] | Tile]) -> Page:
        """Add a row of big numbers: a `Tile` or (value, label, hint) for each; the hint may be empty."""
        inner = "".join(
            f'<div class="tile {tile.tone}"><b>{escape(tile.value)}</b><span>{escape(tile.label)}</span>'
            f"<small>{_prose(tile.hint)}</small></div>"
            for tile in (Tile(*one) for one in tiles)
        )
        return self._add(f'<div class="tiles">{inner}</div>')

    def fold(self, summary: str, part: Page) -> Page:
        """Add the blocks of another page, folded away under a line that opens them."""
        blocks = "".join(part._blocks)
        return self._add(f'<details class="card"><summary>{_prose(summary)}</summary>{blocks}</details>')

    def charts(self, *charts: Chart | HeatMap, phone: bool = True) -> Page:
        """Add charts, side by side where the screen has room.

        Args:
            phone: draw each chart again for phones; False keeps pages with hundreds of charts small.
        """
        inner = []
        for chart in charts:
            wide = chart.svg(styled=False)
            if not phone:
                inner.append(f'<div class="card">{wide}</div>')
                continue
            narrow = replace(chart, width=_PHONE, height=min(chart.height, 300)).svg(styled=False)
            inner.append(f'<div class="card"><div class="wide">{wide}</div><div class="narrow">{narrow}</div></div>')
        return self._add(f'<div class="charts">{"".join(inner)}</div>')

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        caption: str = "",
        align: str = "",
        highlight: Callable[[int, int], bool] | Collection[tuple[int, int]] = (),
    ) -> Page:
        """Add a table that scrolls inside its own card.

        Args:
            rows: cells of any type; floats are shown with four digits, None as a dash.
            caption: stands above the table.
            align: a letter `l`, `c` or `r` for each column; by default numbers go right.
            highlight: the (row, column) cells that stand out, counted from zero, or a function that returns True for
                them.
        """
        if any(len(row) != len(columns) for row in rows):
            raise InvalidValue(sentence(f"rows of the table {caption!r}", rows, f"of {len(columns)} cells each"))
        if not align:
            by_column = list(zip(*rows, strict=True)) or [("",)] * len(columns)  # a table may have no rows yet
            align = "".join("r" if all(map(_is_number, column)) else "l" for column in by_column)
        if len(align) != len(columns) or set(align) - set("lcr"):
            raise InvalidValue(sentence("align", align, f"a letter l, c or r for each of {len(columns)} columns"))
        hit = highlight if callable(highlight) else lambda row, column: (row, column) in highlight
        named = max(align.find("l"), 0)  # the first column of texts, which stays in sight while the others scroll
        stays = [" s" * (place == named) for place in range(len(columns))]
        head = "".join(
            f'<th scope="col" class="{align[j]}{stays[j]}">{escape(name)}</th>' for j, name in enumerate(columns)
        )
        cells = [[_cell(cell) for cell in row] for row in rows]
        body = "".join(
            "<tr>"
            + "".join(
                f'<td class="{align[j]}{stays[j]}{" w" * (len(cell) > LONG)}{" hit" * hit(i, j)}">'
                f"{_breakable(cell) if j == named else cell}</td>"
                for j, cell in enumerate(row)
            )
            + "</tr>"
            for i, row in enumerate(cells)
        )
        title = f"<figcaption>{_prose(caption)}</figcaption>" if caption else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        hint = _scroll_hint(columns, cells)
        return self._add(f'<figure>{title}{hint}<div class="card scroll" tabindex="0">{table}</div></figure>')

    def html(self) -> str:
        """Return the whole page as text."""
        subtitle = f"<p>{_prose(self.subtitle)}</p>" if self.subtitle else ""
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>\n'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<style>{CHART_CSS}{_PAGE_CSS}</style></head>\n<body><header><h1>{escape(self.title)}</h1>{subtitle}</header>\n"
            f"<main>{chr(10).join(self._blocks)}</main>\n<footer>{_prose(self.footer)}</footer></body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file; a failure leaves an existing file as it was."""
        return replace_file(path, self.html().encode())
