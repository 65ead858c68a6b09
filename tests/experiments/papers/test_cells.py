"""Cells: finished ones are read and not made again, interrupted runs go on, other settings are refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import training_files as files

from experiments.lab import Config, Run
from experiments.papers import cells
from experiments.papers.cells import Cell, CellFolder, Measured, Trained
from experiments.papers.experiment import Experiment, carry_out
from experiments.papers.result import Result
from lograd.errors import InvalidValue
from lograd.files.atomic import CannotRead


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = files.images(tmp_path / "images.npz")
    return Config(
        "resnet8", data, width=8, batch=8, steps=6, threads=1, log_every=2, checkpoint_every=2, recipe="prune85"
    )


@dataclass(frozen=True)
class Twice(Experiment):
    """The second cell follows from what the first has found."""

    words: ClassVar[str] = "a number, and twice that number"
    presets: ClassVar = {"smoke": {"start": 1}}

    start: int = 7
    lr: float = 0.1
    width: int | None = None

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        yield Measured("one", {"start": self.start}, lambda: {"number": self.start})
        found = folder.found("one")
        assert found is not None, "each cell is finished before the next one is asked for"
        yield Measured("two", {}, partial(lambda number: {"number": 2 * number}, found["number"]))

    def draw(self, folder: CellFolder) -> list[Result]:
        rows = [[name, found["number"]] for name in ("one", "two") if (found := folder.found(name)) is not None]
        return [Result("twice", "Twice", "A number and its double.", ["cell", "number"], rows)]


def test_a_measured_cell_is_made_once_and_kept_with_all_that_it_depends_on(tmp_path):
    calls = []
    cell = Measured("drawn", {"size": (2, 3)}, lambda: calls.append(1) or {"x": torch.rand(1).item(), "y": math.nan})
    folder = CellFolder(tmp_path / "cells")
    before = torch.get_rng_state()
    first = folder.finish(cell)
    assert torch.equal(torch.get_rng_state(), before)
    assert first["y"] is None  # JSON has no word for it
    assert folder.finish(cell) == first
    assert CellFolder(tmp_path / "other").finish(cell) == first  # the same random numbers each time
    assert len(calls) == 2
    record = json.loads(folder.file("drawn").read_text())
    assert (record["name"], record["settings"], record["found"]) == ("drawn", {"size": [2, 3]}, first)
    assert set(record["versions"]) >= {"lograd", "torch", "numpy", "python"}
    assert {"commit", "machine", "seconds", "paper"} <= set(record)


def test_a_finished_cell_of_other_settings_is_refused_by_name(tmp_path):
    folder = CellFolder(tmp_path)
    folder.finish(Measured("a", {"steps": 1, "batch": 2}, dict))
    with pytest.raises(InvalidValue, match=r"these differ: steps \(it has 1, given is 3\); give another --runs"):
        folder.finish(Measured("a", {"steps": 3, "batch": 2}, dict))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"lograd_cell": 1}', "FOUND", "VERSION", "NAME"])
def test_a_file_that_is_no_cell_is_told_with_its_name(content, tmp_path):
    folder = CellFolder(tmp_path)
    folder.finish(Measured("a", {}, dict))
    record = json.loads(folder.file("a").read_text())
    changed = {"FOUND": {"found": 1}, "VERSION": {"lograd_cell": 2}, "NAME": {"name": "b"}}
    folder.file("a").write_text(json.dumps(record | changed[content]) if content in changed else content)
    with pytest.raises(CannotRead, match=r"Cannot read .*a\.cell\.json"):
        folder.found("a")


def test_finished_cells_are_taken_from_a_file_of_results_and_none_is_replaced(tmp_path):
    before, here = CellFolder(tmp_path / "before"), CellFolder(tmp_path / "here")
    for name in ("a", "b"):
        before.finish(Measured(name, {"size": 1}, lambda: {"x": 1}))
    here.finish(Measured("b", {"size": 1}, lambda: {"x": 1}))
    made = here.record("b")
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"tables": [], "cells": [before.record("a"), before.record("b")]}))
    assert here.take(file) == 1
    assert here.record("a") == before.record("a")
    assert here.record("b") == made
    assert here.take(file) == 0
    file.write_text(json.dumps({"tables": []}))  # as results were before they had cells
    assert here.take(file) == 0
    with pytest.raises(InvalidValue, match="these differ: size"):
        here.finish(Measured("a", {"size": 3}, dict))


def test_results_of_another_cell_are_not_mixed_with_those_that_follow_from_it(tmp_path):
    before, here = CellFolder(tmp_path / "before"), CellFolder(tmp_path / "here")
    for name in ("a", "plan"):
        before.finish(Measured(name, {}, lambda: {"x": 1}))
    here.finish(Measured("plan", {}, lambda: {"x": 2}))
    (tmp_path / "results.json").write_text(json.dumps({"cells": [before.record("a"), before.record("plan")]}))
    with pytest.raises(InvalidValue, match=r"the cell 'plan' has one result in .*here.* and another in .*results.json"):
        here.take(tmp_path / "results.json")
    assert here.names == ["plan"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (None, 'its "cells" must be a list'),
        ({"lograd_cell": 2}, "a cell of version 1"),
        ({"found": 3}, "a cell of version 1"),
        ({"name": "../a"}, r"the name of a file, and has '\.\./a'"),
        ({"name": 3}, "the name of a file, and has 3"),
    ],
)
def test_of_results_that_cannot_be_read_nothing_is_taken(changed, message, tmp_path):
    folder = CellFolder(tmp_path / "cells")
    folder.finish(Measured("a", {}, dict))
    record = folder.record("a")
    (tmp_path / "results.json").write_text(json.dumps({"cells": {} if changed is None else [record, record | changed]}))
    with pytest.raises(CannotRead, match=f"results.json.*{message}"):
        CellFolder(tmp_path / "other").take(tmp_path / "results.json")
    assert not (tmp_path / "other").exists()


def test_a_trained_cell_is_a_run_folder_and_its_summary(config, tmp_path):
    folder = CellFolder(tmp_path / "cells")
    assert not folder.begun
    cell = Trained("prune-0", config, paper=76.5)
    found = folder.finish(cell)
    run = Run.load(folder.path / "prune-0")
    tests = found.pop("tests")
    assert (found, run.status) == (run.summary, "finished")
    assert [one["step"] for one in tests] == [line["step"] for line in run.tests] == [6]
    assert tests[-1].items() <= found["final"].items()
    assert tests[-1].keys() == {"step", "loss", "accuracy"}
    assert folder.names == ["prune-0"]
    assert folder.begun
    record = folder.record("prune-0")
    assert record["paper"] == 76.5
    assert record["settings"]["seed"] == 0
    assert record["settings"]["data"] == "images.npz"  # the file may move
    assert folder.finish(cell) == found | {"tests": tests}


def test_an_interrupted_run_goes_on_to_the_same_numbers(config, tmp_path):
    class Crash(Exception):
        pass

    def crash(status):
        if status.step == 5:
            raise Crash

    steps = []
    folder, cell = CellFolder(tmp_path / "cells"), Trained("prune-0", config)
    with pytest.raises(Crash):
        folder.finish(cell, crash)
    assert folder.found("prune-0") is None
    assert folder.begun
    found = folder.finish(cell, lambda status: steps.append(status.step))
    assert steps == [5, 6]  # from the checkpoint of step 4 on
    whole = CellFolder(tmp_path / "whole").finish(cell)
    for name in ("final", "steps", "counters"):
        for part in (found, whole):
            if name == "final":
                del part["final"]["seconds"]
        assert found[name] == whole[name]


def test_cells_from_before_weights_in_low_precision_are_taken_for_finished(config, tmp_path):
    folder, cell = CellFolder(tmp_path / "cells"), Trained("a", config)
    before = {
        "model": "resnet8", "data": "images.npz", "plan": None, "recipe": "prune85", "seed": 0, "epochs": None,
        "steps": 6, "batch": 8, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0.0001, "schedule": "cosine",
        "warmup": 0, "width": 8, "augment": True, "threads": 1, "backend": "dense", "start": 0, "log_every": 2,
        "evaluate_every": None, "checkpoint_every": 2, "tensorboard": False,
    }  # fmt: skip
    assert cell.settings == before
    folder.finish(Measured("a", before, lambda: {"status": "finished"}))
    assert folder.finish(cell) == {"status": "finished"}
    with pytest.raises(InvalidValue, match=r"these differ: weights \(it has None, given is int8\)"):
        folder.finish(Trained("a", replace(config, weights="int8")))


def test_an_interrupted_run_of_other_settings_is_refused(config, tmp_path):
    folder = CellFolder(tmp_path)
    (tmp_path / "a").mkdir()

    def stop(status):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.finish(Trained("a", config), stop)
    with pytest.raises(InvalidValue, match=r"these differ: lr"):
        folder.finish(Trained("a", replace(config, lr=0.3)))


def test_a_run_that_diverges_is_a_result(config, tmp_path):
    folder, cell = CellFolder(tmp_path), Trained("wild", replace(config, recipe=None, lr=1e30))
    found = folder.finish(cell)
    assert found["status"] == "diverged"
    folder.file("wild").unlink()  # as if the process had been killed before the cell was written
    assert folder.finish(cell) == found


def test_later_cells_follow_from_earlier_ones_and_tables_from_files_alone(tmp_path):
    folder, told = CellFolder(tmp_path / "cells"), []
    experiment = Twice(start=4)
    assert experiment.draw(folder)[0].rows == []
    carry_out(experiment, folder, lambda cell, finished: told.append((cell.name, finished)))
    assert told == [("one", False), ("two", False)]
    assert [list(row) for row in experiment.draw(folder)[0].rows] == [["one", 4], ["two", 8]]
    folder.file("two").unlink()
    carry_out(experiment, folder, lambda cell, finished: told.append((cell.name, finished)))
    assert told[2:] == [("one", True), ("two", False)]
    text = experiment.draw(folder)[0].to_markdown()
    assert text == "A number and its double.\n\n| cell | number |\n|---|---:|\n| one | 4 |\n| two | 8 |\n"


def test_options_are_read_by_their_types_and_refused_by_name():
    made = Twice.make({"start": "3", "lr": "0.5", "width": "8", "data": "a.npz"})
    assert made == Twice(start=3, lr=0.5, width=8, data=Path("a.npz"))
    assert Twice.make({}, "smoke") == Twice(start=1)
    assert Twice.make({"start": 2}, "smoke") == Twice(start=2)
    assert Twice.options() == {"data": None, "only": "", "start": 7, "lr": 0.1, "width": None}
    assert made.label == "twice"
    for options, preset, words in (
        ({"strat": "3"}, None, "no option 'strat'. Did you mean 'start'"),
        ({"start": "three"}, None, "start must be a whole number"),
        ({"lr": "x"}, None, "lr must be a number"),
        ({}, "paper", "no preset 'paper'; it has: smoke"),
    ):
        with pytest.raises(InvalidValue, match=words):
            Twice.make(options, preset)


def test_a_shared_cell_takes_the_result_of_one_like_it_from_a_folder_beside_it(tmp_path, config, monkeypatch):
    first = CellFolder(tmp_path / "runs" / "one")
    found = first.finish(Trained("way-0", config, 1.5))
    other = CellFolder(tmp_path / "runs" / "other")
    monkeypatch.setattr(cells, "train", None)  # nothing is trained again
    assert other.finish(Trained("same-0", config, 2.5, shared=True)) == found
    record = other.record("same-0")
    assert (record["name"], record["paper"], record["commit"]) == ("same-0", 2.5, first.record("way-0")["commit"])
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "x.cell.json").write_text("{")  # not the business of this experiment
    (tmp_path / "elsewhere").mkdir()
    namesake = files.images(tmp_path / "elsewhere" / "images.npz", classes=3)
    for cell in (
        Trained("own-0", config),
        Trained("seed-1", replace(config, seed=1), shared=True),
        Trained("data-0", replace(config, data=str(namesake)), shared=True),
    ):
        with pytest.raises(TypeError, match="not callable"):
            other.finish(cell)
