"""Seconds of a training step over pipeline stages: each stage works off its schedule, each link one message at a time.

    step_seconds("1f1b", Pipeline(stages=8, microbatches=32, forward=0.01, backward=0.02), Link(0.03), Link(0.003))

It is a simulation of events, not a closed form: compute, links in both directions, and what waits for what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

from ..errors import InvalidValue, nearest_name

Schedule = Literal["gpipe", "1f1b"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@final
@dataclass(frozen=True)
class Pipeline:
    """Stages that are alike.

    Args:
        stages: how many, each on a machine of its own.
        microbatches: of a step.
        forward, backward: seconds of one microbatch in one stage.
    """

    stages: int
    microbatches: int
    forward: float
    backward: float

    def __post_init__(self) -> None:
        if self.stages < 1 or self.microbatches < 1:
            given = f"{self.stages} and {self.microbatches}"
            raise InvalidValue(f"a pipeline needs at least one stage and one microbatch; got {given}.")
        if not (self.forward >= 0 and self.backward >= 0):
            raise InvalidValue(f"seconds must be 0 or more; got {self.forward!r} and {self.backward!r}.")


@final
@dataclass(frozen=True)
class Link:
    """One direction of the wire between neighbours, and what crosses it.

    Args:
        seconds: one message of one microbatch is on the wire: its bytes over the rate.
        latency: seconds until its first byte arrives.
        encode: seconds in which the sender computes the message, and can do nothing else.
        decode: seconds in which the receiver reads it, and can do nothing else.
    """

    seconds: float = 0.0
    latency: float = 0.0
    encode: float = 0.0
    decode: float = 0.0

    def __post_init__(self) -> None:
        given = (self.seconds, self.latency, self.encode, self.decode)
        if not all(one >= 0 for one in given):
            raise InvalidValue(f"seconds of a link must be 0 or more; got {given}.")


class Work(NamedTuple):
    """One microbatch in one stage, forward or backward."""

    backward: bool
    microbatch: int


def orders(schedule: Schedule, pipeline: Pipeline) -> list[list[Work]]:
    """The work of each stage in the order of a schedule of torch.distributed.pipelining."""
    if schedule not in SCHEDULES:
        raise InvalidValue(f"schedule must be gpipe or 1f1b; got {schedule!r}.{nearest_name(schedule, SCHEDULES)}")
    count = pipeline.microbatches
    forward, backward = ([Work(way, number) for number in range(count)] for way in (False, True))
    if schedule == "gpipe":
        return [[*forward, *backward] for _ in range(pipeline.stages)]
    found = []
    for stage in range(pipeline.stages):
        ahead = min(count, pipeline.stages - stage)  # forwards before the first backward
        order = forward[:ahead]
        for number in range(count):
            order += [backward[number], *forward[ahead + number : ahead + number + 1]]
        found.append(order)
    return found


def step_seconds(
    schedule: Schedule, pipeline: Pipeline, forward: Link | None = None, backward: Link | None = None
) -> float:
    """Seconds from the start of a step until all stages are done.

    A message is sent as soon as its work is done and the link is free, while the stage goes on; both directions of a
    link are independent.

    Args:
        forward: the link on which activations go to the next stage; None costs nothing.
        backward: the link on which gradients go to the stage before.
    """
    links = {False: forward or Link(), True: backward or Link()}
    compute = {False: pipeline.forward, True: pipeline.backward}
    last = pipeline.stages - 1
    ends = {False: last, True: 0}  # the stage whose results nobody waits for, by direction
    left = [list(reversed(order)) for order in orders(schedule, pipeline)]
    idle = [0.0] * pipeline.stages
    free = {(stage, way): 0.0 for stage in range(pipeline.stages) for way in links}
    arrived = {(last - ends[way], Work(way, number)): 0.0 for way in links for number in range(pipeline.microbatches)}
    while any(left):
        for stage, order in enumerate(left):
            while order and (stage, order[-1]) in arrived:
                work = order.pop()
                way, link = work.backward, links[work.backward]
                received = stage != last - ends[way]
                done = max(idle[stage], arrived[stage, work]) + compute[way] + (link.decode if received else 0.0)
                if stage != ends[way]:
                    done += link.encode
                    free[stage, way] = max(done, free[stage, way]) + link.seconds
                    arrived[stage - 1 if way else stage + 1, work] = free[stage, way] + link.latency
                idle[stage] = done
    return max(idle)
