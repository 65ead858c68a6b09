"""Ctrl-C between two steps and never inside one: what is saved then is the state after a whole step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

from lograd import LogradError


@final
class Interrupted(LogradError):
    """Training was stopped by a signal, and can be resumed."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class StopRequest:
    """A wish to stop, noted by a signal handler."""

    number = 0
    """The signal that came, or 0."""


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying of them.  A second one has its usual effect, at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield request
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        request.number = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
