"""README keeps its word: its example runs, its numbers are the committed ones, it shows the two commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    exec(example, scope)
    assert abs(scope["theory"].sparsity(scope["law"], scope["a"]) - 0.85) < 1e-9
    assert scope["format"].bits == 6


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
