"""A stalled rank: its process is alive and its connections are open, and it does nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from pipelined import Pipeline
from ranks import run_ranks

from lograd import LogradError
from lograd.wire import fail_together

pytestmark = pytest.mark.slow  # processes that wait for each other

TIMEOUT = 5.0
"""Seconds: that of the process group."""
LATE = 40.0
"""Seconds after which a rank has waited for more than the time-out, also on a busy machine."""
STALLED = 1


def _stopped(rank: int, folder: Path, kind: str) -> tuple[str, str, float]:
    """Train; one rank is stopped by a signal until rank 0 has given up.  Return error, its words, and seconds."""
    run = Pipeline(rank, kind, {"backward": "prune90", "forward": "int8-nearest"})
    if rank == STALLED:
        (folder / "number").write_text(str(os.getpid()))
    run.train(1)
    if rank == STALLED:
        os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    found = "", "nothing failed"
    try:
        with fail_together(run.schedule):
            run.train(2)
    except (LogradError, RuntimeError) as error:
        found = type(error).__name__, str(error)
    seconds = time.monotonic() - start
    if rank == 0:
        os.kill(int((folder / "number").read_text()), signal.SIGCONT)
    return *found, seconds


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_a_stalled_rank_is_an_error_of_all_within_the_time_out(kind: str, tmp_path: Path) -> None:
    outcomes = run_ranks(_stopped, 3, tmp_path, kind, timeout=TIMEOUT)
    for rank, (name, text, seconds) in enumerate(outcomes):
        assert name == "LinkError", text
        assert f"stage {rank} was" in text
        assert "microbatch" in text
        assert seconds < LATE
    assert "Timed out" in outcomes[0][1]
    assert outcomes[0][2] > 0.5 * TIMEOUT, "nobody gives up before the time-out"
