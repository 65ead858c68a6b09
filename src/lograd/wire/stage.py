"""A stage of a pipeline whose edges carry packets, for the schedules of torch.distributed.pipelining.

The schedule asks a stage for operations that send and receive, and waits for them; here their tensors are messages.
Activations and gradients are decoded when the stage's own computation asks for what has arrived.
"""

from __future__ import annotations

import time
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ..attachment.state import check_values
from ..errors import InvalidType, InvalidValue, PacketError, sentence
from ..files import check_object, check_whole
from .channel import Channel, EdgeCount, Message, SideWay
from .edge import (
    BACKWARD,
    FLOATS,
    FORWARD,
    OPERAND,
    Edge,
    EdgePlans,
    decode_like,
    edge_name,
    edge_sentences,
)  # fmt: skip
from .packets import largest

MOST_TENSORS = 256
"""Tensors that may cross one edge; in practice it is one."""
SMALL = 4096
"""Bytes by which the packet of a small tensor may be larger than a plain one: codes bring a description along."""


@final
class CompressedStage(PipelineStage):
    """A PipelineStage whose gradients, and on request whose activations, travel as packets.

    All stages of a pipeline get the same `backward` and `forward`.  The gradient that leaves a stage is treated, as a
    layer's gradient would be, and encoded; the stage before decodes it, to the bits that were encoded.  With
    `backward=None, forward=None` it is a plain PipelineStage.

        stage = CompressedStage(part, rank, ranks, device, backward="prune90", forward="int8-nearest")
        schedule = Schedule1F1B(stage, 8, loss_fn)

    Args:
        submodule, stage_index, num_stages, device: as in PipelineStage, and so is every other argument.
        backward: what is done to gradients between stages: a recipe, treatments, a LayerPlan, or a mapping or Plan
            that names edges ("1->0" is the gradient from stage 1 to stage 0); "identity" changes nothing and encodes.
        forward: the same for activations; a recipe's activations of the output, or else its treatment of gradients.
        seed: of the random numbers; they also depend on edge, step, microbatch, element and rank.
        refresh: when statistics are taken anew, as in `lograd.attach`.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        *arguments: Any,
        backward: EdgePlans = "prune90",
        forward: EdgePlans = None,
        seed: int = 0,
        refresh: int = 10,
        **others: Any,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, torch.device(device), *arguments, **others)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidType(sentence("seed", seed, "a whole number"))
        self._seed, self._refresh = seed, check_whole("refresh", refresh, 1)
        plans = {BACKWARD: backward, FORWARD: forward}
        self._sentences = {way: edge_sentences(plan, way, num_stages) for way, plan in plans.items()}
        ahead = {FORWARD: 1, BACKWARD: -1}
        known = range(num_stages)
        self._leaving = {
            way: edge_name(stage_index, stage_index + by) for way, by in ahead.items() if stage_index + by in known
        }
        """The edges on which tensors leave this stage, by direction; an end of the pipeline lacks one."""
        self._coming = {
            way: edge_name(stage_index - by, stage_index) for way, by in ahead.items() if stage_index - by in known
        }
        """The edges on which tensors arrive."""
        self._edges: dict[str, Edge] = {}
        """By edge and tensor: the treatment of what leaves this stage."""
        self._channels: dict[str, Channel] = {}
        """By edge and tensor: what leaves this stage, and what arrives."""
        self._arriving: dict[tuple[str, int], list[Tensor | None]] = {}
        """Messages whose receipt was asked for, by direction and microbatch."""
        self._side = SideWay(self.group)

    # -- what leaves --

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that send the activations of a microbatch."""
        return self._send(FORWARD, fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that send the gradients of a microbatch."""
        return self._send(BACKWARD, bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def _send(self, way: str, microbatch: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        name = self._leaving.get(way)
        if not ops or name is None or self._sentences[way][name] is None:
            return ops
        more = []
        for place, op in enumerate(ops):
            if op.tensor.dtype not in FLOATS:  # such as a mask: it travels as it is
                continue
            message = self._packed(name, place, microbatch, op.tensor)
            op.tensor = message.first
            if message.rest is not None:
                more += self._send_rest(message.rest.cpu(), op.peer, self._tag(name, microbatch, place))
        return ops + more

    def _send_rest(self, rest: Tensor, peer: int, tag: int) -> list[dist.P2POp]:
        """Send the rest of a packet; returned operations are for the schedule to start.

        One stage for each rank may be the 1F1B schedule, which waits for a send and a receipt together.  Two ranks,
        each with a rest that the other has not yet asked for, would wait for ever; so there a rest is sent at once, and
        waited for at the end of the step.
        """
        if not (self._is_alone and self.has_backward):
            return [self._side.operation(rest, peer, tag)]
        self._side.send(rest, peer, tag)
        return []

    @property
    def _is_alone(self) -> bool:
        """True if this is the only stage of its rank."""
        return self.group_size == self.num_stages

    @torch.no_grad()
    def _packed(self, name: str, place: int, microbatch: int, tensor: Tensor) -> Message:
        """Return the message with one tensor."""
        channel = self._channel(name, place)
        start = time.perf_counter()
        packet = self._edge(name, place).packet(tensor, held=not self.has_backward)
        message = channel.wrap(packet, largest(tensor.shape, tensor.dtype), microbatch)
        channel.count.encoding += time.perf_counter() - start
        channel.count.plain += 4 * tensor.numel()
        return message

    # -- what arrives --

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that receive the activations of a microbatch."""
        return self._receive(FORWARD, fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that receive the gradients of a microbatch."""
        return self._receive(BACKWARD, bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def _receive(self, way: str, microbatch: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        name = self._coming.get(way)
        if not ops or name is None or self._sentences[way][name] is None:
            return ops
        messages: list[Tensor | None] = []
        for place, op in enumerate(ops):
            if op.tensor.dtype not in FLOATS:
                messages.append(None)
                continue
            size = self._channel(name, place).size(largest(op.tensor.shape, op.tensor.dtype))
            op.tensor = torch.empty(size, dtype=torch.uint8, device=op.tensor.device)
            messages.append(op.tensor)
        self._arriving[way, microbatch] = messages
        return ops

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        self._open(FORWARD, fwd_chunk_id, self.args_recv_info[fwd_chunk_id])
        return super()._retrieve_recv_activations(fwd_chunk_id)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._open(BACKWARD, bwd_chunk_id, self.grad_recv_info[bwd_chunk_id])
        return super()._retrieve_recv_grads(bwd_chunk_id)

    def _open(self, way: str, microbatch: int, infos: Any) -> None:
        """Put what has arrived into the place of the buffers that plain tensors would have been received in."""
        name = self._coming.get(way)
        messages = self._arriving.pop((way, microbatch), [])
        if name is None:
            return
        expected = [info for info in infos if getattr(info, "buffer", None) is not None]
        for place, (first, info) in enumerate(zip(messages, expected, strict=True) if messages else ()):
            if first is not None:
                info.buffer = self._unpacked(name, place, microbatch, first, info.buffer)

    @torch.no_grad()
    def _unpacked(self, name: str, place: int, microbatch: int, first: Tensor, buffer: Tensor) -> Tensor:
        """Return the tensor of a message, in the shape and type of a buffer."""
        channel, bound = self._channel(name, place), largest(buffer.shape, buffer.dtype)
        missing = channel.missing(first, microbatch, 2 * bound + SMALL)
        rest = None
        if missing:
            source = self._resolve_peer_global_rank(int(name.partition("->")[0]))
            rest = self._side.receive(missing, source, self._tag(name, microbatch, place))
        start = time.perf_counter()
        try:
            tensor = decode_like(channel.unwrap(first, rest), buffer)
        except PacketError as error:
            raise PacketError(f"{channel.place(microbatch)}: {error}") from error
        if tensor.shape != buffer.shape or tensor.dtype != buffer.dtype:
            found, wanted = ((one.dtype, tuple(one.shape)) for one in (tensor, buffer))
            raise PacketError(f"{channel.place(microbatch)}: a packet of {found} arrived where {wanted} was expected.")
        tensor = tensor.to(buffer.device)
        if tensor.stride() != buffer.stride():
            tensor = torch.empty_like(buffer).copy_(tensor)
        channel.count.decoding += time.perf_counter() - start
        channel.count.plain += 4 * tensor.numel()
        return tensor

    # -- steps --

    def clear_runtime_states(self) -> None:
        """Begin a step: what the last one has left over is done with, and edges get new numbers and capacities."""
        self._settle()
        super().clear_runtime_states()

    def _settle(self) -> None:
        self._side.wait()
        self._arriving.clear()
        for channel in self._channels.values():
            channel.step()
        for edge in self._edges.values():
            edge.step()

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """End the backward of a step, as every schedule does at last."""
        if self._is_alone:  # other stages of this rank may have to go on before a peer can read
            self._side.wait()
        super().perform_reduce_grad(grad_scale_factor)

    # -- counts and state --

    def counters(self) -> dict[str, EdgeCount]:
        """Return what has crossed each edge of this stage, by name: bytes, their ratio to float32, seconds, overflows.

        An edge that carries several tensors has an entry for each: "1->0", "1->0 (1)".  Plain edges have none.
        """
        return {name: channel.count for name, channel in self._channels.items()}

    def treated(self) -> dict[str, dict[str, int]]:
        """Return the exact counts of elements of each edge that this stage treats, as sites of layers count them."""
        return {name: edge.treated for name, edge in self._edges.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs of the edges, as tensors and plain values; call it between two steps."""
        self._settle()
        return {
            "stage": [self.stage_index, self.num_stages],
            "edges": {name: edge.state() for name, edge in self._edges.items()},
            "channels": {name: channel.state() for name, channel in self._channels.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of a stage with the same place in the pipeline and the same plans."""
        own = self.state_dict()
        check_object("a stage's state", state, tuple(own))
        if list(state["stage"]) != own["stage"]:
            saved, here = ("stage {} of {}".format(*place) for place in (state["stage"], own["stage"]))
            raise InvalidValue(f"this is the state of {saved}, and this is {here}.")
        edges = {name: self._new_edge(name) for name in state["edges"]}
        channels = {name: Channel(name) for name in state["channels"]}
        check_values("the channels", state["channels"], {name: one.state() for name, one in channels.items()})
        for name, edge in edges.items():
            edge.check(f"the state of edge {name}", state["edges"][name])
        for name, edge in edges.items():
            edge.load(state["edges"][name])
        for name, channel in channels.items():
            channel.load(state["channels"][name])
        self._edges, self._channels = edges, channels

    # -- names --

    def _channel(self, name: str, place: int) -> Channel:
        name = _placed(name, place)
        return self._channels.setdefault(name, Channel(name))

    def _edge(self, name: str, place: int) -> Edge:
        name = _placed(name, place)
        if name not in self._edges:
            self._edges[name] = self._new_edge(name)
        return self._edges[name]

    def _new_edge(self, name: str) -> Edge:
        """Return the edge with this name, which may end in the place of a tensor."""
        edge, _, place = name.partition(" ")
        way = next((way for way, own in self._leaving.items() if own == edge), None)
        found = None if way is None else self._sentences[way][edge]
        if way is None or found is None:
            raise InvalidValue(f"no treated edge {name!r} leaves stage {self.stage_index} of {self.num_stages}.")
        number = (2 * self.stage_index + (way == FORWARD)) * MOST_TENSORS + int(place.strip("()") or 0)
        return Edge(found, OPERAND[way], number, self._seed, self._refresh, self.device)

    def _tag(self, name: str, microbatch: int, place: int) -> int:
        """Return a tag that no other message of this step between the two ranks has."""
        source, _, target = name.partition("->")
        edge = 2 * int(source) + (int(source) < int(target))
        return (2 * microbatch * self.num_stages + edge) * MOST_TENSORS + place + 1


def _placed(name: str, place: int) -> str:
    return name if place == 0 else f"{name} ({place})"
