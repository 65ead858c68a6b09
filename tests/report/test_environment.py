"""`lograd doctor` must work above all where something else does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lograd import native
from lograd.report.environment import commit, describe, machine


def test_it_is_plain_data_in_sections() -> None:
    report = describe()
    assert json.loads(json.dumps(report)) == report
    assert list(report) == ["versions", "machine", "native module"]
    assert report["native module"]["in use"] == native.status().available
    assert report["machine"]["cores"] >= report["machine"]["usable cores"] >= 1


def test_a_torch_that_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert describe()["machine"]["torch threads"].startswith("torch cannot be imported")


def test_the_reason_is_said_when_the_native_module_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_extension", None)
    monkeypatch.setattr(native, "_reason", "no C++ compiler")
    section = describe()["native module"]
    assert (section["in use"], section["reason"], section["kernels"]) == (False, "no C++ compiler", [])


def test_the_machine_is_the_essence_of_it() -> None:
    assert machine()["cpu"] == describe()["machine"]["cpu"]
    assert list(machine()) == ["cpu", "cores", "instruction set", "date"]


def test_the_commit_is_that_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert commit() == head.stdout.strip()
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() is None
