"""Faults of a link: every rank ends with an error, and none hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pipelined import Pipeline
from ranks import run_ranks
from torch import Tensor

from lograd import PacketError
from lograd.wire import channel, edge

pytestmark = pytest.mark.slow  # processes that wait for each other

SHORT, LONG = 4.0, 90.0
"""Seconds: time-outs of process groups."""
SOON = 30.0
"""Seconds, far below the long time-out: a rank that has left its group is noticed at once, even on a busy machine."""
Outcome = tuple[str, str, float]


def attempt(run: Pipeline) -> Outcome:
    """Train until something fails: the kind of error, its text, and the seconds that the failing call took."""
    start = time.monotonic()
    try:
        run.train(3)
    except (PacketError, RuntimeError) as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "nothing failed", 0.0


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


def _damaged(rank: int, ranks: int, kind: str) -> Outcome:
    run = Pipeline(rank, kind, {"backward": "prune90"})
    run.train(1)
    if rank == ranks - 1:
        damaging(2)  # the gradient of the third microbatch
    return attempt(run)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_a_damaged_packet_is_an_error_that_ends_the_others_with_its_process(kind: str) -> None:
    receiver, sender = run_ranks(_damaged, 2, 2, kind, timeout=LONG)
    assert receiver[0] == "PacketError"
    assert "edge " in receiver[1]
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
    assert sender[0] == "RuntimeError"


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
        assert name == "RuntimeError", text
        assert seconds < SOON


def _silent(rank: int, folder: Path) -> Outcome:
    run = Pipeline(rank, "gpipe", {"backward": "prune90"})
    run.train(1)
    outcome = ("", "", 0.0) if rank == 1 else attempt(run)
    (folder / str(rank)).touch()
    while rank == 1 and not (folder / "0").exists():
        time.sleep(0.05)
    return outcome


def test_a_silent_peer_is_an_error_after_the_time_out(tmp_path: Path) -> None:
    name, text, seconds = run_ranks(_silent, 2, tmp_path, timeout=SHORT)[0]
    assert name == "RuntimeError"
    assert "Timed out" in text
    assert 0.5 * SHORT < seconds < SOON
