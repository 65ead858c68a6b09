"""The processes of a run under torchrun: the place of this one, and what all of them tell each other.

A rank is one process.  Without torchrun, or with one process, there is one rank and nothing is sent.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist

from lograd import InvalidValue, LogradError

Value = TypeVar("Value")
SETTLING = 0.2
"""Seconds before a process leaves its group.  A thread of gloo lets go of the last message's tensors, which takes the
lock of the interpreter; where the group ends at that moment, with the lock held, both would wait for ever."""
TIMEOUT = "LOGRAD_TIMEOUT"
"""The variable with the seconds that ranks wait for each other."""
LONGEST_TIMEOUT = 10 * 86400.0
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of the environment by which torchrun tells a process its place."""


@final
class LostRank(LogradError):
    """Another rank was killed, has failed, or did not answer within the time-out of the process group."""


@final
class FailedElsewhere(LogradError):
    """Another rank has refused the run; it tells why."""


@final
@dataclass(frozen=True)
class Ranks:
    """The place of this process among those of a run.

    All methods but `watched` and `lost` wait for all ranks, so each rank must call them, in the same order.

    Args:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """True for the rank that writes files and tells how the run goes."""
        return self.rank == 0

    def gathered(self, *numbers: float) -> list[tuple[float, ...]]:
        """Return the numbers of every rank, in the order of the ranks."""
        if self.size == 1:
            return [numbers]
        own = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self.watched():
            dist.all_gather(found, own)
        return [tuple(one.tolist()) for one in found]

    def summed(self, *numbers: float) -> tuple[float, ...]:
        """Return sums over the ranks, alike to the last bit on all of them."""
        return tuple(sum(column) for column in zip(*self.gathered(*numbers), strict=True))

    def largest(self, number: int) -> int:
        """Return the largest number that a rank has."""
        return int(max(number for (number,) in self.gathered(number)))

    def wait(self) -> None:
        """Return once all ranks are here."""
        self.gathered(0)

    def at_main(self, value: Value) -> list[Value]:
        """Return the values of all ranks on rank 0, and an empty list elsewhere."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.main else None
        with self.watched():
            dist.gather_object(value, found)
        return found or []

    def from_main(self, make: Callable[[], Value]) -> Value:
        """Return on each rank what a function returns on rank 0, which alone calls it."""
        if self.size == 1:
            return make()
        values: list[Any] = [make() if self.main else None]
        with self.watched():
            dist.broadcast_object_list(values)
        found: Value = values[0]
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """End all ranks where one of them fails inside: the first of these raises its error, others `FailedElsewhere`.

        Nothing inside may wait for another rank.
        """
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # it goes on below, once the others know
            error = raised
        texts: list[str | None] = [None] * self.size
        with self.watched():
            dist.all_gather_object(texts, None if error is None else str(error))
        first = next((rank for rank, text in enumerate(texts) if text is not None), None)
        if first == self.rank and error is not None:
            raise error
        if first is not None:
            raise FailedElsewhere(f"rank {first}: {texts[first]}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell in one sentence that another rank is gone; other errors stay as they are."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or isinstance(error, LogradError) or "gloo" not in (text := str(error)).lower():
                raise
            raise self.lost(text) from error

    def lost(self, text: str, place: str = "") -> LostRank:
        """Return the error of a rank that waits for nobody.

        Args:
            text: the words of the process group.
            place: what was under way.
        """
        found = re.search(r"Connection \w+ by peer|Timed out[^.\[]*", text)
        reason = found.group().strip() if found else text.split("\n")[0][:120]
        return LostRank(
            f"rank {self.rank} of {self.size} has lost another rank, which was killed, has failed or is stalled "
            f"({reason}{place and f'; {place}'}). The last checkpoint is whole; go on from it with --resume and "
            f"{self.size} processes."
        )


ALONE = Ranks()
"""The only rank of a run without torchrun."""


def launched() -> Ranks:
    """Return the place of this process in its process group, or else among those that torchrun has started."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    if any(name not in os.environ for name in VARIABLES):
        return ALONE
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        rank, size = -1, -1
    if not 0 <= rank < size:
        raise InvalidValue(
            "RANK and WORLD_SIZE in the environment must be whole numbers, as torchrun sets them; got "
            f"{os.environ['RANK']!r} and {os.environ['WORLD_SIZE']!r}."
        )
    return Ranks(rank, size)


def patience() -> timedelta | None:
    """Return how long a rank waits for the others, from LOGRAD_TIMEOUT in the environment; None for torch's own."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise InvalidValue(f"{TIMEOUT} in the environment must be seconds, such as 60; got {text!r}.")
    return timedelta(seconds=seconds)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that torchrun has started, over gloo, and leave them at the end; a group that exists stays."""
    ranks = launched()
    if ranks.size == 1:
        yield ranks
    elif dist.is_initialized():
        if "gloo" not in (backend := dist.get_backend()):
            raise InvalidValue(f"a run of several processes needs a process group over gloo; this one is {backend}.")
        yield ranks
    else:
        timeout = patience()
        try:
            dist.init_process_group("gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:  # torch's own errors of stores and networks among them
            reason = str(error).split("\n")[0][:200]
            raise LostRank(f"rank {ranks.rank} cannot join the {ranks.size} processes of torchrun: {reason}") from error
        try:
            yield ranks
        finally:
            time.sleep(SETTLING)
            if dist.is_initialized():  # a broken pipeline has left it
                dist.destroy_process_group()
