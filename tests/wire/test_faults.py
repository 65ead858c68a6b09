"""Faults of a link: every rank ends with an error that says what was under way, and none hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelined import Pipeline
from ranks import run_ranks
from torch import Tensor

from lograd import LogradError, PacketError
from lograd.wire import channel, edge, fail_together

pytestmark = pytest.mark.slow  # processes that wait for each other

SHORT, LONG = 4.0, 90.0
"""Seconds: time-outs of process groups."""
SOON = 30.0
"""Seconds, far below the long time-out: a rank that has left its group is noticed at once, even on a busy machine."""
Outcome = tuple[str, str, float]


def attempt(run: Pipeline, together: bool = True) -> Outcome:
    """Train until something fails: the kind of error, its text, and the seconds that the failing call took."""
    start = time.monotonic()
    try:
        if together:
            with fail_together(run.schedule):
                run.train(3)
        else:
            run.train(3)
    except (PacketError, RuntimeError) as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "nothing failed", 0.0


def wait_for_others(folder: Path, rank: int, ranks: int) -> None:
    """Stay alive until all ranks have come this far: who lives on after an error may not keep others waiting."""
    (folder / str(rank)).touch()
    end = time.monotonic() + 1.5 * SOON
    while time.monotonic() < end and len(list(folder.iterdir())) < ranks:
        time.sleep(0.05)


def damaging(broken: int) -> None:
    """Change a bit of the packet with this number."""
    count, make = 0, edge.Edge.packet

    def make_and_damage(*arguments: Any, **others: Any) -> Tensor:
        nonlocal count
        packet = make(*arguments, **others)
        if count == broken:
            packet[packet.numel() // 2] ^= 4
        count += 1
        return packet

    edge.Edge.packet = make_and_damage  # type: ignore[method-assign]


def _damaged(rank: int, ranks: int, folder: Path | None, kind: str) -> Outcome:
    run = Pipeline(rank, kind, {"backward": "prune90"})
    run.train(1)
    if rank == ranks - 1:
        damaging(2)  # the gradient of the third microbatch
    outcome = attempt(run, folder is not None)
    if folder is not None:
        wait_for_others(folder, rank, ranks)
    return outcome


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_a_damaged_packet_fails_all_ranks_at_once(kind: str, tmp_path: Path) -> None:
    *others, receiver, sender = run_ranks(_damaged, 3, 3, tmp_path, kind, timeout=LONG)
    assert receiver[0] == "PacketError"
    assert "edge 2->1, microbatch 2" in receiver[1]
    for name, text, seconds in (*others, sender):
        assert name == "LinkError"
        assert "microbatch" in text
        assert seconds < SOON


def test_a_damaged_packet_is_an_error_without_the_context_too() -> None:
    receiver, sender = run_ranks(_damaged, 2, 2, None, "interleaved", timeout=LONG)
    assert receiver[0] == "PacketError"
    assert "microbatch" in receiver[1]
    assert sender[0] == "RuntimeError"
    assert sender[2] < SOON


def _damaged_head(rank: int) -> Outcome:
    run = Pipeline(rank, "gpipe", {"backward": "identity"})
    run.train(1)
    if rank == 1:
        wrap = channel.Channel.wrap

        def wrap_and_damage(*arguments: Any) -> channel.Message:
            message = wrap(*arguments)
            message.first[3] ^= 1
            return message

        channel.Channel.wrap = wrap_and_damage  # type: ignore[method-assign]
    return attempt(run)


def test_a_damaged_length_is_noticed() -> None:
    receiver, sender = run_ranks(_damaged_head, 2)
    assert receiver[0] == "PacketError"
    assert "head of the message" in receiver[1]
    assert sender[0] == "LinkError"


def _killed(rank: int) -> Outcome:
    run = Pipeline(rank, "1f1b", {"backward": "prune90", "forward": "int8"})
    run.train(1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(run)


def test_a_killed_peer_fails_all_others() -> None:
    outcomes = run_ranks(_killed, 3, timeout=LONG)
    assert outcomes[1] is None
    for rank in (0, 2):
        name, text, seconds = outcomes[rank]
        assert name == "LinkError"
        assert f"stage {rank} was" in text
        assert seconds < SOON


def _stalled(rank: int, folder: Path) -> Outcome:
    run = Pipeline(rank, "gpipe", {"backward": "prune90"})
    run.train(1)
    outcome = ("", "", 0.0) if rank == 1 else attempt(run)
    wait_for_others(folder, rank, 2)
    return outcome


def test_a_silent_peer_is_an_error_after_the_time_out(tmp_path: Path) -> None:
    name, text, seconds = run_ranks(_stalled, 2, tmp_path, timeout=SHORT)[0]
    assert name == "LinkError"
    assert "microbatch" in text
    assert "Timed out" in text
    assert 0.5 * SHORT < seconds < SOON


def _own_error(rank: int) -> Outcome:
    run = Pipeline(rank, "gpipe", {"backward": "prune90"})
    run.train(1)
    if rank == 1:
        run.stages[0].submod.forward = lambda x: x @ torch.zeros(3, 3)  # type: ignore[method-assign]
    return attempt(run)


def test_an_error_of_the_model_stays_what_it_is_and_ends_the_others() -> None:
    first, second = run_ranks(_own_error, 2, timeout=LONG)
    assert second[0] == "RuntimeError"
    assert "failed to run forward" in second[1]
    assert first[0] == "LinkError"
    assert first[2] < SOON


# -- a rank whose process is alive and whose connections are open, and that does nothing --

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
    outcomes = run_ranks(_stopped, 3, tmp_path, kind, timeout=SHORT)
    for rank, (name, text, seconds) in enumerate(outcomes):
        assert name == "LinkError", text
        assert f"stage {rank} was" in text
        assert "microbatch" in text
        assert seconds < SOON + SHORT
    assert "Timed out" in outcomes[0][1]
    assert outcomes[0][2] > 0.5 * SHORT, "nobody gives up before the time-out"
