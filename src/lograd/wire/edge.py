"""An edge: a site without a layer, whose treated operand goes over a wire instead of into a product.

`edge_sentences` says which sentence the tensors of each edge are treated by.  Statistics, numbers, random key, memory
and counters of an edge are those of a site of the engine.  A step of an edge is a step of the schedule: all
microbatches together give one histogram, and numbers change between steps only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..attachment.refresh import Cost, OperandStatistics, is_due, mix
from ..attachment.state import check_values
from ..engine.site import COUNTERS, CPU, READY, Operand, Site
from ..errors import InvalidType, InvalidValue, nearest_name, sentence, shown
from ..files import check_object
from ..ops import Counted
from ..ops.coded import CodedTensor
from ..ops.contracts import FLOAT_TYPES
from ..plan import LayerPlan, Plan
from ..treatments import OPERANDS, PRODUCTS, Sentence, Treated, Treatment, describe, recipe, to_json
from ..treatments.tensors import is_finite
from .packets import decode, encode, prune_and_encode

BACKWARD, FORWARD = "backward", "forward"
OPERAND = {BACKWARD: "gradient", FORWARD: "activations"}
"""The tensors that travel in each direction."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The types of tensors that packets hold."""
FIRST_NUMBER = 2**41
"""Sites of attached layers have smaller numbers, so that edges draw other random numbers than these."""

EdgePlan = str | Treatment | Sentence | LayerPlan | None
"""A recipe by name, treatments, or the plan of a layer, whose sentence is taken; None sends plain tensors."""
EdgePlans = EdgePlan | Plan | Mapping[str, EdgePlan]
"""One for all edges of a direction, or one for each by name: "1->0" is the gradient from stage 1 to stage 0."""


def edge_name(source: int, target: int) -> str:
    """Return the name of the edge from one stage to another: "1->0" carries a gradient, "0->1" activations."""
    return f"{source}->{target}"


def edge_names(direction: str, stages: int) -> list[str]:
    """Return the names of all edges of one direction."""
    pairs = [(index, index + 1) for index in range(stages - 1)]
    return [edge_name(a, b) if direction == FORWARD else edge_name(b, a) for a, b in pairs]


def edge_sentences(plans: EdgePlans, direction: str, stages: int) -> dict[str, Sentence | None]:
    """Return the sentence of each edge of a direction by name; None where plain tensors travel.

    >>> edge_sentences("fp8", "backward", 2)["1->0"][0].format.bits
    8
    """
    names = edge_names(direction, stages)
    if isinstance(plans, Plan):
        plans = {**({} if plans.every is None else dict.fromkeys(names, plans.every)), **plans.layers}
    if not isinstance(plans, Mapping):
        plans = dict.fromkeys(names, plans)
    for name in plans:
        if name not in names:
            raise InvalidValue(
                sentence(f"an edge of {direction}", name, "one of " + (", ".join(names) or "none: there is one stage"))
                + nearest_name(str(name), names)
            )
    return {name: _sentence(plans.get(name), direction) for name in names}


def _sentence(plan: Any, direction: str) -> Sentence | None:
    """Return the sentence of a plan; that of the forward is the output's activations, or else the gradient's."""
    if plan is None:
        return None
    given = plan
    if isinstance(plan, Treatment):
        plan = (plan,)
    if isinstance(plan, str):
        plan = recipe(plan)
    if isinstance(plan, Treated | LayerPlan):
        treats = plan.treats
        found = plan.output.activations if direction == FORWARD else ()
        found = found or plan.input_gradient.gradient
        if treats and not found:
            raise InvalidValue(f"{shown(given)} says nothing about the {OPERAND[direction]} that travel {direction}.")
        plan = found
    if not isinstance(plan, tuple) or not all(isinstance(one, Treatment) for one in plan):
        raise InvalidType(sentence(direction, plan, "a recipe such as 'prune90', treatments, a LayerPlan, or None"))
    for one in plan:
        if one.learns or one.shared_sparsity is not None:
            raise InvalidValue(f"{describe(plan)} cannot treat an edge: {one} belongs to the layers of one model.")
    return plan


