"""The pages' tables of time to accuracy, from results that are there, with and without times."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def page(tmp_path, monkeypatch, generator):
    """The module that makes the blocks, with an empty folder of results."""
    module = generator("from_speed")
    monkeypatch.setattr(module, "EXPERIMENTS", tmp_path)
    return module


def row(threads, sooner="1.70", spread="0.05", seeds=3):
    return {
        "threads": threads, "step, dense": "500.0 ms", "step, fast": "300.0 ms", "finding the plan": "30 s",
        "seeds": seeds, "accuracy, dense": "31.00 %", "accuracy, fast at its end": "32.00 %",
        "seconds, dense": "1000", "seconds, fast": "600", "times sooner": sooner, "spread over seeds": spread,
    }  # fmt: skip


def write(folder, name, rows, notes=(), **settings):
    given = {"model": "resnet18", "width": 64, "batch": 128} | settings
    cells = [{"name": "dense-0", "settings": given}]
    tables = [{"rows": rows, "notes": list(notes)}]
    (folder / f"{name}.json").write_text(json.dumps({"tables": tables, "cells": cells}))


def test_without_results_there_are_no_lines(page):
    assert page.time_to_accuracy().count("\n") == 1
    assert page.times_sooner().count("\n") == 1
    assert page.curves() == ""


def test_a_line_for_each_network_and_number_of_threads(page, tmp_path):
    write(tmp_path, "speed-resnet18-64", [row(1), row(2, "1.40")])
    write(tmp_path, "speed-resnet20-16-16px", [row(1, "0.99", None, 1)], model="resnet20", width=16, pixels=16)
    lines = page.time_to_accuracy().split("\n")[2:]
    assert [line.split(" | ")[3] for line in lines] == ["1", "2", "1"]
    assert lines[0].startswith("| resnet18, width 64, batch 128 | accuracy 31.00 % | 32.00 % | 1 | 500.0 ms | 300.0 ms")
    assert lines[2].startswith("| resnet20, width 16, 16 x 16 pixels, batch 128 |")
    assert lines[2].endswith("| 0.99 |  |")
    short = page.times_sooner().split("\n")[2:]
    assert short[0].endswith("| accuracy 31.00 % | 3 | 1.70 ± 0.05, sooner | 1.40 ± 0.05, sooner |")
    assert short[1].endswith("| 1 | 0.99, later |  |")


def test_a_value_that_is_never_reached_is_told(page, tmp_path):
    write(tmp_path, "speed-vgg-32", [row(1, None, None, "0 of 3 reached")], model="vgg", width=32)
    assert page.times_sooner().endswith("| 0 of 3 reached | not reached |  |")


def test_results_without_times_are_left_out(page, tmp_path):
    write(tmp_path, "speed-resnet18-64", [])
    assert page.times_sooner().count("\n") == 1
    assert page.curves() == ""


def test_each_network_has_its_own_curves(page, tmp_path):
    write(tmp_path, "speed-resnet18-6", [row(1), row(2)], ["On 1 thread, faster."], width=6)
    write(tmp_path, "speed-resnet18-6-1", [row(2)], width=61)
    text = page.curves()
    assert text.count("(results/speed-resnet18-6-1.svg)") == 1
    assert text.count("(results/speed-resnet18-6-2.svg)") == 1
    assert text.count("(results/speed-resnet18-6-1-1.svg)") == 1
    assert text.endswith("(results/speed-resnet18-6-2.svg)\n\nOn 1 thread, faster.\n"), "notes follow their charts"
