"""Time to accuracy: what counts as reached, what is counted as seconds, and the table of a small run."""

import pytest
import training_files as files

from lograd import Plan
from lograd.papers import experiment_of, speed
from lograd.papers.cells import CellFolder
from lograd.papers.experiment import carry_out
from lograd.papers.speed import DENSE, FAST, Point, Reached, Speed, _first
from lograd.training import loop
from lograd.training.fast import Found
from lograd.training.measuring import metric_of

ACCURACY, LOSS = metric_of("images"), metric_of("text")


@pytest.fixture
def searched(monkeypatch):
    def find(work):
        return Found(Plan.uniform("int8-full"), "faster.", 2.0)

    monkeypatch.setattr(loop, "find_plan", find)
    monkeypatch.setattr(speed, "find_plan", find)


def test_the_first_evaluation_that_is_as_good_counts():
    rising = [Point(10, 0.1), Point(20, 0.3), Point(30, 0.25), Point(40, 0.3)]
    assert _first(rising, 0.3, ACCURACY) == 20
    assert _first(rising, 0.31, ACCURACY) is None
    falling = [Point(10, 3.0), Point(20, 2.0), Point(30, 2.5)]
    assert _first(falling, 2.5, LOSS) == 20
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
    assert cells.names == ["dense-0", "fast-0", "times-1", "times-2"]
    assert cells.found("dense-0")["steps"] == 6
    assert cells.found("fast-0")["steps"] == 7  # stretched by a tenth
    (table,) = chosen.draw(cells)
    assert table.name == "speed-resnet8-8"
    assert [row[0] for row in table.rows] == [1, 2]
    assert table.notes == ["1 thread: faster.", "2 threads: faster."]
    assert "--set model=resnet8 --set width=8 --set batch=16 --set steps=6 --set points=2 --set seeds=1" in table.claim
    assert all("<svg" in chart.svg() for chart in table.charts)
    assert len(table.charts) == 2


def test_steps_are_timed_with_the_plan_of_the_run(tmp_path, searched, monkeypatch):
    chosen = experiment_of("speed").make({"data": files.images(tmp_path / "images.npz")}, "smoke")
    monkeypatch.setattr(speed, "find_plan", lambda work: Found(Plan.uniform("fp6"), "another.", 2.0))
    plans = []
    session = speed.Session
    monkeypatch.setattr(speed, "Session", lambda work, plan: (plans.append(plan), session(work, plan))[1])
    carry_out(chosen, CellFolder(tmp_path / "cells"))
    assert plans == 2 * [None, None, Plan.uniform("int8-full")]


def test_without_times_there_are_runs_alone(tmp_path, searched):
    data = files.images(tmp_path / "images.npz")
    chosen = experiment_of("speed").make({"data": data, "turns": "0", "steps": "2"}, "smoke")
    names = [cell.name for cell in chosen.cells(CellFolder(tmp_path))]
    assert names == ["dense-0", "fast-0"]
    (table,) = chosen.draw(CellFolder(tmp_path))
    assert table.rows == []
