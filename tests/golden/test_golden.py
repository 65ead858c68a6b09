"""Results that must not change by a bit when the code is re-cut: golden.json against what record.py computes now."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lograd import native
from lograd.environment import machine

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found():
    if torch.__version__ != GOLDEN["torch"]:
        pytest.skip(f"recorded with torch {GOLDEN['torch']}, whose sums another version may order otherwise")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") or not native.status().available:
        pytest.skip("recorded with the native kernels for AVX2")
    done = subprocess.run([sys.executable, HERE / "record.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["hashes"]


def test_every_recorded_result_is_computed(found):
    assert GOLDEN["hashes"].keys() <= found.keys()  # recipes that came later have no record


def test_no_bit_has_changed(found):
    changed = [name for name, digits in found.items() if GOLDEN["hashes"].get(name, digits) != digits]
    assert not [name for name in changed if not _has_products(name)]
    if changed and "Intel" not in machine()["cpu"]:
        pytest.skip("what has products of floats was recorded on an Intel CPU: MKL orders sums otherwise on others")
    assert not changed


def _has_products(name):
    """Return True for results with dense products of floats, which are PyTorch's own."""
    recipe, _, rest = name.partition(", ")
    return recipe in ("profile", "profile of rows", "plan bits", "plan recommended") or rest.startswith(
        ("convolutional", "linear", "transformer", "continued")
    )
