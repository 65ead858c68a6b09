"""A communication hook for DistributedDataParallel: ranks exchange packets of treated gradients and average them.

Each parameter's gradient is an edge of its own, with its own statistics and random numbers, so that nothing depends on
how DDP puts gradients into buckets, which it does anew after the first step.
"""

# No `from __future__ import annotations`: DDP looks at the annotations of a hook, and wants classes there.

import struct
import time
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from ..attachment.state import check_values
from ..errors import InvalidType, InvalidValue, PacketError, sentence
from ..files import check_object, check_whole
from ..ops.coded import CodedTensor
from .channel import EdgeCount
from .edge import (
    BACKWARD,
    FLOATS,
    Edge,
    EdgePlan,
    decode_like,
    edge_sentences,
)  # fmt: skip
from .packets import encode

LENGTH = struct.Struct("<Q")


class Place(NamedTuple):
    """The place of a parameter's gradient in the buffer of its bucket."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@final
class HookState:
    """The settings and the memory of `comm_hook`: the first argument of `register_comm_hook`.

        model = DistributedDataParallel(network)
        state = lograd.wire.HookState(model, "prune90")
        model.register_comm_hook(state, lograd.wire.comm_hook)

    A treatment that is unbiased, such as "prune90", "fp8" or "int8", leaves the averaged gradient right on average.
    One that is not, such as "topk99" or "int4-nearest", needs error feedback: what a step leaves out is added to the
    gradient of the next.

    Args:
        model: the wrapped model; its parameters name the gradients.
        treatments: a recipe, treatments, or a LayerPlan, for the gradient of every parameter.
        error_feedback: whether what was left out is added to the next gradient; costs the memory of one gradient.
        smallest: parameters with fewer elements, such as biases, are sent as they are.
        start: steps at the beginning in which all gradients are sent as they are.
        seed, refresh: as in `lograd.attach`; ranks draw independent random numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        treatments: EdgePlan = "prune90",
        *,
        error_feedback: bool = False,
        smallest: int = 1024,
        start: int = 0,
        seed: int = 0,
        refresh: int = 10,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(sentence("model", model, "the module whose gradients are exchanged"))
        if treatments is None:
            raise InvalidValue(
                "treatments must say what is done to gradients; without a hook they are sent as they are."
            )
        found = edge_sentences({"1->0": treatments}, BACKWARD, 2)["1->0"]
        assert found is not None
        self.error_feedback = bool(error_feedback)
        self.start = check_whole("start", start)
        self.steps = 0
        """Steps that were averaged."""
        self.count = EdgeCount()
        """The bytes that this rank has sent and received, and the time that it took."""
        group = getattr(model, "process_group", None) or dist.group.WORLD
        if group is None:
            raise InvalidValue("a hook needs a process group; call torch.distributed.init_process_group first.")
        self.process_group: dist.ProcessGroup = group
        refresh = check_whole("refresh", refresh, 1)
        self._names: dict[int, str] = {}
        self._edges: dict[str, Edge] = {}
        self._errors: dict[str, Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        for number, (name, parameter) in enumerate(model.named_parameters()):
            self._names[id(parameter)] = name
            if parameter.requires_grad and parameter.numel() >= smallest and parameter.dtype in FLOATS:
                self._parameters[name] = parameter.detach()
                self._edges[name] = Edge(found, "gradient", number, seed, refresh, parameter.device)

    def treated(self) -> dict[str, dict[str, int]]:
        """Return the exact counts of elements of each parameter, as sites of layers count them."""
        return {name: edge.treated for name, edge in self._edges.items()}

    # -- one step --

    @torch.no_grad()
    def packets(self, bucket: GradBucket) -> Tensor:
        """Return the packets of a bucket's gradients, one behind the other, each with its length before it."""
        start = time.perf_counter()
        parts = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            packet = self._packet(self._names.get(id(parameter), ""), gradient)
            length = torch.frombuffer(bytearray(LENGTH.pack(packet.numel())), dtype=torch.uint8)
            parts += [length.to(packet.device), packet]
        self.count.encoding += time.perf_counter() - start
        return torch.cat(parts)

    def _packet(self, name: str, gradient: Tensor) -> Tensor:
        edge = self._edges.get(name)
        if edge is None or self.steps < self.start:
            return encode(gradient)
        if not self.error_feedback:
            return edge.packet(gradient)
        wanted = gradient + self._errors[name] if name in self._errors else gradient
        treated = edge.treat(wanted)
        left = wanted - (treated.decode() if isinstance(treated, CodedTensor) else treated)
        self._errors[name] = left.where(left.isfinite(), 0)  # an overflow of the loss scale shall not stay
        return edge.packed(treated)

    def places(self, bucket: GradBucket) -> list[Place]:
        """Return where the gradients of a bucket lie in its buffer."""
        first = int(bucket.buffer().storage_offset())
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return [
            Place(self._names.get(id(one), ""), tuple(view.shape), view.stride(), int(view.storage_offset()) - first)
            for one, view in pairs
        ]

    def step(self) -> None:
        """Mark the end of a step: new numbers for the treatments where statistics were due."""
        for edge in self._edges.values():
            edge.step()
        self.steps += 1

    # -- saving --

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs on this rank, as tensors and plain values; each rank saves its own."""
        return {
            "ranks": [dist.get_rank(self.process_group), dist.get_world_size(self.process_group)],
            "steps": self.steps,
            "edges": {name: edge.state() for name, edge in self._edges.items()},
            "errors": {name: error.clone() for name, error in self._errors.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of the same rank of as many, with the same treatments."""
        own = self.state_dict()
        check_object("a hook's state", state, tuple(own))
        if list(state["ranks"]) != own["ranks"]:
            saved, here = ("rank {} of {}".format(*place) for place in (state["ranks"], own["ranks"]))
            raise InvalidValue(f"this is the state of {saved}, and this is {here}.")
        check_object("the edges of a hook's state", state["edges"], tuple(self._edges))
        check_object("the errors of a hook's state", state["errors"], (), tuple(self._edges))
        check_values("a hook's state", state, own | {"errors": self._parameters})
        for name, edge in self._edges.items():
            edge.check(f"the state of {name!r}", state["edges"][name])
        for name, edge in self._edges.items():
            edge.load(state["edges"][name])
        self._errors = {name: error.clone() for name, error in state["errors"].items()}
        self.steps = state["steps"]


def comm_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Return the future of a bucket's averaged gradients, which ranks exchange as packets.

    `model.register_comm_hook(state, comm_hook)` makes DistributedDataParallel call it.

    Sizes of packets differ between ranks, so ranks first tell each other theirs, in eight bytes; then all gather all,
    padded to the largest.  A rank receives what all others send: with many ranks on fast links, all-reduce of plain
    gradients moves fewer bytes (`HookState.count` has the ratio).
    """
    group, ranks = state.process_group, dist.get_world_size(state.process_group)
    data = state.packets(bucket)
    sizes = [torch.zeros(1, dtype=torch.int64, device=data.device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([data.numel()], device=data.device), group)
    lengths = [int(one) for one in sizes]
    padded = data.new_zeros(max(lengths))
    padded[: data.numel()] = data
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    work = dist.all_gather(gathered, padded, group, async_op=True)
    assert work is not None
    count = state.count
    count.messages += 1
    count.sent += padded.numel()
    count.received += padded.numel() * (ranks - 1)
    count.packets += data.numel()
    count.plain += 4 * bucket.buffer().numel() * ranks
    if bucket.is_last():
        state.step()

    # The bucket is gone when all has arrived.  The callback may outlive the state, too, in a thread of the process
    # group, and must not be the last to hold that group: its threads would wait for themselves.
    places, total = state.places(bucket), torch.zeros_like(bucket.buffer())

    def averaged(future: torch.futures.Future[Any]) -> Tensor:
        future.value()  # raises what went wrong
        return average(places, total, [one[:length] for one, length in zip(gathered, lengths, strict=True)], count)

    result: torch.futures.Future[Tensor] = work.get_future().then(averaged)
    return result


@torch.no_grad()
def average(places: list[Place], total: Tensor, gathered: list[Tensor], count: EdgeCount) -> Tensor:
    """Return the mean of what all ranks have sent, added up in their order, so that all find the same bits.

    Args:
        places: of the bucket's gradients in its buffer.
        total: zeros of the size of the buffer, which become the result.
        gathered: the packets of each rank.
        count: gets the time that it took.
    """
    start = time.perf_counter()
    for rank, data in enumerate(gathered):
        at = 0
        for name, shape, stride, offset in places:
            view = total.as_strided(shape, stride, offset)
            packet, at = _next(data, at, rank, name)
            try:
                found = decode_like(packet, view)
            except PacketError as error:
                raise PacketError(f"the gradient of {name!r} from rank {rank}: {error}") from error
            if found.shape != view.shape or found.dtype != view.dtype:
                raise PacketError(f"the gradient of {name!r} from rank {rank} has shape {tuple(found.shape)}.")
            view += found
    count.decoding += time.perf_counter() - start
    return total.div_(len(gathered))


def _next(data: Tensor, at: int, rank: int, name: str) -> tuple[Tensor, int]:
    """Return the packet that begins at a place, and the place behind it."""
    head = data[at : at + LENGTH.size]
    if head.numel() == LENGTH.size:
        (length,) = LENGTH.unpack(bytes(head.tolist()))
        end = at + LENGTH.size + length
        if end <= data.numel():
            return data[at + LENGTH.size : end], end
    raise PacketError(f"the gradient of {name!r} from rank {rank} is cut off.")
