"""An edge: a site without a layer, whose treated operand goes over a wire instead of into a product.

Statistics, numbers, random key, memory and counters are those of a site of the engine.  A step of an edge is a step of
the schedule: all microbatches together give one histogram, and numbers change between steps only.
"""

from __future__ import annotations

import json
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..attachment.refresh import Cost, OperandStatistics, Refresh, is_due, mix
from ..engine.site import COUNTERS, CPU, READY, Operand, Site, encoded
from ..errors import InvalidValue, sentence
from ..files.checks import check_object, check_whole
from ..ops.coded import CodedTensor
from ..ops.contracts import FLOAT_TYPES
from ..treatments import OPERANDS, PRODUCTS, Sentence, describe, to_json
from ..treatments.tensors import is_finite
from .packets import Packing, encode, prune_and_encode

FIRST_NUMBER = 2**41
"""Sites of attached layers have smaller numbers, so that edges draw other random numbers than these."""
LONGEST = 2**62


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
        self, treatments: Sentence, operand: str, number: int, seed: int, refresh: Refresh, device: torch.device
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
        coded, counts = encoded(x, site.treatments, site.numbers, site.key, site.own_memory)
        site.count(counts, x.numel())
        return coded

    def packet(self, x: Tensor, packing: Packing, held: bool = False) -> Tensor:
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
            return self.packed(self.treat(x, held), packing)
        self._observe(x, held)
        packet, counts = prune_and_encode(x, site.threshold, site.key, packing)
        site.count(counts, x.numel())
        return packet

    def packed(self, treated: Tensor | CodedTensor, packing: Packing) -> Tensor:
        """Return the packet of what `treat` has returned."""
        known = self.site is not None and self.operand.ready
        return encode(treated, packing, self.site.threshold if known and self.site else None)

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
        if state["sentence"] != own["sentence"]:
            raise InvalidValue(f"{what} belongs to other treatments; this edge has {self.words()}.")
        if state["seed"] != self._seed:
            raise InvalidValue(f"{what} was saved with seed {state['seed']!r}, and this stage has {self._seed}.")
        steps = check_whole(f"steps of {what}", state["steps"], 0, LONGEST)
        check_whole(f"last_collected of {what}", state["last_collected"], 0, steps)
        check_object(f"the tensors of {what}", state["tensors"], tuple(own["tensors"]))
        for name, like in own["tensors"].items():
            check_tensor(f"{name} of {what}", state["tensors"][name], like)
        check_object(f"the statistics of {what}", state["statistics"], tuple(own["statistics"]))

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the `state` of another, which `check` has accepted."""
        for name, tensor in self.operand.tensors().items():
            tensor.copy_(state["tensors"][name])
        self.operand.set_ready(bool(self.operand.control[READY]))
        self._statistics.load(state["statistics"])
        self.steps, self._last_collected = state["steps"], state["last_collected"]
        self._passed = 0


def check_tensor(what: str, tensor: Any, like: Tensor) -> None:
    """Refuse what is not a tensor of the type and shape of another."""
    kind = f"{str(like.dtype).removeprefix('torch.')} of shape {tuple(like.shape)}"
    if not isinstance(tensor, Tensor) or tensor.dtype != like.dtype or tensor.shape != like.shape:
        raise InvalidValue(sentence(what, tensor, f"a tensor, {kind}"))
