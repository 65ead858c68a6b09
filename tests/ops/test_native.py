"""The compiled log_histogram against its definition, and what lograd says when it has no compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from lograd import native

Float = type[np.floating[Any]]
FLOATS: list[Float] = [np.float32, np.float64]
BLOCK = 2048  # kBlock in csrc/kernels/histogram/log_histogram.cpp


@pytest.fixture(scope="module")
def kernels() -> None:
    """Skips where there is no extension; fails where ./dev saw a compiler and there should be one."""
    status = native.status()
    if not status.available:
        if os.environ.get("LOGRAD_EXPECT_NATIVE") == "1":
            pytest.fail(f"a C++ compiler is here, but the native module is not in use: {status.reason}")
        pytest.skip(status.reason)


def definition(x: NDArray[Any]) -> NDArray[np.int64]:
    """|x| = m 2^e with 1 <= m < 2: octave e, and within it the bin floor(16 (m - 1))."""
    lowest, bins = native.histogram_layout(x.dtype)
    finite = x[np.isfinite(x) & (x != 0)]
    mantissa, exponent = np.frexp(np.abs(finite))  # mantissa in [1/2, 1)
    octave = exponent.astype(np.int64) - 1 - lowest
    within = np.floor((2 * mantissa - 1) * native.BINS_PER_OCTAVE).astype(np.int64)
    counts = np.bincount(octave * native.BINS_PER_OCTAVE + within, minlength=bins)
    return np.concatenate([counts, [np.sum(x == 0), np.sum(np.isnan(x)), np.sum(np.isinf(x))]]).astype(np.int64)


def assert_equals_definition(x: NDArray[Any]) -> None:
    counts = native.count_magnitudes(x)
    assert counts is not None
    assert counts.sum() == x.size
    np.testing.assert_array_equal(counts, definition(x))


def bit_patterns(dtype: Float) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of any bits: all exponents are equally likely, and NaNs come with payloads and signs."""
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return hnp.arrays(word, st.integers(0, 40)).map(lambda bits: bits.view(dtype))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", FLOATS)
class TestKernel:
    @given(data=st.data())
    def test_any_bits(self, dtype: Float, data: st.DataObject) -> None:
        assert_equals_definition(data.draw(bit_patterns(dtype)))

    def test_every_edge_of_every_bin(self, dtype: Float) -> None:
        lowest, bins = native.histogram_layout(dtype)
        octave, within = np.divmod(np.arange(bins), native.BINS_PER_OCTAVE)
        with np.errstate(under="ignore"):
            edges = np.ldexp(1 + within / native.BINS_PER_OCTAVE, octave + lowest).astype(dtype)
        assert_equals_definition(np.concatenate([edges, -np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(9))]))

    @given(size=st.integers(0, 3 * BLOCK + 8), seed=st.integers(0, 2**32 - 1), rare=st.floats(0, 1))
    @example(size=0, seed=0, rare=0.0)
    @example(size=BLOCK, seed=0, rare=0.5)
    @example(size=BLOCK + 1, seed=0, rare=0.0)
    def test_sizes_around_a_block(self, dtype: Float, size: int, seed: int, rare: float) -> None:
        generator = np.random.default_rng(seed)
        x = generator.lognormal(0, 5, size).astype(dtype)
        tiny = np.finfo(dtype).smallest_subnormal
        specials = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, tiny, -1000 * tiny], dtype)
        chosen = generator.random(size) < rare
        x[chosen] = generator.choice(specials, chosen.sum())
        assert_equals_definition(x)

    def test_an_unaligned_start_within_the_array(self, dtype: Float) -> None:
        x = np.arange(100, dtype=dtype)
        for start in range(9):
            assert_equals_definition(x[start:])

    def test_what_no_kernel_covers_is_none(self, dtype: Float) -> None:
        x = np.ones((4, 6), dtype)
        assert native.count_magnitudes(x[:, ::2]) is None
        assert native.count_magnitudes(x.T) is None
        assert native.count_magnitudes(x.astype(np.dtype(dtype).newbyteorder())) is None
        assert native.count_magnitudes(x.astype(np.int32)) is None
        shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(dtype)
        assert native.count_magnitudes(shifted) is None


@pytest.mark.usefixtures("kernels")
def test_status_of_a_working_extension() -> None:
    status = native.status()
    assert status.reason == ""
    assert {"log_histogram", "kth_magnitude", "stochastic_prune", "quantize"} <= set(status.kernels)
    assert status.compiler.split()[0] in {"GCC", "Clang", "MSVC"}
    assert status.isa in {*native.INSTRUCTION_SETS, "neon"}


@pytest.mark.usefixtures("kernels")
def test_every_registered_kernel_is_listed() -> None:
    extension = native._extension
    assert extension is not None
    functions = {name for name in dir(extension) if callable(getattr(extension, name)) and not name.startswith("_")}
    others = {"compiler", "cpu_features", "isa_level", "use_isa", "coding", "block_coding"}
    others |= {"release_sparse_workspace", "integer_byte_tiles"}  # the last is for tests
    assert functions == set(native.status().kernels) | others


def test_the_interface_is_a_hash_of_the_bindings(tmp_path: Path) -> None:
    assert native.interface_of(tmp_path / "nowhere") == ""
    (tmp_path / "a.cpp").write_text("one", encoding="utf-8")
    before = native.interface_of(tmp_path)
    (tmp_path / "b.cpp").write_text("two", encoding="utf-8")
    assert len(before) == 16
    assert native.interface_of(tmp_path) != before


@pytest.mark.usefixtures("kernels")
def test_an_extension_of_other_bindings_is_refused() -> None:
    script = (
        "import hashlib, pathlib; read = pathlib.Path.read_bytes;"
        "pathlib.Path.read_bytes = lambda path: read(path) + b'changed';"
        "from lograd import native; print(native.status())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "available=False" in result.stdout
    assert "belongs to another version of lograd" in result.stdout


@pytest.mark.parametrize(("dtype", "layout"), [(np.float32, (-149, 277 * 16)), (np.float64, (-1074, 2098 * 16))])
def test_layout(dtype: Float, layout: tuple[int, int]) -> None:
    assert native.histogram_layout(dtype) == layout
    assert np.ldexp(1.0, layout[0]) == np.finfo(dtype).smallest_subnormal


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", [*native.INSTRUCTION_SETS, "no such thing"])
def test_the_environment_selects_the_instruction_set(name: str) -> None:
    script = "from lograd import native; print(native.status().isa, native.use_isa('" + name + "'))"
    environment = os.environ | {"LOGRAD_ISA": name}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    isa, available = result.stdout.split()
    # What this CPU cannot run is not used; "generic" runs everywhere.
    assert (isa == name) is (available == "True")
    if name == "generic":
        assert isa == "generic"


@pytest.mark.usefixtures("kernels")
def test_another_build_by_the_environment() -> None:
    script = "from lograd import native; s = native.status(); print(s.available, s.reason)"
    environment = os.environ | {"LOGRAD_NATIVE": "/nowhere/_native.so"}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("False")
    assert "/nowhere/_native.so" in result.stdout


def test_turned_off_by_the_environment() -> None:
    script = (
        "import numpy as np; from lograd import native; s = native.status();"
        "print(s.available, s.reason, native.count_magnitudes(np.ones(3)))"
    )
    environment = os.environ | {"LOGRAD_NATIVE": "0"}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False turned off by LOGRAD_NATIVE=0 None"
