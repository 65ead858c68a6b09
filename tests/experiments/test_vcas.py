"""The table of runs with rows dropped: its numbers come from the files of finished runs alone."""

import json

import pytest

from experiments import vcas
from experiments.papers.cells import CellFolder
from experiments.papers.vcas import Vcas
from lograd import InvalidValue


def finished(way: str, seed: int, seconds: float, accuracy: float, work: float) -> dict[str, object]:
    return {
        "task": "minilm", "way": way, "seed": seed, "steps": 300, "batch": 32, "lr": 1e-4, "every": 60, "isa": "avx2",
        "machine": {"cpu": "a CPU", "cores": 1, "threads": 1}, "cpu_seconds": seconds, "step_median": seconds / 300,
        "final": {"accuracy": accuracy}, "backward_work": work,
    }  # fmt: skip


def test_the_table_compares_runs_of_the_same_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(vcas, "RESULTS", tmp_path)
    runs = [("fp32", 0, 400.0, 0.86, 1.0), ("fp32", 1, 440.0, 0.84, 1.0), ("rows-noise0.05", 1, 220.0, 0.85, 0.1)]
    for run in runs:
        (tmp_path / f"{run[0]}-{run[1]}.json").write_text(json.dumps(finished(*run)))
    (table,) = Vcas().draw(CellFolder(tmp_path))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["way"] for row in rows] == ["fp32", "rows-noise0.05"]
    assert rows[1]["times FP32"] == "2.00"
    assert rows[1]["work of the backward"] == "10 %"
    assert rows[1]["minus FP32"] == "+1.0"


def test_an_unknown_task_is_refused():
    with pytest.raises(InvalidValue, match=r"sst2, cola, mrpc"):
        vcas.runs("qqp", 1, ["fp32"], "data", "work")


def test_cells_are_the_runs_of_all_tasks(tmp_path):
    names = [cell.name for cell in Vcas(seeds=2).cells(CellFolder(tmp_path))]
    assert len(names) == len(set(names)) == 2 * len(vcas.WAYS) * len(vcas.STEPS)
