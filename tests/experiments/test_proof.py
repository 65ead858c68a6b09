"""Tables of trainings: accuracy, and time until a run is as good as float32 at its end."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.timing import TORCH, in_words
from experiments import proof


def _run(way: str, seed: int, accuracies: list[float], cpu: float) -> dict[str, Any]:
    points = [{"step": 10 * n, "cpu": cpu * n, "accuracy": value} for n, value in enumerate(accuracies, 1)]
    return {
        "task": "resnet", "way": way, "seed": seed, "steps": 30, "batch": 4, "lr": 0.1, "every": 10, "points": points,
        "final": points[-1], "final_in_float32": points[-1], "cpu_seconds": points[-1]["cpu"], "step_median": cpu / 10,
        "attached": way, "isa": "avx2", "machine": {"cpu": "a CPU", "cores": 1, "threads": 1},
    }  # fmt: skip


def test_steps_to_an_accuracy_end_at_the_first_evaluation_that_is_good_enough() -> None:
    """Float32 gets no credit for the evaluations after it was already as good as at its end, less half a point."""
    dense = _run("fp32", 0, [0.5, 0.696, 0.7], 8.0)
    assert proof.until(dense, proof.target([dense])) == 20
    assert proof.until(_run("int6-full", 0, [0.5, 0.6, 0.7], 4.0), 0.7) == 30
    assert proof.until(_run("int6-full", 0, [0.5, 0.6, 0.69], 4.0), 0.7) is None


def test_a_run_that_never_gets_there_says_so_and_is_compared_with_its_own_seed() -> None:
    dense = [_run("fp32", 0, [0.5, 0.7], 8.0), _run("fp32", 1, [0.5, 0.6], 8.0)]
    table = proof.tables([*dense, _run("int6-full", 0, [0.5, 0.59], 4.0), _run("int6-full", 1, [0.65, 0.65], 4.0)])
    line = next(line for line in table.splitlines() if line.startswith("| int6-full"))
    assert "| 62.0 ± 3.0 | -3.0 ± 8.0 |" in line
    assert "| not reached, 10 |" in line


def test_seconds_are_steps_times_a_step_with_the_plan_of_that_instruction_set_and_its_measurement() -> None:
    runs = [_run("fp32", 0, [0.5, 0.7, 0.7], 8.0), _run("accelerate", 0, [0.5, 0.6, 0.7], 4.0)]
    runs.append(_run("avx2", 0, [0.7, 0.6, 0.6], 4.0))
    timed = [
        {
            "task": "resnet", "isa": isa, "machine": {"threads": 1}, "measuring": 5.0,
            "seconds": {"fp32": 2.0, "bf16": 9.0, "accelerate": 1.0, "avx2": 1.5},
        }
        for isa in ("avx2", "avx512vnni")
    ]  # fmt: skip
    vnni, avx2 = proof.computed(runs, timed).splitlines()[2:]
    assert vnni.split(" | ")[2:] == ["avx512vnni", "2000", "9000", "1000", "2.00", "5.0", "40", "35", "1.14 |"]
    assert avx2.split(" | ")[6:] == ["1.33", "5.0", "40", "20", "2.00 |"]


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    run = proof.Run("chars", "fp32", 3, 10, 4, 0.1, 5, ".", ".")
    source = proof.Characters.__new__(proof.Characters)
    source.train = torch.arange(1000)
    again = source.batch(run, 7)
    assert torch.equal(source.batch(run, 7).x, again.x)
    assert torch.equal(again.y, again.x + 1)
    assert not torch.equal(source.batch(run, 8).x, again.x)


def test_a_result_says_what_held_pytorch_back() -> None:
    old = {"cpu": "a CPU", "cores": 2, "instruction set": "avx2"}
    assert in_words(old).endswith("PyTorch's not noted")
    new = old | {TORCH: "AVX512", "cpu flags": ["avx2", "avx512_bf16"], "environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
    assert "AVX512 held by ONEDNN_MAX_CPU_ISA=AVX2 (the CPU has avx512_bf16)" in in_words(new)
    assert "nothing held back" in in_words(new | {"environment": {}})
