"""Faults of a link: what a stage was waiting for, and a way for all ranks to fail when one does.

A rank that fails and lives on leaves its peers waiting until the time-out of the process group.  One that leaves the
group closes its connections, so that its neighbours fail at once, and theirs in turn.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch.distributed as dist

from ..errors import LogradError


class LinkError(LogradError, RuntimeError):
    """A peer is gone or silent; the message says which tensors were under way."""


@final
class Waiting:
    """The tensors of one stage that are under way in this step."""

    def __init__(self) -> None:
        self._sent: tuple[str, int] | None = None
        self._expected: dict[tuple[str, int], None] = {}

    def sending(self, what: str, microbatch: int) -> None:
        """Note that a tensor was handed to the schedule."""
        self._sent = (what, microbatch)

    def receiving(self, what: str, microbatch: int) -> None:
        """Note that the receipt of a tensor was asked for."""
        self._expected[what, microbatch] = None

    def received(self, what: str, microbatch: int) -> None:
        """Note that a tensor has arrived."""
        self._expected.pop((what, microbatch), None)

    def clear(self) -> None:
        """Forget all, as a step begins."""
        self._sent = None
        self._expected.clear()

    def words(self) -> str:
        """Return what is under way, for a message."""
        expected = [f"{what} of microbatch {microbatch}" for what, microbatch in self._expected]
        parts = [f"waiting for {', '.join(expected)}"] if expected else []
        parts += ["sending {} of microbatch {}".format(*self._sent)] if self._sent else []
        return "; ".join(parts) or "neither sending nor waiting"


@contextmanager
def fail_together(schedule: Any) -> Iterator[None]:
    """Run steps of a schedule so that a failure of one rank becomes an error of all, at once.

        with lograd.wire.fail_together(schedule):
            schedule.step(x)

    Whatever is raised inside makes this rank leave all process groups, which closes its connections; a new group is
    needed to go on.  An error of the link becomes a `LinkError` that names edge and microbatch.

    Args:
        schedule: one of torch.distributed.pipelining, with stages that are `CompressedStage`.
    """
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    try:
        yield
    except BaseException as error:
        known = [one for one in stages if hasattr(one, "waiting")]
        words = "; ".join(f"stage {one.stage_index} was {one.waiting.words()}" for one in known)
        broken = isinstance(error, RuntimeError) and not isinstance(error, LogradError) and _is_of_link(error)
        _leave(schedule, stages, error)
        if broken:
            raise LinkError(f"the link of this rank is broken ({words}): {error}") from error
        raise


def _is_of_link(error: RuntimeError) -> bool:
    """Return True for errors of a process group; gloo has no type of its own for them."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(words in text for words in ("/gloo/", "connection closed", "connection reset", "timed out", "nccl"))


def _leave(schedule: Any, stages: list[Any], error: BaseException) -> None:
    """Destroy all groups, and drop what else keeps connections open: works in the frames of the error."""
    traceback.clear_frames(error.__traceback__)
    for name in ("fwd_recv_ops", "bwd_recv_ops"):
        getattr(schedule, name, {}).clear()
    for stage in stages:
        if hasattr(stage, "forget"):
            stage.forget()
    if dist.is_initialized():
        # Destroying a group of NCCL waits for what is under way in it.
        abort = "nccl" in str(dist.get_backend_config(dist.group.WORLD))
        (dist.distributed_c10d._abort_process_group if abort else dist.destroy_process_group)()
    gc.collect()
