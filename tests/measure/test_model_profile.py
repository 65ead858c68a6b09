"""A profile: its numbers agree with the data, its file is an exact inverse, and what cannot be read is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.errors import InvalidValue
from lograd.files import CannotRead
from lograd.laws import LogNormal, ks_distance


@pytest.fixture(scope="module")
def small_profile():
    return lograd.profile(conv_net(), image_batches(3), cross_entropy)


def test_the_file_is_an_exact_inverse(small_profile, tmp_path):
    path = small_profile.save(tmp_path / "profile.npz")
    json.dumps(small_profile.to_dict(), allow_nan=False)
    assert [row["name"] for row in small_profile.rows()] == list(small_profile.layers)
    loaded = lograd.Profile.load(path)
    assert loaded == small_profile
    assert all(np.array_equal(loaded[name].sample, layer.sample) for name, layer in small_profile.layers.items())
    assert str(loaded) == str(small_profile)
    assert loaded["0"].records != loaded["3"].records
    with np.load(path, allow_pickle=False) as file:
        assert set(file) == {"header", "records", "masked", "counts", "samples"}


def test_an_empty_profile_has_a_file_and_a_table(tmp_path):
    empty = lograd.Profile(missed={"fc": "its forward did not run"})
    assert lograd.Profile.load(empty.save(tmp_path / "empty.npz")) == empty
    assert "fc" in str(empty)


def test_a_bad_file_is_refused_in_one_sentence(small_profile, tmp_path):
    path = tmp_path / "profile.npz"
    content = small_profile.save(path).read_bytes()
    for broken in (content[: len(content) // 2], b"", b"PK", b"\x80\x04N.", json.dumps({}).encode()):
        path.write_bytes(broken)
        with pytest.raises(InvalidValue, match=r"Cannot read the profile .*profile.npz"):
            lograd.Profile.load(path)
    with pytest.raises(CannotRead, match="No such file"):
        lograd.Profile.load(tmp_path / "none.npz")


def test_another_version_is_refused(small_profile, tmp_path, monkeypatch):
    path = small_profile.save(tmp_path / "profile.npz")
    monkeypatch.setattr("lograd.measure.model_profile.VERSION", 99)
    with pytest.raises(InvalidValue, match="version 99"):
        lograd.Profile.load(path)


def test_numbers_of_a_record_agree_with_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=generator).mul(2).exp() * torch.randn(200_000, generator=generator).sign()
    model = nn.Sequential(nn.Identity())
    with lograd.observe(model, every=1, filter_fn=lambda module, name: name == "0") as profile:
        leaf = torch.zeros_like(x, requires_grad=True)
        (model(leaf * 1.0) * x).sum().backward()
    record = profile["0"].last
    assert record.mu == pytest.approx(float(x.abs().log().mean()), abs=1e-3)
    assert record.sigma == pytest.approx(float(x.abs().log().std()), abs=1e-3)
    largest, smallest = float(x.abs().max()), float(x.abs().min())
    assert largest <= record.largest <= largest * 17 / 16
    assert smallest * 15 / 16 <= record.smallest <= smallest
    assert record.ks(LogNormal) == pytest.approx(ks_distance(LogNormal.fit(x), x), abs=2e-3)
