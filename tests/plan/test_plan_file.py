"""The checksum of a plan's file: edits by hand are taken with a warning, damage is refused or warned of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lograd import LayerPlan, Plan
from lograd.errors import LogradWarning
from lograd.treatments import recipe

PLAN = Plan(layers={"0": LayerPlan.of(recipe("prune80")), "fc.1": LayerPlan.of(recipe("fp6"))})


def test_a_plan_may_be_edited_and_saved_again(tmp_path: Path) -> None:
    path = PLAN.save(tmp_path / "plan.json")
    text = path.read_text()
    path.write_text(text.replace("0.8", "0.7"))
    with pytest.warns(LogradWarning, match=r"changed after lograd saved it.*Plan.load\(path\).save\(path\)"):
        edited = Plan.load(path)
    assert edited.layers["0"].input_gradient.gradient[0].sparsity == 0.7
    edited.save(path)
    assert Plan.load(path) == edited  # and no warning, which would be an error here
    data = json.loads(text)
    del data["checksum"]
    path.write_text(json.dumps(data))
    assert Plan.load(path) == PLAN
    path.write_text(json.dumps(json.loads(text), indent=8))  # laid out anew, not changed
    assert Plan.load(path) == PLAN
