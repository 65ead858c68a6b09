"""Time to accuracy: what counts as reached, what is counted as seconds, and the table of a small run."""

import json

import pytest
import training_files as files
from typer.testing import CliRunner

from experiments.lab import Run
from experiments.lab.fast import Found
from experiments.lab.measuring import metric_of
from experiments.papers import experiment_of, speed
from experiments.papers.cells import CellFolder
from experiments.papers.experiment import carry_out
from experiments.papers.speed import DENSE, FAST, Point, Reached, Speed, _first
from lograd import InvalidValue, Plan
from lograd.cli import app

ACCURACY, LOSS = metric_of("images"), metric_of("text")


@pytest.fixture
def searched(monkeypatch):
    def find(work):
        return Found(Plan.uniform("int8-full"), "faster.", 2.0)

    monkeypatch.setattr(speed, "find_plan", find)


def test_the_first_crossing_of_the_target_counts():
    rising = [Point(10, 0.1), Point(20, 0.3), Point(30, 0.25), Point(40, 0.3)]
    assert _first(rising, 0.3, ACCURACY) == 20
    assert _first(rising, 0.2, ACCURACY) == pytest.approx(15)
    assert _first(rising, 0.05, ACCURACY) == 10
    assert _first(rising, 0.31, ACCURACY) is None
    falling = [Point(10, 3.0), Point(20, 2.0), Point(30, 2.5)]
    assert _first(falling, 2.25, LOSS) == pytest.approx(17.5)
    assert _first(falling, 1.9, LOSS) is None


def test_seconds_count_the_better_layout_and_the_search():
    found = {
        "steps": {DENSE: [0.5, 0.4, 0.6], "channels last": [0.2, 0.2, 0.9], FAST: [0.1, 0.1, 0.3]},
        "planning": 7.0, "plan": "faster.",
    }  # fmt: skip
    pairs = [Reached(0.3, 100, 90, 0.31), Reached(0.5, 100, None, 0.4)]
    row = Speed()._row(1, found, pairs, ACCURACY)
    assert row[:4] == [1, "200.0 ms", "100.0 ms", "7 s"]
    assert row[4] == "1 of 2 reached"
    assert row[5:7] == ["40.00 %", "35.50 %"]
    assert row[7:9] == ["20", "16"]  # 100 steps of 0.2 s; 7 s and 90 steps of 0.1 s
    assert row[9:] == [f"{20 / 16:.2f}", None]
    assert Speed()._row(1, found, [pairs[1]], ACCURACY)[7:] == [None] * 4


def test_a_small_run(tmp_path, searched):
    data = files.images(tmp_path / "images.npz")
    chosen = experiment_of("speed").make({"data": data}, "smoke")
    cells = CellFolder(tmp_path / "cells")
    carry_out(chosen, cells)
    assert cells.names == ["dense-0", "fast-0", "plan", "times-1", "times-2"]
    assert cells.found("dense-0")["steps"] == 6
    assert cells.found("fast-0")["steps"] == 7  # stretched by a tenth
    (table,) = chosen.draw(cells)
    assert table.name == "speed-resnet8-8"
    assert [row[0] for row in table.rows] == [1, 2]
    assert table.notes == ["On 1 thread, faster."]
    assert "--set model=resnet8 --set width=8 --set batch=16 --set steps=6 --set points=2 --set seeds=1" in table.claim
    assert all("<svg" in chart.svg() for chart in table.charts)
    assert len(table.charts) == 2
    for name in ("dense-0", "fast-0"):  # as cells were before they had their evaluations
        record = cells.record(name)
        del record["found"]["tests"]
        cells.file(name).write_text(json.dumps(record))
    assert chosen.draw(cells)[0].to_json() == table.to_json()


def test_steps_are_timed_with_the_plan_of_the_runs(tmp_path, monkeypatch):
    chosen = experiment_of("speed").make({"data": files.images(tmp_path / "images.npz")}, "smoke")
    searches = iter(["int8-full", "fp6", "fp6"])
    monkeypatch.setattr(speed, "find_plan", lambda work: Found(Plan.uniform(next(searches)), "faster.", 2.0))
    plans = []
    session = speed.Session
    monkeypatch.setattr(speed, "Session", lambda work, plan: (plans.append(plan), session(work, plan))[1])
    cells = CellFolder(tmp_path / "cells")
    carry_out(chosen, cells)
    assert plans == 2 * [None, None, Plan.uniform("int8-full")]
    assert Run.load(cells.path / "fast-0").config.load_plan() == Plan.uniform("int8-full")


