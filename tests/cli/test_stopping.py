"""Signs of life, and Ctrl-C: what a command says while it works, and when it is stopped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lograd import progress as showing
from lograd.progress import progress, progress_shown, tracked

SLOW = """
import time
import torch
from torch import nn

def make():
    def batches():
        while True:
            open("ready", "w").close()
            time.sleep(0.2)
            yield torch.randn(4, 8), torch.randint(2, (4,))
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), batches(), nn.functional.cross_entropy
"""


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "slow.py").write_text(SLOW)
    # A shell's background jobs ignore SIGINT, and so do all that they start; a person's Ctrl-C does not.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heard + "import sys; from lograd.cli import main; sys.argv = ['lograd', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"{path} never came")


@pytest.mark.slow  # processes that are stopped
@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_stopped_profile_says_one_sentence_and_leaves_no_file(
    tmp_path: Path, number: int, code: int, words: str
) -> None:
    process = _start(tmp_path, "profile", "slow:make", "--steps", "500", "-o", "deep/run")
    _wait_for(tmp_path / "ready", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last == f"lograd: profile was stopped by {words}."
    assert "Traceback" not in err
    assert not any((tmp_path / "deep" / "run").glob("*"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Plant what the clock says, call after call."""

    def plant(*times: float) -> None:
        monkeypatch.setattr(showing.time, "monotonic", iter(times).__next__)

    return plant


def test_lines_come_every_ten_seconds(capsys: pytest.CaptureFixture[str], clock: Callable[..., None]) -> None:
    clock(0.0, 1.0, 10.5, 14.0, 20.6, 21.0)
    with progress_shown(True), progress("thing", 5) as advance:
        for _ in range(5):
            advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "lograd: thing: 2 of 5 steps, 10 s", "lograd: thing: 4 of 5 steps, 21 s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "inner", "seen"),
    [(None, None, False), (None, True, True), (True, None, True), (True, False, False), (False, None, False)],
)
def test_a_library_is_silent_unless_a_caller_wants_lines(
    outer: bool | None, inner: bool | None, seen: bool, capsys: pytest.CaptureFixture[str], clock: Callable[..., None]
) -> None:
    clock(0.0, 20.0)
    with progress_shown(outer), progress_shown(inner), progress("thing", 2) as advance:
        advance(1)
    assert bool(capsys.readouterr().err) == seen


@pytest.mark.parametrize("wanted", [None, True, False])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, wanted: bool | None) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with progress_shown(wanted):
            assert list(tracked(range(3), 3, "counting")) == [0, 1, 2]
        print("end", file=terminal, flush=True)
        seen = ""
        while "end" not in seen:  # a terminal hands over what it has, which may be less than what was written
            seen += os.read(leader, 2**16).decode()
    os.close(leader)
    assert ("counting" in seen) == ("/3" in seen) == (wanted is not False)
