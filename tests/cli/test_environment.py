"""What `lograd doctor` says of the machine; it must work above all where something else does not.

AMX that works is told from AMX that kills the process, without either on this machine.
"""

from __future__ import annotations

import json
import sys

import pytest

from lograd import environment as facts
from lograd import native
from lograd.environment import LIMIT, Amx, environment, instruction_sets, probe_amx


def test_it_is_plain_data_in_sections() -> None:
    report = environment()
    assert json.loads(json.dumps(report)) == report
    assert list(report) == ["versions", "machine", "native module"]
    assert report["native module"]["in use"] == native.status().available
    assert report["machine"]["cores"] >= report["machine"]["usable cores"] >= 1


def test_what_is_broken_or_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(native, "_extension", None)
    monkeypatch.setattr(native, "_reason", "no C++ compiler")
    report = environment()
    assert report["machine"]["torch threads"].startswith("torch cannot be imported")
    section = report["native module"]
    assert (section["in use"], section["reason"], section["kernels"]) == (False, "no C++ compiler", [])


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_UNLIMITED = f"import os, signal; '{LIMIT}' in os.environ or os.kill(os.getpid(), signal.SIGILL)"

CASES = {
    "it works": ("pass", None, False, "AMX works"),
    "it works, with a limit": ("pass", "AVX2", False, "AMX works; ONEDNN_MAX_CPU_ISA=AVX2 may keep PyTorch from it"),
    "it kills": (
        DIES, None, True,
        "AMX is announced but kills the process (SIGILL): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16",
    ),
    "it would kill, but for the limit": (
        DIES_UNLIMITED, "AVX2", False,
        "AMX is announced but kills the process (SIGILL); ONEDNN_MAX_CPU_ISA=AVX2 keeps PyTorch from it",
    ),
    "the limit limits nothing": (
        DIES, "AVX3", True,
        "AMX is announced but kills the process (SIGILL): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16",
    ),
    "it fails": (
        "raise SystemExit(3)", None, True,
        "AMX is announced but kills the process (exit code 3): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_child_process_tells_what_amx_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, limit, deadly, words = CASES[case]
    monkeypatch.setattr(facts, "cpuinfo", lambda field: "avx2 amx_bf16")
    monkeypatch.setattr(facts, "_PROBE", program)
    monkeypatch.delenv(LIMIT, raising=False)
    if limit is not None:
        monkeypatch.setenv(LIMIT, limit)
    amx = probe_amx()
    assert (amx.deadly, str(amx)) == (deadly, words)


def test_a_child_that_hangs_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cpuinfo", lambda field: "amx_bf16")
    monkeypatch.setattr(facts, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(facts, "PATIENCE", 0.1)
    assert probe_amx().deadly


@pytest.mark.parametrize(("flags", "words"), [("avx2 avx512f", "AMX is not announced"), ("", "AMX is unknown")])
def test_nothing_is_started_where_amx_is_not_announced(flags: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cpuinfo", lambda field: flags)
    monkeypatch.setattr(facts, "_death", None)
    assert str(probe_amx()) == words


def test_the_section_names_what_is_there_and_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cpuinfo", lambda field: "avx2 avx512f avx512bw avx512vl avx512dq avx_vnni")
    monkeypatch.setattr(native, "_extension", None)
    monkeypatch.setattr(native, "_reason", "no C++ compiler")
    monkeypatch.setenv(LIMIT, "AVX2")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    section = instruction_sets(Amx())
    assert json.loads(json.dumps(section)) == section
    assert [section[name] for name in ("AVX2", "AVX-512", "VNNI", "AVX512_BF16")] == [True, True, True, False]
    assert (section["AMX"], section[LIMIT]) == ("not announced", "AVX2")
    assert section["lograd uses"] == "plain PyTorch: no C++ compiler"
    assert "ATEN_CPU_CAPABILITY" not in section
