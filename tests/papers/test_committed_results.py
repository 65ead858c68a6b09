"""Committed tables and charts are what the committed cells give, so that nobody has changed the ones by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lograd.papers import experiment_of
from lograd.papers.cells import CellFolder

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
NAMES = ("fig2", "table3", "table4", "fig5", "encoding", "stability", "int4wa", "statquant", "int4", "beyond", "speed")
FILES = [path for name in NAMES for path in sorted(RESULTS.glob(f"{name}*.json"))
         if path.stem == name or path.stem.startswith(f"{name}-")]  # fmt: skip
COMMAND = re.compile(r"`lograd reproduce (?P<name>\w+) --data FILE(?P<options>[^`]*)`")


def test_each_name_has_results():
    assert {path.stem.partition("-")[0] for path in FILES} == set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tables_and_charts_are_drawn_from_the_cells_beside_them(path, tmp_path):
    content = json.loads(path.read_text())
    command = COMMAND.search(content["tables"][0]["claim"])
    given = dict(one.split("=") for one in command["options"].split() if one != "--set")
    cells = CellFolder(tmp_path / "cells")
    assert cells.take(path) == len(content["cells"]) > 0
    chosen = experiment_of(command["name"]).make(given)
    assert chosen.label == path.stem
    drawn = replace(chosen, data=tmp_path / "cifar100_20k.npz").draw(cells)  # which is not there
    assert [table.to_json() for table in drawn] == content["tables"]
    charts = [chart.svg() for table in drawn for chart in table.charts] if chosen.keeps_charts else []
    assert charts == [one.read_text() for one in sorted(RESULTS.glob(f"{path.stem}-[0-9].svg"))]