def decode_like(packet: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of a packet; a packet that claims to be much larger than another tensor is refused."""
    found = decode(packet, limit=2 * like.numel() * like.element_size() + 4096)
    tensor: Tensor = found.decode() if isinstance(found, CodedTensor) else found
    return tensor


@final
class Edge:
    """The treatment of tensors that leave one place for another, and all that changes as they pass.

    Args:
        treatments: the sentence; empty changes nothing.
        operand: "gradient" or "activations".
        number: tells the random numbers of this edge from those of others.
        refresh: a number of steps.
    """

    def __init__(
        self, treatments: Sentence, operand: str, number: int, seed: int, refresh: int, device: torch.device
    ) -> None:
        products = [product for product in PRODUCTS if operand in OPERANDS[product]]
        self.operand = Operand(operand, dict.fromkeys(products, treatments), True, device)
        self.site: Site | None = next(iter(self.operand.sites.values()), None)
        self._statistics = OperandStatistics(self.operand)
        self._number, self._seed, self._refresh = FIRST_NUMBER + number, seed, refresh
        # Zeros are cheapest as a mask, so what was pruned goes as a tensor, and only the rest as codes.
        self._coded = bool(treatments) and treatments[-1].can_encode and not any(one.makes_zeros for one in treatments)
        self.steps = 0
        self._last_collected = 0
        self._passed = 0
        self.operand.begin()
        if self.operand.has_statistics:
            self._statistics.collect()
        if self.site is not None:
            self._set_key()

    def treat(self, x: Tensor, held: bool = False) -> Tensor | CodedTensor:
        """Return a tensor as it shall leave: itself, a treated copy, or codes whose decoded values are that copy.

        Args:
            held: change nothing; for tensors of an evaluation.
        """
        site = self.site
        if site is None or x.dtype not in FLOAT_TYPES or not x.numel():
            return x
        self._observe(x, held)
        if not self.operand.ready:
            site.count_passed_through()
            return x
        if not (self._coded and is_finite(x)):
            return site.treat(x, (), self.operand.control)
        coded, counts = site.codes(x)
        site.count(counts, x.numel())
        return coded

    def packet(self, x: Tensor, held: bool = False) -> Tensor:
        """Return the packet of a tensor as it shall leave; a single pruning is done on the way, in one pass.

        Args:
            held: change nothing; for tensors of an evaluation.
        """
        site = self.site
        if (
            site is None
            or site.threshold is None
            or x.dtype != torch.float32
            or not x.numel()
            or not self.operand.ready
        ):
            return self.packed(self.treat(x, held))
        self._observe(x, held)
        found: Counted = prune_and_encode(x, site.threshold, *site.key.unbind(), counted=True)
        site.count(found.counts, x.numel())
        return found.result

    def packed(self, treated: Tensor | CodedTensor) -> Tensor:
        """Return the packet of what `treat` has returned."""
        if isinstance(treated, CodedTensor) or treated.dtype == torch.float64:
            return encode(treated)
        known = self.site is not None and self.operand.ready
        packet: Tensor = encode(treated, alpha=self.site.threshold if known and self.site else None)
        return packet

    def _observe(self, x: Tensor, held: bool) -> None:
        assert self.site is not None
        self.site.held = held
        if not held:
            self._passed += 1
            if self.operand.has_statistics:
                self.operand.observe(x)

    def step(self) -> None:
        """Mark the end of a step, if any tensor has passed: new numbers where statistics were due, a fresh key."""
        if not self._passed or self.site is None:
            return
        self._passed = 0
        self._statistics.deliver(self.steps, 1.0, 1.0, Cost())
        self.steps += 1
        if self.operand.has_statistics and is_due(self._refresh, self.steps, self._last_collected):
            self._last_collected = self.steps
            if not self._statistics.collecting and self._statistics.wanted(self.steps):
                self._statistics.collect()
        self._set_key()

    def _set_key(self) -> None:
        """Write the key of this step; ranks draw independent numbers, as replicas of a pipeline should."""
        assert self.site is not None
        rank = dist.get_rank() if dist.is_initialized() else 0
        own = mix(mix(mix(np.uint64(self._seed % 2**64)) + np.uint64(rank)) + np.uint64(self._number))
        seed = int(mix(own + np.uint64(self.steps)).view(np.int64))
        self.site.key.copy_(torch.tensor([seed, 0], device=CPU))

    @property
    def treated(self) -> dict[str, int]:
        """The counters of the site, by name."""
        counts = [0] * len(COUNTERS) if self.site is None else self.site.counters.tolist()
        return dict(zip(COUNTERS, counts, strict=True))

    def words(self) -> str:
        """Return the sentence in words."""
        return describe(() if self.site is None else self.site.treatments)

    # -- saving --

    def state(self) -> dict[str, Any]:
        """Return all that changes, as tensors and plain values."""
        return {
            "sentence": json.dumps([] if self.site is None else to_json(self.site.treatments)),
            "seed": self._seed,
            "steps": self.steps,
            "last_collected": self._last_collected,
            "tensors": {name: tensor.clone() for name, tensor in self.operand.tensors().items()},
            "statistics": self._statistics.state(),
        }

    def check(self, what: str, state: Any) -> None:
        """Refuse a state that is not one of this edge, in one sentence."""
        own = self.state()
        check_object(what, state, tuple(own))
        if (state["sentence"], state["seed"]) != (own["sentence"], own["seed"]):
            raise InvalidValue(
                f"{what} belongs to other treatments or another seed; here they are {self.words()} and {self._seed}."
            )
        check_object(f"the tensors of {what}", state["tensors"], tuple(own["tensors"]))
        check_values(what, state, own)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another, which `check` has accepted."""
        for name, tensor in self.operand.tensors().items():
            tensor.copy_(state["tensors"][name])
        self.operand.set_ready(bool(self.operand.control[READY]))
        self._statistics.load(state["statistics"])
        self.steps, self._last_collected = state["steps"], state["last_collected"]
        self._passed = 0
