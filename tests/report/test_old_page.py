"""Pages: well-formed, escaped, self-contained, and saved atomically."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lograd.errors import LogradError
from lograd.report import Bars, CannotWrite, Chart, Line, Page, Rule, Tile

texts = st.text(max_size=60)


def parse(chart: Chart) -> ET.Element:
    """The drawing as a tree; every coordinate in it is a finite number."""
    svg = chart.svg()
    assert not re.search(r'[="\s,LMHV](nan|-?inf)\b', re.sub(r">[^<]*<", "><", svg))
    return ET.fromstring(svg)


EVIL = "<script>alert('&')</script>\x00\"]]>"


def full_page(text: str = "plain") -> Page:
    return (
        Page(text, text, footer=text)
        .heading(text)
        .text(text)
        .note(text)
        .code(text)
        .metrics([(text, text, text)])
        .table([text], [[text]], caption=text)
        .charts(Chart(text, text, text, [Line([0, 1], [0, 1], text, markers=True), Rule(0.5, text)], note=text))
        .charts(Chart(text, text, text, [Bars([text], [1], text)]))
        .charts(Chart(text, text, text, [Line([0, 1], [0, 1], text)], end_labels=True))
    )


def test_all_text_is_escaped() -> None:
    page = full_page(EVIL).html()
    assert "<script" not in page
    assert "\x00" not in page
    assert page.count("&lt;script&gt;") > 20
    parse(Chart(EVIL, EVIL, EVIL, [Line([0, 1], [0, 1], EVIL, markers=True), Rule(0, EVIL)], note=EVIL))


@given(texts)
def test_every_page_is_well_formed(text: str) -> None:
    # HTML with every tag closed is XML but for its preamble and its void tags, which makes XML a sharp check.
    body = re.sub(r"<meta[^>]*>", "", full_page(text).html().removeprefix("<!DOCTYPE html>\n"))
    ET.fromstring(body)


def test_a_page_refers_to_nothing_outside() -> None:
    page = full_page().html().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|src=|href=", page)


def test_code_in_prose_and_numbers_in_tables() -> None:
    rows = [["a", 1234567, np.float32(0.25), None, True], ["b", -2, 1.5e-7, np.int64(3), False]]
    page = Page("t").text("call `f(<x>)` now").table(list("vwxyz"), rows, highlight={(1, 2)}).html()
    assert "<p>call <code>f(&lt;x&gt;)</code> now</p>" in page
    cells = re.findall(r'<td class="([^"]*)">([^<]*)</td>', page)
    assert cells[:5] == [("l s", "a"), ("r", "1,234,567"), ("r", "0.25"), ("r", "–"), ("l", "yes")]
    assert cells[5:] == [("l s", "b"), ("r", "−2"), ("r hit", "1.5×10⁻⁷"), ("r", "3"), ("l", "no")]
    by_rule = Page("t").table(list("vwxyz"), rows, highlight=lambda row, column: (row, column) == (1, 2)).html()
    assert by_rule == page.replace("<p>call <code>f(&lt;x&gt;)</code> now</p>\n", "")


def test_a_table_may_have_no_rows_yet() -> None:
    assert "<th" in Page("title").table(["one", "two"], []).html()


def test_a_table_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        Page("t").table(["a", "b"], [[1]])
    with pytest.raises(ValueError, match="2 columns"):
        Page("t").table(["a", "b"], [[1, 2]], align="lx")


def test_save_writes_the_whole_page_with_the_usual_permissions(tmp_path: Path) -> None:
    page = full_page("σ = 2⁻³")
    path = page.save(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page.html()
    assert os.listdir(tmp_path) == ["report.html"]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o600)
    assert page.save(str(path)).stat().st_mode & 0o777 == 0o600


def test_save_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    Page("new").save(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert "new" in (tmp_path / "real.html").read_text()


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_save_keeps_the_old_file_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(CannotWrite, match="No space left on device"):
        Page("new").save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_an_error_while_the_page_is_made_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupt(_: Page) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Page, "html", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Page("new").save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_save_says_what_is_wrong_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match=r"the folder .*missing does not exist\.$"):
        Page("t").save(tmp_path / "missing" / "report.html")
    with pytest.raises(CannotWrite, match="Is a directory"):
        Page("t").save(tmp_path)
    assert issubclass(CannotWrite, LogradError)
    assert os.listdir(tmp_path) == []
    assert [p.name for p in tmp_path.parent.iterdir() if p.suffix == ".tmp"] == []


NAMES = [f"vit.layers.{number}.attention.q_proj" for number in range(3)]


class _Cells(HTMLParser):
    """Classes of the cells of the first row, and the hints."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.hints: list[str] = []
        self.feed(page.html())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("class") or ""
        if tag == "td":
            self.cells.append(kind)
        if tag == "p" and "hint" in kind:
            self.hints.append(kind)


def test_the_column_of_names_stays_in_sight() -> None:
    page = Page("x").table(("#", "layer", "zeros"), [[1, NAMES[0], 0.5]])
    assert [kind.split() for kind in _Cells(page).cells] == [["r"], ["l", "s"], ["r"]]
    assert "vit.<wbr/>layers.<wbr/>0.<wbr/>attention.<wbr/>q_<wbr/>proj" in page.html()


@pytest.mark.parametrize(("columns", "hint"), [(2, []), (4, ["hint h0"]), (9, ["hint h1"]), (20, ["hint h2"])])
def test_a_table_says_on_which_screens_it_scrolls(columns: int, hint: list[str]) -> None:
    page = Page("x").table([f"column {place}" for place in range(columns)], [["12.3 %"] * columns])
    assert _Cells(page).hints == hint


def test_a_long_text_is_wrapped_in_its_cell() -> None:
    page = Page("x").table(("layer", "why"), [["fc", "its forward did not run at an observed step, or it was kept"]])
    assert [kind.split() for kind in _Cells(page).cells] == [["l", "s"], ["l", "w"]]


def test_good_and_bad_numbers_have_their_own_class() -> None:
    html = Page("x").metrics([Tile("+1", "better", "", "good"), Tile("+1", "worse", "", "bad"), ("1", "a", "b")]).html()
    assert re.findall(r'class="tile (\w*)"', html) == ["good", "bad", ""]


def test_folds_hold_blocks():
    html = Page("p").fold("more `x` <b>", Page("inner").text("inside")).html()
    assert "<summary>more <code>x</code> &lt;b&gt;</summary><p>inside</p></details>" in html