def test_where_nothing_is_gained_a_fast_run_is_the_dense_one_and_the_search(tmp_path, monkeypatch):
    chosen = experiment_of("speed").make({"data": files.images(tmp_path / "images.npz")}, "smoke")
    monkeypatch.setattr(speed, "find_plan", lambda work: Found(None, "the step stays as it is.", 2.0))
    cells = CellFolder(tmp_path / "cells")
    carry_out(chosen, cells)
    assert cells.names == ["dense-0", "plan", "times-1", "times-2"]
    (table,) = chosen.draw(cells)
    for row in table.rows:
        assert row[1:3] == [row[1]] * 2  # the step
        assert row[5] == row[6]  # accuracy
        assert float(row[9]) <= 1
    assert table.notes == ["On 1 thread, the step stays as it is."]


def test_parts_can_be_made_apart(tmp_path, searched):
    given = {"data": files.images(tmp_path / "images.npz")}
    cells = CellFolder(tmp_path / "cells")
    times = ["plan", "times-1", "times-2"]
    made = (("times", times), ("dense", ["dense-0", *times]), ("fast", ["dense-0", "fast-0", *times]))
    for only, names in made:
        carry_out(experiment_of("speed").make(given | {"only": only}, "smoke"), cells)
        assert cells.names == names
    with pytest.raises(InvalidValue, match="'dens' is not one of dense, fast, times"):
        carry_out(experiment_of("speed").make(given | {"only": "dens"}, "smoke"), cells)
    (table,) = experiment_of("speed").make(given, "smoke").draw(cells)
    assert all(row[1] != row[2] for row in table.rows), "times that were taken first are those of the plan"


def test_without_times_there_are_runs_alone(tmp_path, searched):
    data = files.images(tmp_path / "images.npz")
    chosen = experiment_of("speed").make({"data": data, "turns": "0", "steps": "2"}, "smoke")
    carry_out(chosen, CellFolder(tmp_path))
    assert CellFolder(tmp_path).names == ["dense-0", "fast-0", "plan"]
    (table,) = chosen.draw(CellFolder(tmp_path))
    assert table.rows == []


def test_files_are_named_by_all_sizes():
    assert Speed(model="resnet18").label == "speed-resnet18-64"
    assert Speed(model="resnet18", width=32, pixels=16).label == "speed-resnet18-32-16px"


def test_charts_are_written_beside_the_tables(tmp_path, searched):
    data = files.images(tmp_path / "images.npz")
    arguments = ["--preset", "smoke", "--data", data, "--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    result = CliRunner().invoke(app, ["reproduce", "speed", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    written = {path.name for path in (tmp_path / "results").iterdir()}
    assert written == {f"speed-resnet8-8{end}" for end in (".json", ".md", "-1.svg", "-2.svg")}


def test_results_with_more_cells_are_not_replaced(tmp_path, searched):
    results = tmp_path / "results"
    given = ["--preset", "smoke", "--data", files.images(tmp_path / "images.npz"), "--results", results, "--json"]

    def made(*more):
        return CliRunner().invoke(app, ["reproduce", "speed", *map(str, (*given, *more))])

    assert made("--runs", tmp_path / "here").exit_code == 0
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    refused = made("--runs", tmp_path / "there", "--only", "dense")
    assert isinstance(refused.exception, InvalidValue)
    assert "finished cells that" in str(refused.exception)
    assert "go on with them by --resume" in str(refused.exception)
    assert not (tmp_path / "there").exists()
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before
    assert made("--runs", tmp_path / "there", "--only", "dense", "--resume").exit_code == 0


def test_committed_results_go_on_on_another_machine(tmp_path, searched):
    """A folder of results has all that the tables and charts are drawn from, and the plan for runs that are missing."""
    results = tmp_path / "results"
    given = ["--preset", "smoke", "--data", files.images(tmp_path / "images.npz"), "--results", results, "--resume"]

    def made(runs):
        result = CliRunner().invoke(app, ["reproduce", "speed", "--json", "--runs", runs, *map(str, given)])
        assert result.exit_code == 0, result.output
        return {path.name: path.read_bytes() for path in results.iterdir()}

    first = made(tmp_path / "here")
    assert made(tmp_path / "there") == first
    assert not list((tmp_path / "there").rglob("config.json")), "nothing was trained again"
    file = results / "speed-resnet8-8.json"
    content = json.loads(file.read_text())
    content["cells"] = [cell for cell in content["cells"] if cell["name"] != "fast-0"]
    file.write_text(json.dumps(content))
    made(tmp_path / "third")
    runs = tmp_path / "third" / "speed-resnet8-8"
    assert [path.parent.name for path in runs.rglob("config.json")] == ["fast-0"]
    assert Run.load(runs / "fast-0").config.load_plan() == Plan.uniform("int8-full")
