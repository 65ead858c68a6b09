"""The file of a profile: an exact inverse, and one sentence for a file that cannot be read."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from networks import conv_net, image_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd.errors import InvalidValue
from lograd.files import CannotRead


@pytest.fixture(scope="module")
def small_profile():
    return lograd.profile(conv_net(), image_batches(3), cross_entropy)


def test_the_file_is_an_exact_inverse(small_profile, tmp_path):
    path = small_profile.save(tmp_path / "profile.npz")
    loaded = lograd.Profile.load(path)
    assert loaded == small_profile
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
        with pytest.raises(InvalidValue, match=r"Cannot read the profile .*profile.npz: it is not a profile"):
            lograd.Profile.load(path)
    with pytest.raises(CannotRead, match="No such file"):
        lograd.Profile.load(tmp_path / "none.npz")


def rewritten(content, **changes):
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    for name, change in changes.items():
        if name == "version":
            header["lograd_profile"] = change
        else:
            arrays[name] = change(arrays[name])
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def test_another_version_or_a_changed_file_is_refused(small_profile, tmp_path):
    path = tmp_path / "profile.npz"
    content = small_profile.save(path).read_bytes()
    path.write_bytes(rewritten(content, version=99))
    with pytest.raises(InvalidValue, match="it has version 99, and this lograd reads version 1"):
        lograd.Profile.load(path)
    for changes in (
        {"counts": lambda counts: counts[:-1]},
        {"counts": lambda counts: -counts},
        {"records": lambda records: records[:, :3]},
        {"samples": lambda samples: samples.astype(np.float64)},
        {"records": lambda records: records + np.eye(1, 8, dtype=np.int64) * 50},
    ):
        path.write_bytes(rewritten(content, **changes))
        with pytest.raises(InvalidValue, match="it was changed after lograd saved it"):
            lograd.Profile.load(path)
