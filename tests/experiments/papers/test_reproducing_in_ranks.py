"""`lograd reproduce` under torchrun: ranks share each training, rank 0 measures and writes, and both end alike."""

from __future__ import annotations

import json

import pytest
import ranked

from experiments.lab import Run
from experiments.papers.cells import CellFolder

pytestmark = pytest.mark.slow  # processes that wait for each other


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(place, *arguments):
    """Run the command in two ranks; return their exit codes."""
    return ranked.ended(ranked.started(2, place / "says", ranked.command, "reproduce", *arguments))


def test_ranks_share_trainings_and_rank_0_speaks_for_them(place):
    arguments = ("statquant", "--preset", "smoke", "--runs", "runs", "--results", "results", "-o", "page.html")
    assert run(place, *arguments) == [0, 0], ranked.printed(place / "says", 0)
    assert ranked.printed(place / "says", 1) == ""
    assert "StatQuant: bits of gradients by method" in ranked.printed(place / "says", 0)
    folder = CellFolder(place / "runs" / "statquant-digits")
    assert folder.names == ["fqt5-bhq-0", "qat8-0", "variance-fqt5-bhq"]
    assert Run.load(folder.path / "qat8-0").config.ranks == 2
    assert folder.found("variance-fqt5-bhq")["rho"] > 0
    kept = json.loads((place / "results" / "statquant-digits.json").read_text())
    assert len(kept["cells"]) == 3

    refused = run(place, *arguments)
    assert refused == [2, 2]
    assert "go on with them by --resume" in ranked.printed(place / "says", 0)
    assert ranked.printed(place / "says", 1) == ""

    folder.file("qat8-0").unlink()  # as if the processes had been killed before the cell was written
    assert run(place, *arguments, "--resume") == [0, 0]
    said = ranked.printed(place / "says", 0)
    assert "fqt5-bhq-0: finished before" in said
    assert "qat8-0: at work" in said
    assert folder.names == ["fqt5-bhq-0", "qat8-0", "variance-fqt5-bhq"]
