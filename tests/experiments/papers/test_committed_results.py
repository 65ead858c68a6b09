"""Committed tables and charts are what the committed cells give, so that nobody has changed the ones by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.papers import experiment_of
from experiments.papers.cells import CellFolder

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
COMMAND = re.compile(r"`lograd reproduce (?P<name>\w+) --data FILE(?P<options>[^`]*)`")


def _command(path: Path) -> re.Match[str] | None:
    """The command of the first table of a file of results; None in files that are older than cells."""
    content = json.loads(path.read_text())
    return COMMAND.search(content["tables"][0]["claim"]) if content.get("cells") else None


FILES = {path: command for path in sorted(RESULTS.glob("*.json")) if (command := _command(path)) is not None}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tables_and_charts_are_drawn_from_the_cells_beside_them(path, tmp_path):
    content, command = json.loads(path.read_text()), FILES[path]
    given = dict(one.split("=") for one in command["options"].split() if one != "--set")
    cells = CellFolder(tmp_path / "cells")
    assert cells.take(path) == len(content["cells"]) > 0
    chosen = experiment_of(command["name"]).make(given)
    assert chosen.label == path.stem
    drawn = replace(chosen, data=tmp_path / "cifar100_20k.npz").draw(cells)  # which is not there
    assert [table.to_json() for table in drawn] == content["tables"]
    charts = [chart.svg() for table in drawn for chart in table.charts] if chosen.keeps_charts else []
    assert charts == [one.read_text() for one in sorted(RESULTS.glob(f"{path.stem}-[0-9].svg"))]
