"""README keeps its word: its example runs, its numbers are the committed ones, it shows the two commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted")  # of a network before its first step
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theory, profile, training, recipes = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    exec(theory, scope)
    assert abs(scope["theory"].sparsity(scope["law"], scope["a"]) - 0.85) < 1e-9
    assert scope["format"].bits == 6
    exec(profile, scope)
    exec(training, scope)
    assert {path.name for path in tmp_path.iterdir()} == {"profile.html", "profile.npz", "plan.json", "run.pt"}
    plan, handle = scope["mine"], scope["handle"]
    assert (handle.plan, list(plan.kept)) == (plan, ["fc", "conv1"])
    assert handle.counters().total.treated == 5 * len(plan.layers)  # six batches, and the first one is not treated
    exec(recipes, scope)
    count = scope["handle"].counters().total
    assert count.treated == 2 * 6 * 10 - 6, "ten layers, two copies, from the first batch on; the first layer needs one"


def test_the_numbers_are_those_of_the_benchmark():
    shown = []
    for results in (ROOT / "benchmarks" / "results").glob("*.md"):
        introduction, table = results.read_text().split("\n\n", 1)
        if "in README.md" in introduction:
            shown.append(results.name)
            assert table.strip() in README, f"{results.name} changed; copy its table into README.md"
    assert shown, "no table says that it is in README.md"


def test_a_fresh_clone_needs_exactly_two_commands():
    commands = re.search(r"```\n(\./dev.*?)```", README, re.DOTALL)[1].strip().splitlines()
    assert [command.split("#")[0].strip() for command in commands] == ["./dev demo", "./dev test"]
