"""Several sessions side by side: each takes a step in turn, so that whatever the machine does meanwhile hits all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .session import Session


class Turn(NamedTuple):
    """One step of one of the sessions."""

    step: int
    """Steps that the session has made in these turns."""
    name: str
    session: Session
    loss: float


def in_turns(sessions: Mapping[str, Session], steps: int) -> Iterator[Turn]:
    """Let all sessions take so many steps, one step each in turn; each step is told when it is made.

    Args:
        sessions: by name.
        steps: of each session.
    """
    for step in range(1, steps + 1):
        for name, session in sessions.items():
            yield Turn(step, name, session, session.step())
