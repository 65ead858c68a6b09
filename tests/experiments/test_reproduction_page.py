"""docs/reproduction.md: entries without results say so, committed ones are shown, verdicts only beside numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.papers import EXPERIMENTS, THEORY, experiment_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(tmp_path, monkeypatch, generator):
    """The module that makes the page, with an empty folder of results."""
    module = generator("from_reproduction")
    monkeypatch.setattr(module.from_results, "EXPERIMENTS", tmp_path)
    return module


def write(folder, label, rows, claim="Made so. And so.", notes=()):
    table = {"name": label, "title": f"Title of {label}", "claim": claim, "rows": rows, "notes": list(notes)}
    (folder / f"{label}.json").write_text(json.dumps({"tables": [table], "cells": []}))


def section(page, name):
    text = page.sections()
    return text.partition(f"## {name}\n")[2].partition("\n## ")[0]


def test_every_entry_has_a_line_and_a_section(page):
    overview, sections = page.overview(), page.sections()
    for name in (*THEORY, *page.entries()):
        assert f"[{name}](#{name})" in overview
        assert f"## {name}\n" in sections
    assert set(page.COMPUTED) == set(THEORY)
    assert {"table1", "table3", "fig5", "beyond"} <= set(page.entries())
    assert "speed" not in page.entries()  # it checks no claim of a paper


def test_entries_of_theory_have_their_tables_and_sentences(page):
    found = section(page, "table2")
    assert "| Cifar100 | FP5 | 4.2 | 1-4-0 | 1-4-0 | yes |" in found
    assert found.endswith(f"**Here.** {page.COMPUTED['table2']}\n")
    for name in THEORY:
        assert f"`./dev reproduce {name}` makes this table" in section(page, name)


def test_figures_of_results_are_shown(page, tmp_path):
    write(tmp_path, "fig5", [{"way to train": "dense", "seeds": 3}])
    assert "](results/fig5" not in section(page, "fig5").replace("[numbers](results/fig5.json)", "")
    for number in (1, 2):
        (tmp_path / f"fig5-{number}.svg").write_text("<svg></svg>")
    assert "![fig5, 1](results/fig5-1.svg)\n![fig5, 2](results/fig5-2.svg)" in section(page, "fig5")


def test_an_entry_without_results_says_so_with_its_cost_and_no_verdict(page):
    kind = experiment_of("statquant")
    found = section(page, "statquant")
    assert kind.claim in found
    assert "Not run yet: `./dev reproduce statquant --preset cpu --data DIR` (1.4 core-hours)." in found
    assert kind.verdict
    assert kind.verdict not in found
    assert page.overview().count("not run yet") == len(page.entries())


def test_results_of_its_own_are_shown_with_the_paper_s_numbers(page, tmp_path):
    row = {"way to train": "FP5, E*: 1-4-0", "paper": 64.0, "to the base, mean": "-0.70", "spread over seeds": None}
    write(tmp_path, "table3", [row], notes=["A note."])
    found = section(page, "table3")
    assert "Title of table3 ([numbers](results/table3.json)). Made so. And so." in found
    assert "| FP5, E*: 1-4-0 | 64.0 | -0.70 |  |" in found
    assert "A note." in found
    assert "Not run yet" not in found
    line = next(line for line in page.overview().splitlines() if "[table3]" in line)
    assert "| run |" in line


def test_results_of_another_network_belong_to_the_entry_and_those_of_another_name_do_not(page, tmp_path):
    write(tmp_path, "int4wa", [{"way to train": "INT4 and FP6", "seeds": 3}])
    assert "Not run yet" in section(page, "int4")
    write(tmp_path, "int4-charlm", [{"way to train": "INT4 in the interval", "seeds": 3}])
    found = section(page, "int4")
    assert "INT4 in the interval" in found
    assert "INT4 and FP6" not in found
    assert experiment_of("int4").verdict in found


def test_rows_of_another_experiment_are_chosen_by_their_beginnings(page, tmp_path):
    titles = ["float32", "forward of 8 bits, gradients as they are", "StatQuant, gradients of 5 bits", "MXFP4"]
    write(tmp_path, "bits-resnet8", [{"way to train": title, "seeds": 3} for title in titles])
    found = section(page, "statquant")
    assert "By `./dev reproduce bits` ([numbers](results/bits-resnet8.json)), Made so:" in found
    assert [title in found for title in titles] == [True, True, True, False]
    assert experiment_of("statquant").verdict in found
    later = section(page, "beyond")
    assert "| MXFP4 | 3 |" in later
    assert "| StatQuant" not in later
    line = next(line for line in page.overview().splitlines() if "[statquant]" in line)
    assert "in part, by bits-resnet8" in line


def test_a_long_table_is_cut_on_the_page(page, tmp_path):
    write(tmp_path, "fig2", [{"layer": f"layer{number}", "sigma": number} for number in range(page.MOST_ROWS + 5)])
    found = section(page, "fig2")
    assert f"| layer{page.MOST_ROWS - 1} |" in found
    assert f"| layer{page.MOST_ROWS} |" not in found


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if experiment_of(name).committed])
def test_committed_results_that_an_entry_names_are_there_and_have_its_rows(name, generator):
    module = generator("from_reproduction")
    for label, first in experiment_of(name).committed.items():
        assert (ROOT / "docs" / "results" / f"{label}.json").exists()
        text = module._committed(label, first)
        assert text.count("\n|") >= 2 + max(len(first), 1)
