"""The work of a step in files, explanations and pages."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from profiled import Mixed, Part, parts_of, token_batches
from torch import nn

import lograd
from lograd.plan import StepWork


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(0)
    return Mixed()


@pytest.fixture(scope="module")
def profile(mixed):
    return lograd.profile(mixed, token_batches(2), F.cross_entropy)


def test_a_plan_and_a_profile_keep_the_work(profile, tmp_path):
    loaded = lograd.Profile.load(profile.save(tmp_path / "profile.npz"))
    assert loaded == profile
    plan = loaded.plan(sparsity=0.8, keep=())
    again = lograd.Plan.load(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert again.evidence.step == profile.work
    assert str(again) == str(plan)


def test_evidence_changes_no_hash(profile):
    plan = profile.plan(sparsity=0.8, keep=())
    data = json.loads(json.dumps(plan.to_dict()))
    del data["evidence"]["step"]
    bare = lograd.Plan.from_dict(data)
    assert bare.evidence.step is None
    assert bare.skipped_of_step is None
    assert bare.hash() == plan.hash()
    assert "the whole step was not counted" in " ".join(str(bare).split())
    assert "100.0%" in str(bare)


def test_ranks_add_up(profile):
    both = lograd.Profile.merge([profile, profile]).work
    assert both.total == 2 * profile.work.total
    assert parts_of(both)["lstm"].backward == 2 * parts_of(profile.work)["lstm"].backward
    assert both == StepWork.sum([profile.work, profile.work])


def test_an_explanation_lists_what_is_not_treated_with_its_share(profile):
    torch.manual_seed(0)
    model = Mixed()
    with lograd.attach(model, profile.plan(bits=6, keep=())) as handle:
        lines = handle.explain().layers
    assert list(lines) == ["mix", "embedding", "lstm", "attention", "attention.out_proj", "head"]
    assert lines["lstm"] == "not treated (LSTM; recurrent layers are not treated): 58.7% of the step"
    assert lines["embedding"].endswith("no multiply-adds")
    assert lines["mix"].endswith("7.3% of the step")


def test_without_a_profile_kinds_are_listed_and_no_shares():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, 6))
            self.scale = nn.Parameter(torch.ones(6))
            self.norm = nn.LayerNorm([2, 6])
            self.cell = nn.GRUCell(6, 6)
            self.bag = nn.EmbeddingBag(4, 6)
            self.pair = nn.Bilinear(6, 6, 2)
            self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
            self.frozen = Part(None).requires_grad_(False)

    with lograd.attach(Model(), lograd.Plan.uniform("fp6")) as handle:
        text = handle.explain()
    assert text.layers.pop("inner").startswith("1-4-1")
    assert text.layers == {
        "token": "not treated (parameter; it belongs to no layer)",
        "cell": "not treated (GRUCell; recurrent layers are not treated)",
        "bag": "not treated (EmbeddingBag; an embedding looks up and multiplies nothing)",
        "pair": "not treated (Bilinear; a product of three tensors)",
    }
    assert "cell" in str(text)


def test_the_page_shows_the_work_of_a_step(profile, tmp_path):
    text = profile.to_html(tmp_path / "page.html").read_text()
    assert "Work of a step" in text
    assert "not treated: recurrent layers are not treated" in text
    assert "58.7%" in text
