"""A guarded run: its changes are lines of metrics, and a resumed run writes the same ones."""

import json
import shutil

import pytest

from experiments.lab import Config, Run, resume, train
from experiments.lab.journal import read_lines
from lograd.errors import InvalidValue
from lograd.files.atomic import CannotRead


def lines_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_changes_are_lines_and_a_resumed_run_has_the_same_ones(tiny, tmp_path):
    config = tiny(recipe="prune50", guard=True)
    whole = train(config, tmp_path / "whole")
    changes = [line for line in lines_of(tmp_path / "whole") if line["kind"] == "guard"]
    assert changes
    assert set(changes[0]) == {"kind", "step", "epoch", "layer", "before", "after", "cause", "noise"}
    assert (changes[0]["before"], changes[0]["cause"]) == ("waiting", "fits")
    assert "layers treated" in whole.summary["guard"]

    class Killed(Exception):
        """In the place of a kill."""

    def kill(status):
        if status.step == 7:
            raise Killed

    with pytest.raises(Killed):
        train(config, tmp_path / "killed", progress=kill)
    resume(tmp_path / "killed")
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")
    assert Config.from_json(config.to_json()) == config
    assert "guard" not in tiny().to_json()


def test_a_damaged_line_of_a_guard_is_refused(tiny, tmp_path):
    train(tiny(recipe="prune50", guard=True, steps=3), tmp_path / "run")
    assert Run.load(tmp_path / "run").lines
    shutil.copy(tmp_path / "run" / "metrics.jsonl", tmp_path / "bad.jsonl")
    text = (tmp_path / "bad.jsonl").read_text()
    (tmp_path / "bad.jsonl").write_text(text.replace('"cause": "fits"', '"cause": 3', 1))
    with pytest.raises(CannotRead, match="cause"):
        read_lines(tmp_path / "bad.jsonl")


def test_a_guard_needs_a_plan(tiny):
    with pytest.raises(InvalidValue, match="a guard watches the layers that a plan treats; give a plan or a recipe"):
        tiny(guard=True)
    assert tiny(guard=True, fast=True).guard
