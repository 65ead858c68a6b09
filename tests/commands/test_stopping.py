"""Signs of life, and Ctrl-C: what a command says while it works, and when it is stopped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lograd import files
from lograd.report import progress as showing
from lograd.report.progress import as_lines, progress, shown, tracked

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
def test_a_stopped_profile_says_one_sentence_and_leaves_no_folder(
    tmp_path: Path, number: int, code: int, words: str
) -> None:
    process = _start(tmp_path, "profile", "slow:make", "--steps", "500", "-o", "deep/run")
    _wait_for(tmp_path / "ready", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last == f"lograd: profile was stopped by {words}; nothing was written."
    assert "Traceback" not in err
    assert not (tmp_path / "deep").exists()


def test_what_was_written_by_then_is_named(tmp_path: Path) -> None:
    with files.recorded() as written:
        files.replace_file(tmp_path / "a", b"1")
    files.replace_file(tmp_path / "b", b"2")
    assert written == [tmp_path / "a"]


class _Clock:
    def __init__(self, *times: float) -> None:
        self.times: Iterator[float] = iter(times)

    def __call__(self) -> float:
        return next(self.times)


def _lines(capsys: pytest.CaptureFixture[str], *times: float) -> list[str]:
    with progress("thing", len(times) - 2, clock=_Clock(*times)) as advance:
        for _ in times[2:]:
            advance(1)
    return capsys.readouterr().err.splitlines()


def test_lines_come_after_two_seconds_and_then_every_ten(capsys: pytest.CaptureFixture[str]) -> None:
    with as_lines():
        assert _lines(capsys, 0.0, 1.0, 2.5, 6.0, 12.6, 14.0, 15.0) == [
            "lograd: thing: 2 of 5 steps, 2 s, about 4 s left",
            "lograd: thing: 4 of 5 steps, 13 s, about 4 s left",
            "lograd: thing: 5 steps in 15 s",
        ]


def test_no_time_is_estimated_by_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    with as_lines():
        assert _lines(capsys, 0.0, 5.0, 15.1, 15.2, 15.3) == [
            "lograd: thing: 1 of 3 steps, 5 s",
            "lograd: thing: 2 of 3 steps, 15 s, about 10 s left",
            "lograd: thing: 3 steps in 15 s",
        ]


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with as_lines():
        assert _lines(capsys, 0.0, 0.5, 1.0, 1.5) == []


def test_a_library_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert _lines(capsys, 0.0, 5.0, 20.0, 40.0) == []
    with as_lines(False):
        assert _lines(capsys, 0.0, 5.0, 20.0, 40.0) == []


def test_a_caller_decides(capsys: pytest.CaptureFixture[str]) -> None:
    times = (0.0, 5.0, 20.0, 40.0)
    with shown(None):
        assert _lines(capsys, *times) == []
    with shown(True):
        assert _lines(capsys, *times)[-1] == "lograd: thing: 2 steps in 40 s"
    assert _lines(capsys, *times) == []
    with as_lines():
        with shown(None):
            assert _lines(capsys, *times) != []
        with shown(False):
            assert _lines(capsys, *times) == []
        assert _lines(capsys, *times) != []


@pytest.mark.parametrize("wanted", [None, True, False])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, wanted: bool | None) -> None:
    monkeypatch.setattr(showing, "PATIENCE", -1.0)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with shown(wanted):
            assert list(tracked(range(3), 3, "counting")) == [0, 1, 2]
        print("end", file=terminal, flush=True)
        seen = ""
        while "end" not in seen:  # a terminal hands over what it has, which may be less than what was written
            seen += os.read(leader, 2**16).decode()
    os.close(leader)
    assert ("counting" in seen) == (wanted is not False)
    assert ("/3" in seen) == (wanted is not False)
