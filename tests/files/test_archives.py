"""Arrays from forged .npz files: refused in one sentence, before memory is allocated."""

import io
import struct
import warnings
import zipfile

import numpy as np
import pytest

from lograd import InvalidValue
from lograd.files.archives import read_arrays


def member(name, header, content=b"", claimed=None, compressed=None, method=zipfile.ZIP_STORED):
    """An archive of one array whose directory may claim anything."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(f"{name}.npy", body)
        entry = archive.getinfo(f"{name}.npy")
        entry.file_size = entry.file_size if claimed is None else claimed
        entry.compress_size = entry.compress_size if compressed is None else compressed
    out.seek(0)
    return out


SHAPE = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}".format


HUGE = 80 * 10**9


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (member("a", SHAPE("<f8", (10**10,)), b"\0" * 16), r"claims the shape \(10000000000,\) of float64, and has 16"),
        (
            member("a", SHAPE("<f8", (2,)), b"\0" * 16, claimed=HUGE),
            "claims 80,000,000,000 bytes, and the file has",
        ),
        (
            member("a", SHAPE("<f8", (2,)), b"\0" * 16, claimed=HUGE, compressed=HUGE),
            "take 80,000,000,000 bytes, and",
        ),
        (member("a", SHAPE("<f8", (2,)), b"\0" * 9), "claims the shape"),
        (member("a", SHAPE("<f8", (-2,)), b"\0" * 16), "claims the shape"),
        (member("a", SHAPE("|O", (1,)), b"\x80\x04N."), "holds object, and plain numbers are needed"),
        (member("a", SHAPE("|S8", (1,)), b"\0" * 8), "plain numbers are needed"),
        (member("a", "{'descr': [('x', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"\0" * 8), "plain numbers"),
        (member("a", "(" * 5000), "not a whole .npz file"),
        (member("a", "-" * 9000 + "1"), "not a whole .npz file"),
        (member("a", SHAPE("<f8", (2,)), b"\0" * 16, method=zipfile.ZIP_LZMA), "neither stored nor deflated"),
        (io.BytesIO(b"PK\x05\x06" + b"\xff" * 18), "not a whole .npz file"),
    ],
)
def test_sizes_are_believed_only_where_the_file_can_hold_them(file, words):
    with pytest.raises(InvalidValue, match=words):
        read_arrays(file, ["a"], 2**30)


def test_a_name_twice_and_too_many_members():
    for names, words in (["a"] * 2, "same name"), ([f"a{i}" for i in range(99)], "it has 99 arrays"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of zipfile, that a name is there already
            for name in names:
                archive.writestr(f"{name}.npy", b"")
        with pytest.raises(InvalidValue, match=words):
            read_arrays(out, ["a"], 2**30)


def test_arrays_are_those_that_numpy_reads():
    rows = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    given_arrays = {
        "rows": rows,
        "columns": np.asfortranarray(rows),
        "one": np.int64(3),
        "none": np.zeros((0, 3), bool),
    }
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, **given_arrays)
        out.seek(0)
        found = read_arrays(out, [*given_arrays, "another"], 2**20)
        assert found.keys() == given_arrays.keys()
        for name, array in given_arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
            assert found[name].flags.writeable
