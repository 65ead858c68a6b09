"""Packets of varying size between two stages, in messages whose size both ends know beforehand.

A receiver posts its buffer before the packet exists.  So both ends derive the capacity of an edge from the packets that
crossed it in the step before, which both have seen; it changes between steps only, so that all microbatches in flight
agree.  What does not fit follows in a second message, which the receiver asks for when it has read the length.  Other
receipts may already be posted by then, so second messages are told apart by tags, which gloo has and NCCL has not.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict, dataclass
from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidValue, PacketError

HEAD = struct.Struct("<QII")
"""The first bytes of a message: length of the packet, number of the message on this edge, checksum of the two."""
MARGIN = 32
"""A capacity exceeds the largest packet of the step before by one part in so many, and by the spread of that step."""
UNIT = 64
"""Capacities are multiples of so many bytes."""
LONGEST = 2**62


@dataclass
class EdgeCount:
    """Sums over all messages of one edge, as this end has seen them."""

    messages: int = 0
    sent: int = 0
    """Bytes that this end has sent: whole messages, with what is unused of their capacity."""
    received: int = 0
    """Bytes that this end has received."""
    packets: int = 0
    """Bytes of the packets in these messages."""
    plain: int = 0
    """Bytes that the same tensors have as float32."""
    overflows: int = 0
    """Packets that did not fit, and took a second message."""
    encoding: float = 0.0
    """Seconds spent on treating and encoding."""
    decoding: float = 0.0
    """Seconds spent on decoding."""

    @property
    def ratio(self) -> float:
        """Bytes as float32 over bytes of the messages; 0 before the first."""
        total = self.sent + self.received
        return self.plain / total if total else 0.0

    def to_json(self) -> dict[str, float]:
        """Return all counts and the ratio by name."""
        return asdict(self) | {"ratio": self.ratio}


class Message(NamedTuple):
    """A packet as it travels."""

    first: Tensor
    """uint8, of the edge's capacity: the head, and as much of the packet as fits."""
    rest: Tensor | None
    """uint8: the remainder of the packet; None where all has fitted."""


@final
class Channel:
    """One edge as either of its ends knows it: capacity, number of messages, counts.

    Args:
        name: of the edge, for messages of errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = EdgeCount()
        self._capacity = 0
        """Bytes for a packet in this step; 0 before the first one has been seen."""
        self._largest, self._smallest = 0, LONGEST
        """The sizes of packets in this step."""
        self._number = 0
        """Packets of earlier steps."""
        self._passed = 0
        """Packets of this step."""

    def size(self, bound: int) -> int:
        """Return the size of each message of this step, for packets of at most `bound` bytes."""
        return HEAD.size + (min(self._capacity, bound) if self._capacity else bound)

    def wrap(self, packet: Tensor, bound: int, microbatch: int) -> Message:
        """Return the message with a packet."""
        length, size = packet.numel(), self.size(bound)
        start = HEAD.pack(length, self._label(microbatch), 0)[:-4]
        head = bytearray(start + struct.pack("<I", zlib.crc32(start)))
        first = torch.zeros(size, dtype=torch.uint8, device=packet.device)
        first[: HEAD.size] = torch.frombuffer(head, dtype=torch.uint8).to(packet.device)
        fitting = min(length, size - HEAD.size)
        first[HEAD.size : HEAD.size + fitting] = packet[:fitting]
        rest = packet[fitting:].clone() if fitting < length else None
        self._saw(length, size, rest is not None)
        self.count.sent += size + max(length - fitting, 0)
        return Message(first, rest)

    def missing(self, first: Tensor, microbatch: int, limit: int) -> int:
        """Return the bytes of the packet that follow in a second message.

        Args:
            limit: the largest packet that is believed.
        """
        length, label, check = HEAD.unpack(bytes(first[: HEAD.size].tolist()))
        if zlib.crc32(HEAD.pack(length, label, 0)[:-4]) != check:
            raise PacketError(f"{self.place(microbatch)}: the head of the message is damaged.")
        if label != self._label(microbatch):
            raise PacketError(
                f"{self.place(microbatch)}: a message of another step or microbatch arrived; the stages have not "
                "taken the same steps."
            )
        if length > limit:
            raise PacketError(
                f"{self.place(microbatch)}: a packet of {length} bytes was announced, at most {limit} fit."
            )
        missing = max(int(length) - (first.numel() - HEAD.size), 0)
        self._saw(length, first.numel(), missing > 0)
        self.count.received += first.numel() + missing
        return missing

    def unwrap(self, first: Tensor, rest: Tensor | None) -> Tensor:
        """Return the packet of a message whose head `missing` has accepted."""
        length = HEAD.unpack(bytes(first[: HEAD.size].tolist()))[0]
        packet = first[HEAD.size : HEAD.size + length]
        return packet if rest is None else torch.cat([packet, rest.to(packet.device)])

    def step(self) -> None:
        """Mark the end of a step: the next one has room for packets as large as those of this one, and some more."""
        if self._passed:
            room = self._largest + self._largest // MARGIN + (self._largest - self._smallest)
            self._capacity = (room + UNIT - 1) // UNIT * UNIT
            self._number += self._passed
        self._largest, self._smallest, self._passed = 0, LONGEST, 0

    def place(self, microbatch: int) -> str:
        """Return edge and microbatch in words."""
        return f"edge {self.name}, microbatch {microbatch}"

    def _label(self, microbatch: int) -> int:
        """Return a number that the messages of another step or microbatch do not have."""
        return (self._number * 65599 + microbatch) % 2**32

    def _saw(self, length: int, size: int, overflow: bool) -> None:
        self._largest, self._smallest = max(self._largest, length), min(self._smallest, length)
        self._passed += 1
        self.count.messages += 1
        self.count.packets += length
        self.count.overflows += overflow

    def state(self) -> dict[str, int]:
        """Return all that both ends must agree on, between two steps."""
        return {"capacity": self._capacity, "messages": self._number}

    def load(self, state: dict[str, int]) -> None:
        """Go on from the `state` of another."""
        self._capacity, self._number = state["capacity"], state["messages"]


@final
class SideWay:
    """The second messages: with tags, between the ranks of a group; peers are global ranks."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = dist.group.WORLD if group is None else group
        assert self._group is not None
        if "gloo" not in str(dist.get_backend_config(self._group)):
            raise InvalidValue("a compressed stage needs a process group of gloo, whose messages have tags.")
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def operation(self, data: Tensor, peer: int, tag: int) -> dist.P2POp:
        """Return the operation that sends bytes, for a schedule to start and to wait for."""
        return dist.P2POp(dist.isend, data, peer, self._group, tag)

    def send(self, data: Tensor, peer: int, tag: int) -> None:
        """Start to send bytes; `wait` waits for it."""
        work = dist.isend(data, peer, self._group, tag)
        assert work is not None
        self._sending.append((work, data))

    def receive(self, size: int, peer: int, tag: int) -> Tensor:
        """Return so many bytes, once they have arrived."""
        data = torch.empty(size, dtype=torch.uint8)
        dist.recv(data, peer, self._group, tag)
        return data

    def wait(self) -> None:
        """Wait until all that was sent has gone."""
        while self._sending:
            self._sending.pop()[0].wait()
