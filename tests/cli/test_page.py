"""Pages and figures: what is drawn, what is escaped, and what happens without the extra `plot`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lograd import plots
from lograd.errors import LogradError
from lograd.files import CannotWrite
from lograd.laws import HalfNormal, LogNormal
from lograd.plots import MissingExtra, Section, render, svg, write_page
from lograd.text import text_table

NAMES = [f"features.{index}.conv_$w" for index in range(5)]


def _figures() -> dict[str, Any]:
    x = LogNormal(-8.0, 2.0).sample(20_000)
    laws = {"lognormal": LogNormal.fit(x), "normal": HalfNormal.fit(x)}
    values = [0.1, 0.2, np.nan, 0.4, np.inf]
    return {
        "lines": plots.lines({"FP32": ([0, 1, 2], [3.0, 2.0, np.nan])}, "Loss", "step", "nats", log="y"),
        "bars": plots.bars(NAMES, {"_asked": values, "got": values}, "Zeros", "share", rule=0.85, percent=True),
        "many bars": plots.bars([f"layer{i}" for i in range(90)], {"rho": np.arange(90)}, "Noise", "rho"),
        "histogram": plots.histogram(x, laws),
        "heat map": plots.heat_map(np.eye(5), NAMES, NAMES, "Contributions", unit="W / V"),
        "empty heat map": plots.heat_map(np.zeros((2, 2)), NAMES[:2], NAMES[:2], "Nothing"),
    }


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_and_has_all_its_parts(tmp_path: Path) -> None:
    table = text_table("Table of `x`", ["layer", "zeros", "<word"], [["a<b>", "12 %", "w"]], "A caption.")
    drawn = list(_figures().values())
    sections = [Section("First", "One `code`.\n\nTwo.", {"rho": "0.1"}, drawn, [table]), Section("More")]
    path = write_page(tmp_path / "page.html", "A <title>", sections)
    text = path.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert tags.seen["svg"] == len(drawn)
    assert tags.seen["table"] == 1
    assert tags.seen["h2"] == 2
    assert all(part in text for part in ("<code>code</code>", "a&lt;b&gt;", "A &lt;title&gt;"))
    assert "http" not in text.replace("http://www.w3.org/", "")  # the names of SVG's own schemas


def test_figures_have_labels_units_and_every_series() -> None:
    drawn = _figures()
    assert drawn["lines"].axes[0].get_xlabel() == "step"
    assert drawn["lines"].axes[0].get_yscale() == "log"
    assert [text.get_text() for text in drawn["bars"].axes[0].get_legend().get_texts()] == ["\u200b_asked", "got"]
    assert [text.get_text() for text in drawn["histogram"].axes[0].get_legend().get_texts()] == [
        "gradient", "lognormal", "normal",
    ]  # fmt: skip
    assert drawn["heat map"].axes[1].get_ylabel() == "W / V"
    assert len(drawn["bars"].axes[0].patches) == 2 * len(NAMES)


def test_the_histogram_counts_shares_per_octave() -> None:
    x = LogNormal(-8.0, 2.0).sample(20_000)
    figure = plots.histogram(x, {"lognormal": LogNormal(-8.0, 2.0)})
    stairs, line = figure.axes[0].patches[0].get_data(), figure.axes[0].lines[0]
    assert np.sum(stairs.values) / 4 == pytest.approx(1, abs=0.002)
    band = 4 * 4 * np.sqrt(line.get_ydata() / 4 / x.size)  # 4 sigma of a count, times 4 bins per octave
    assert np.all(np.abs(stairs.values - line.get_ydata()) <= band + 2e-3)


def test_equal_figures_are_equal_text() -> None:
    first, second = (svg(_figures()["heat map"]) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="missing"):
        write_page(tmp_path / "missing" / "page.html", "x", [])


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_the_extra_one_sentence_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = plots.lines({}, "", "", "")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*pip install 'lograd\[plot\]'") as caught:
        render("x", [Section(figures=[figure])])
    assert isinstance(caught.value, LogradError)


def test_importing_lograd_imports_neither_matplotlib_nor_jinja2() -> None:
    code = "import sys, lograd.plots, lograd.cli; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
