"""The work of a step in files, explanations and pages."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from profiled import Mixed, Part, parts_of, token_batches
from torch import nn

import lograd
from lograd.errors import InvalidValue
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
    assert again.step == profile.work
    assert str(again) == str(plan)


def test_plans_without_the_work_load_and_have_the_same_hash(profile):
    plan = profile.plan(sparsity=0.8, keep=())
    data = json.loads(json.dumps(plan.to_json()))
    del data["step"]
    old = lograd.Plan.from_json(data)
    assert old.step is None
    assert old.skipped_of_step is None
    assert old.hash() == plan.hash()
    assert "the whole step was not counted" in " ".join(str(old).split())
    assert "100.0%" in str(old)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: step.pop("forward"), "an object with forward, backward, recomputed, untreated"),
        (lambda step: step.update(forward=-1), "a count of operations; got -1"),
        (lambda step: step.update(backward=True), "a count of operations; got True"),
        (lambda step: step.update(untreated={}), "a list"),
        (lambda step: step["untreated"].append({"name": "x"}), "an object with name, kind, reason, forward, backward"),
        (lambda step: step["untreated"][0].update(name=3), "a text; got 3"),
    ],
)
def test_a_changed_work_is_refused(profile, change, message):
    data = json.loads(json.dumps(profile.plan(sparsity=0.8, keep=()).to_json()))
    change(data["step"])
    with pytest.raises(InvalidValue, match=message):
        lograd.Plan.from_json(data)


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


def test_files_from_before_the_work_was_counted_still_load(profile, tmp_path):
    file = np.load(profile.save(tmp_path / "new.npz"))
    header = json.loads(file["header"].tobytes())
    old = {key: header[key] for key in ("lograd_profile", "steps", "every", "missed", "layers")}
    for layer in old["layers"]:
        del layer["flops_forward"]
    arrays = {name: file[name] for name in ("records", "masked", "counts", "samples")}
    np.savez(tmp_path / "old.npz", header=np.frombuffer(json.dumps(old).encode(), np.uint8), **arrays)
    loaded = lograd.Profile.load(tmp_path / "old.npz")
    assert loaded.work is None
    assert loaded["head"].flops_forward is None
    assert loaded["head"].flops_weight == profile["head"].flops_weight
    plan = loaded.plan(sparsity=0.8, keep=())
    assert plan.step is None
    assert plan.hash() == profile.plan(sparsity=0.8, keep=()).hash()
    assert "were not counted." in " ".join(str(loaded).split())
