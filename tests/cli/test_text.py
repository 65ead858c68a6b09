"""Tables for the terminal at every width: names are whole, and columns that are left out are named."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios

import pytest
from rich.console import Console

from lograd.text import TextTable, text_table

NAMES = [f"vit.layers.{number}.attention.q_proj" for number in range(3)]


COLUMNS = ("layer", "<kind", "<treatment", "elements", "zeros", "cosine", "relative error", "work", "sigma")


WORDS = "prune 0.85, then 1-4-1 scale max, rounded at random"


def _table(droppable: tuple[str, ...] = ("elements", "<kind")) -> TextTable:
    rows = [[name, "Linear", WORDS, "1,234,567", "85.0%", "0.9123", "1.8300", "12.3%", "2.01"] for name in NAMES]
    return text_table("Plan for 3 layers", COLUMNS, rows, "Zeros are predicted.", droppable=droppable)


def _shown(table: TextTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_text_is_as_wide_as_it_needs() -> None:
    table = _table()
    header = next(line for line in table.splitlines() if line.lstrip().startswith("layer"))
    assert [name.removeprefix("<") for name in COLUMNS] == re.split(r"\s{2,}", header.strip())
    for name in NAMES:
        (line,) = [line for line in table.splitlines() if name in line]
        assert WORDS in line
        assert line.endswith("2.01")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 400])
def test_a_narrow_screen_gets_whole_names_and_is_told_what_is_missing(width: int) -> None:
    lines = _shown(_table(), width)
    assert all(len(line.rstrip()) <= width for line in lines)
    for name in NAMES:
        assert sum(name in line for line in lines) == 1
    text = " ".join(" ".join(lines).split())
    missing = re.search(r"Not shown, for want of room: ([^.]+)\.", text)
    gone = missing[1].split(", ") if missing else []
    header = next(line for line in lines if line.strip().startswith("layer"))
    for column in (name.removeprefix("<") for name in COLUMNS):
        assert (column in re.split(r"\s{2,}", header.strip())) != (column in gone)
    assert bool(gone) == (width <= 120)


def test_what_matters_least_goes_first() -> None:
    assert "Not shown, for want of room: elements." in "\n".join(_shown(_table(), 114))
    assert "Not shown, for want of room: sigma." in "\n".join(_shown(_table(("sigma",)), 118))


def test_long_texts_are_wrapped_before_columns_go() -> None:
    lines = _shown(_table(), 125)
    assert not any("Not shown" in line for line in lines)
    assert not any(WORDS in line for line in lines)
    assert "rounded" in " ".join(lines)


def test_a_name_that_is_wider_than_the_screen_is_folded_and_not_cut() -> None:
    lines = _shown(text_table("", ("layer", "zeros"), [["q" * 50, "85%"]]), 30)
    assert sum(line.count("q") for line in lines) == 50


def test_print_fits_the_terminal_and_the_string_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table()
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with os.fdopen(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        shown = str(table)
        assert max(map(len, shown.splitlines())) <= 100
        assert all(name in shown for name in NAMES)
        assert max(map(len, table[:].splitlines())) > 100
    os.close(leader)
    assert str(table) == table[:]


def test_names_may_hold_anything() -> None:
    table = text_table("", ("layer", "x"), [["[red]a[/red]\x1b[31m\x07<b>", "1"]])
    assert "[red]a[/red]\ufffd[31m\ufffd<b>" in table
    assert "[red]a[/red]" in "\n".join(_shown(table, 80))
    assert "&lt;b&gt;" in table._repr_html_()
    assert text_table("", ("x",), [], "A caption.")._repr_html_().endswith("<p>A caption.</p>")


def test_a_table_without_rows_or_header_is_still_a_table() -> None:
    assert "layer" in text_table("nothing", ("layer", "zeros"), [])
    assert text_table("env", ("", ""), [["torch", "2.13"]], header=False).splitlines() == ["env", "", "  torch  2.13"]
