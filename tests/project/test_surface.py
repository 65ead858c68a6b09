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
from lograd.errors import plural

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


def test_completion_finds_what_is_imported_on_first_use() -> None:
    import rlcompleter

    complete = rlcompleter.Completer({"lograd": lograd}).complete
    found = {complete("lograd.p", state) for state in range(3)}
    assert {"lograd.profile(", "lograd.parse_format("} <= found


def test_repr_of_what_a_user_holds_is_one_true_line(profile: lograd.Profile) -> None:
    model = _model()
    plan = profile.plan(sparsity=0.5)
    assert repr(profile) == "Profile(3 layers, 3 steps, each observed)"
    assert repr(plan).startswith("Plan(2 layers, 1 kept, ")
    assert repr(plan).endswith(" of the work skipped)")
    assert repr(lograd.Plan.uniform("prune85")) == "Plan(every layer: prune 0.85)"
    assert repr(lograd.Plan()) == "Plan(0 layers)"
    assert repr(lograd.observe(model)) == "Observer(3 layers of Sequential, one of 50 steps)"
    handle = lograd.attach(model, plan)
    assert repr(handle) == "Handle(2 layers of Sequential, step 0)"
    for _ in range(2):
        model(torch.randn(16, 6)).sum().backward()
        handle.step()
    assert repr(handle).startswith("Handle(2 layers of Sequential, step 2, ")
    assert repr(handle.counters()).startswith("Counters(2 layers, 2 gradients treated, ")
    handle.remove()
    assert repr(handle).endswith(", removed)")
    for shown in (profile, plan, handle, handle.counters(), lograd.observe(model)):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 100


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


def test_one_is_singular_everywhere() -> None:
    assert plural(1, "layer") == "1 layer"
    assert plural(0, "layer") == "0 layers"
    assert plural(12345, "step") == "12,345 steps"
    batches = [(torch.randn(4, 6), torch.randint(3, (4,)))]
    profile = lograd.profile(nn.Sequential(nn.Linear(6, 3)), batches, F.cross_entropy)
    plan = profile.plan(bits=6, keep=())
    assert plan.table().startswith("Plan for 1 layer\n")
    assert profile.table().startswith("Gradients of 1 layer, 1 observed of 1 step\n")
    assert repr(profile) == "Profile(1 layer, 1 step, each observed)"
    model = nn.Sequential(nn.Linear(6, 3))
    with lograd.attach(model, plan) as handle:
        model(torch.randn(4, 6)).sum().backward()
        handle.step()
        assert "1 step; 0 gradients treated, 1 passed through" in handle.explain()
        assert repr(handle) == "Handle(1 layer of Sequential, step 1)"
        model(torch.randn(4, 6)).sum().backward()
        handle.step()
        assert "2 steps; 1 gradient treated, 1 passed through" in handle.explain()
