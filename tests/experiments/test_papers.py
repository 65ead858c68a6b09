"""Tables and figures of the papers: theory as printed, cells that are kept, committed results, the command."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everyday import daily

from experiments.__main__ import main
from experiments.lab import Config
from experiments.papers import EXPERIMENTS, THEORY, experiment_of
from experiments.papers.cells import CellFolder, Measured, Trained
from experiments.papers.pruning import CUT
from experiments.papers.sources import embedded_data, find
from lograd import InvalidValue, Plan
from lograd.plots import svg

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COMMAND = re.compile(r"`\./dev reproduce (?P<name>\w+) --data FILE(?P<options>[^`]*)`")


def called(*arguments: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """`python -m experiments` with these arguments in a folder, in this process."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["experiments", *arguments])
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


# -- theory --


def test_reproduced_table_2_equals_the_paper() -> None:
    result = THEORY["table2"]()
    assert len(result.rows) == 10
    assert all(row[result.columns.index("equal")] == "yes" for row in result.rows)
    literal = [row[-1] == row[result.columns.index("paper")] for row in result.rows]
    assert sum(literal) < 10  # the printed Eq. 4 does not give the table


def rows_of(name: str) -> list[dict[str, Any]]:
    result = THEORY[name]()
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_reproduced_figures_agree_with_simulation() -> None:
    for cells in rows_of("fig3a"):
        assert abs(cells["simulated"] - cells["exact"]) <= cells["± 4 s.e."]
    for cells in rows_of("fig3b"):
        assert abs(cells["Eq. 2 exact"] - cells["authors' code"]) < 0.5
        assert cells["Eq. 4 with 2^n1"] == pytest.approx(cells["Eq. 2 exact"], rel=0.04)
    for cells in rows_of("fig4"):
        assert abs(cells["simulated"] - cells["sparsity asked"]) <= cells["± 4 s.e."]
        if cells["threshold"] < np.exp(CUT * cells["sigma (ln)"]):
            assert cells["cosine, truncated"] == pytest.approx(cells["released code"], rel=1e-9)


# -- cells --


def test_a_finished_cell_is_kept_and_one_of_other_settings_is_refused(tmp_path: Path) -> None:
    folder, calls = CellFolder(tmp_path / "cells"), []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": float("nan"), "pair": (1, 2)}

    assert folder.found("a") is None
    assert folder.finish(Measured("a", {"steps": 3}, measure)) == {"value": None, "pair": [1, 2]}
    assert folder.finish(Measured("a", {"steps": 3}, measure)) == folder.found("a")
    assert calls == [1]
    record = folder.record("a")
    assert record is not None
    assert {"versions", "machine", "commit", "seconds"} <= set(record)
    with pytest.raises(InvalidValue, match=r"steps \(it has 3, given is 4\)"):
        folder.finish(Measured("a", {"steps": 4}, measure))
    (tmp_path / "file.json").write_text(json.dumps({"cells": [record]}))
    other = CellFolder(tmp_path / "other")
    assert (other.take(tmp_path / "file.json"), other.take(tmp_path / "file.json")) == (1, 0)
    assert other.found("a") == folder.found("a")


def test_a_trained_cell_resumes_and_plans_of_one_name_are_told_apart(tmp_path: Path) -> None:
    data = embedded_data(tmp_path / "data")
    folder = CellFolder(tmp_path / "cells")
    plan = folder.keep_plan("mine", Plan.uniform("fp6"))
    with pytest.raises(InvalidValue, match="is another plan"):
        folder.keep_plan("mine", Plan.uniform("fp5"))
    cell = Trained("a", Config("resnet8", str(data / "digits.npz"), plan=plan, width=4, batch=16, steps=2, threads=1))
    assert cell.settings["plan_hash"] == Plan.uniform("fp6").hash()
    found = folder.finish(cell)
    assert (found["status"], found["steps"], found["final"]["step"]) == ("finished", 2, 2)
    assert (tmp_path / "cells" / "a" / "checkpoint.pt").exists()


def test_data_is_found_in_a_folder_of_several_sets(tmp_path: Path) -> None:
    data = embedded_data(tmp_path)
    assert find(data, "images") == data / "digits.npz"
    assert find(data, "text") == data / "play.txt"
    assert find(data, "sentences") == data / "sst2"
    assert find(data / "digits.npz", "images") == data / "digits.npz"
    with pytest.raises(InvalidValue, match="a folder cola"):
        find(data, "sentences", "cola")
    (data / "more.npz").write_bytes(b"")
    with pytest.raises(InvalidValue, match=r"one file with images, \*\.npz"):
        find(data, "images")


