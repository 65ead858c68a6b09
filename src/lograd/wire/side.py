"""The way beside an edge, for messages that nobody has posted a receipt for: the rest of a packet that did not fit.

A receiver asks for a rest when it has read the first message, while other receipts may already be posted.  So these
messages are told apart by tags, which gloo has and NCCL has not: beside another backend they take a gloo group.
"""

from __future__ import annotations

from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

_beside: dict[dist.ProcessGroup, dist.ProcessGroup] = {}
"""The gloo group beside each group that has none."""


def _tagged(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group of the same ranks that sends tensors of the CPU with tags."""
    if "gloo" in str(dist.get_backend_config(group)):
        return group
    if group not in _beside:
        ranks = dist.get_process_group_ranks(group)
        _beside[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _beside[group]


@final
class SideWay:
    """Messages with tags between the ranks of a group; peers are global ranks."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        own = dist.group.WORLD if group is None else group
        assert own is not None
        self._group = _tagged(own)
        self.is_main = self._group is own
        """True if the group of the edges has tags itself."""
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
