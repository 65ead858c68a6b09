"""What the package shows of itself: its names, and one short, true line for each object."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import lograd

NAMES = {"Handle", "LayerPlan", "Plan", "Profile", "attach", "laws", "observe", "ops", "profile", "nn", "theory"}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def profile() -> lograd.Profile:
    batches = [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(3)]
    return lograd.profile(_model(), batches, F.cross_entropy)


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    assert dir(lograd) == sorted(lograd.__all__)
    assert set(dir(lograd)) >= NAMES
    for name in dir(lograd):
        assert getattr(lograd, name) is not None


def test_dir_needs_no_torch_and_nothing_of_typing_is_an_attribute() -> None:
    code = "import sys, lograd; dir(lograd); assert 'torch' not in sys.modules; assert not hasattr(lograd, 'Any'); "
    code += "assert not hasattr(lograd, 'TYPE_CHECKING'); assert not hasattr(lograd, 'importlib')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_user_holds_is_shown_on_one_line(profile: lograd.Profile) -> None:
    model = _model()
    plan = profile.plan(sparsity=0.5)
    handle = lograd.attach(model, plan)
    for _ in range(2):
        model(torch.randn(16, 6)).sum().backward()
        handle.step()
    shown = (profile, plan, lograd.Plan(), handle, handle.counters(), lograd.observe(model))
    handle.remove()
    for one in shown:
        assert repr(one).startswith(type(one).__name__)
        assert "\n" not in repr(one)


def test_tables_and_explanations_are_strings(profile: lograd.Profile) -> None:
    plan = profile.plan(bits=6)
    with lograd.attach(_model(), plan) as handle:
        explanation = handle.explain()
    for text in (profile.table(), plan.table(), explanation):
        assert isinstance(text, str)
        assert len(text[:40]) == 40
        assert text.splitlines()[0] in text
        assert f"{text}" == str(text) == text == repr(text)
        assert copy.deepcopy(text) == text
        assert pickle.loads(pickle.dumps(text)) == text
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(explanation)
    assert explanation.layers["0"] in console.file.getvalue()  # type: ignore[attr-defined]
    assert set(explanation.layers) == {"0", "2", "4"}
    assert explanation.endswith(explanation.summary)