# -- the command --


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted")  # of a network before its first step
@pytest.mark.parametrize("name", daily([*THEORY, *EXPERIMENTS], ("table2", "fig4", "table3", "noise")))
def test_smoke(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry runs, prints its table and draws its page; run again, it finds its cells finished."""
    options = () if name in THEORY else ("--preset", "smoke", "--results", "results")
    code, out, err = called("reproduce", name, *options, cwd=tmp_path, monkeypatch=monkeypatch)
    assert code == 0, err
    page = (tmp_path / f"lograd-{name}.html").read_text()
    assert "<table" in page
    assert f"lograd-{name}.html" in out.replace("\n", "")
    if name in THEORY:
        assert "<svg" in page
        return
    code, again, err = called("reproduce", name, *options, "--json", cwd=tmp_path, monkeypatch=monkeypatch)
    assert code == 0, err
    (written,) = (tmp_path / "results").glob("*.json")
    assert json.loads(again) == json.loads(written.read_text())["tables"]
    assert any(table["rows"] for table in json.loads(again))


def test_the_list_has_all_with_their_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = called("reproduce", "--json", cwd=tmp_path, monkeypatch=monkeypatch)
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, list(rows)) == (0, [*THEORY, *EXPERIMENTS])
    assert rows["bits"]["options"]["model"] == "resnet8"
    assert all("smoke" in rows[name]["presets"] for name in EXPERIMENTS)
    assert "core-hours" in called("reproduce", cwd=tmp_path, monkeypatch=monkeypatch)[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabel2"], "Did you mean 'table2'?"),
        (["table2", "-o", "no/such/folder/page.html"], "no/such/folder"),
        (["table2", "--preset", "smoke"], "takes no options of experiments"),
        (["all", "--tabulate"], "all without --preset"),
        (["all", "--preset", "smoke", "--only", "x"], "only belongs to one experiment"),
        (["all", "--preset", "tiny"], "no experiment has the preset 'tiny'"),
        (["table3"], "needs data"),
        (["noise", "--set", "steps"], "--set takes OPTION=VALUE"),
        (["noise", "--set", "seeds=3"], "no option 'seeds'"),
        (["noise", "--preset", "tiny"], "no preset 'tiny'"),
        (["table3", "--preset", "smoke", "--set", "network=resnet9"], "Did you mean 'resnet8'"),
        (["table3", "--preset", "smoke", "--only", "fp9"], "'fp9' is not one of fp32"),
        (["fig5", "--preset", "smoke", "--set", "targets=x"], "targets must be whole numbers from 1 to 99"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = called("reproduce", *arguments, cwd=tmp_path, monkeypatch=monkeypatch)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} <= {"lograd-runs"}  # the data of the smoke preset


def test_a_page_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x[a]").mkdir()
    arguments = ["reproduce", "table2", "-o", os.path.join("x[a]", "p.html")]
    assert "x[a]/p.html" in called(*arguments, cwd=tmp_path, monkeypatch=monkeypatch)[1].replace("\n", "")
    called("reproduce", "table2", "--json", cwd=tmp_path, monkeypatch=monkeypatch)
    assert [path.name for path in tmp_path.iterdir()] == ["x[a]"], "JSON writes a page only when asked"


# -- committed results --


def _command(path: Path) -> re.Match[str] | None:
    content = json.loads(path.read_text())
    return COMMAND.search(content["tables"][0]["claim"]) if content.get("cells") else None


FILES = {path: command for path in sorted(RESULTS.glob("*.json")) if (command := _command(path)) is not None}


def test_there_are_committed_results() -> None:
    assert len(FILES) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tables_and_figures_are_drawn_from_the_cells_beside_them(path: Path, tmp_path: Path) -> None:
    content, command = json.loads(path.read_text()), FILES[path]
    given = dict(one.split("=") for one in command["options"].split() if one != "--set")
    cells = CellFolder(tmp_path / "cells")
    assert cells.take(path) == len(content["cells"]) > 0
    chosen = experiment_of(command["name"]).make(given)
    assert chosen.label == path.stem
    drawn = replace(chosen, data=tmp_path / "cifar100_20k.npz").draw(cells)  # which is not there
    assert [table.to_json() for table in drawn] == content["tables"]
    files = sorted(RESULTS.glob(f"{path.stem}-[0-9].svg"))
    figures = [figure for table in drawn for figure in table.figures] if chosen.keeps_figures else []
    assert len(figures) == len(files)
    for figure in figures[:1]:
        assert svg(figure).startswith("<svg")


def test_claims_are_sentences() -> None:
    for name in EXPERIMENTS:
        kind = experiment_of(name)
        for text in (kind.claim, kind.verdict):
            assert not text or (text[0].isupper() and text.endswith("."))
