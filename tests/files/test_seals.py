"""Files that changed after they were saved: every flipped byte is noticed, and files of earlier versions are read."""

import json
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlp, vector_batches
from refusals import REFUSED, attempt, flipped, flips
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan, Profile
from lograd.errors import LogradWarning
from lograd.files.seals import check_seal, sealed

FIRST = Path(__file__).parents[1] / "saved" / "first"
"""Files as they were written before there were checksums."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mlp(), vector_batches(4), cross_entropy, steps=3, noise=1)


@pytest.fixture(scope="module")
def plan(profile):
    return profile.plan(bits=6, sparsity=0.8)


# -- flipped bytes --


@given(st.data())
@settings(max_examples=60)
def test_a_flipped_byte_of_a_profile_is_noticed(folder, profile, data):
    path = folder / "profile.npz"
    content = profile.save(path).read_bytes()
    path.write_bytes(flipped(content, data.draw(flips(len(content)))))
    with pytest.raises(InvalidValue, match="Cannot read the profile"):
        Profile.load(path)


@given(st.data())
@settings(max_examples=60)
def test_a_flipped_byte_of_an_unsealed_profile_is_refused_or_changes_nothing(folder, data):
    """Without a checksum, those of the archive and what must hold of a profile are left."""
    content = (FIRST / "profile.npz").read_bytes()
    path = folder / "old.npz"
    path.write_bytes(flipped(content, data.draw(flips(len(content)))))
    loaded = attempt(lambda: Profile.load(path))
    assert loaded is REFUSED or loaded == Profile.load(FIRST / "profile.npz")


@given(st.data())
@settings(max_examples=150)
def test_a_flipped_byte_of_a_plan_is_refused_or_warned_of(folder, plan, data):
    path = folder / "plan.json"
    content = plan.save(path).read_bytes()
    path.write_bytes(flipped(content, data.draw(flips(len(content)))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = attempt(lambda: Plan.load(path))
    if loaded is not REFUSED and loaded != plan:
        assert any("was changed after lograd saved it" in str(one.message) for one in caught)


def test_a_plan_may_be_edited_and_saved_again(profile, tmp_path):
    plan = profile.plan(bits=6, sparsity=0.8)
    path = plan.save(tmp_path / "plan.json")
    text = path.read_text().replace('"sparsity": 0.8, "law"', '"sparsity": 0.7, "law"')
    path.write_text(text)
    with pytest.warns(LogradWarning, match=r"changed after lograd saved it.*Plan.load\(path\).save\(path\)"):
        edited = Plan.load(path)
    assert edited.layers["0"].input_gradient.gradient[0].sparsity == 0.7
    edited.save(path)
    assert Plan.load(path) == edited  # and no warning, which would be an error here
    data = json.loads(text)
    del data["checksum"]
    path.write_text(json.dumps(data))
    assert Plan.load(path) == edited
    path.write_text(json.dumps(json.loads(plan.save(path).read_text()), indent=8))  # laid out anew, not changed
    assert Plan.load(path) == plan


@pytest.mark.parametrize("length", [0, 1, 21, 22, 100, -1, -22, -78, -79])
def test_a_cut_file_is_not_sealed(length, profile, tmp_path):
    content = profile.save(tmp_path / "p.npz").read_bytes()
    check_seal(content)
    with pytest.raises(InvalidValue):
        check_seal(content[:length])
    with pytest.raises(InvalidValue, match="only a zip archive without a comment"):
        sealed(content)


def test_sealed_files_are_what_others_read(profile, tmp_path):
    with zipfile.ZipFile(profile.save(tmp_path / "p.npz")) as archive:
        assert archive.comment.startswith(b"lograd sha256 ")
        assert archive.testzip() is None
