"""A treated layer: small tensors that compiled code reads and writes, and the two operators that do the work.

Everything that changes during training is a tensor, so that nothing is compiled again: the numbers of the treatments,
the random key, whether statistics are due.  The operators are opaque to torch.compile and count as they go.
"""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from .ops.histogram import SLOTS
from .ops.library import FLOAT_TYPES, dense, register
from .plan import LayerPlan
from .treatments import Numbers, Sentence, from_json, to_json

READY, STRIDE = range(2)
"""Slots of `control`: treat or pass through; take the histogram of one cache line in STRIDE, or none if 0."""
PASSES, ELEMENTS, NANOSECONDS = range(3)
"""Slots of `seen`: gradients that came by, their elements in all, time spent on statistics."""
COUNTERS = ("zeros_after", "nan", "clipped", "zeros_before", "elements", "treated", "passed_through")
"""In the order of the operators' own counts, so that those are added at once."""


class Session(Protocol):
    """What the layers of one handle share."""

    def copied(self) -> None: ...


class Product:
    """The treatments of one product, or of both where they are the same."""

    def __init__(self, treatments: Sentence, device: torch.device) -> None:
        self.treatments = treatments
        self.text = json.dumps(to_json(treatments))
        self.names = [(place, name) for place, one in enumerate(treatments) for name in one.number_names]
        self.numbers = torch.zeros(len(self.names), dtype=torch.float32, device=device)
        self.key = torch.zeros(2, dtype=torch.int64, device=device)
        self.counters = torch.zeros(len(COUNTERS), dtype=torch.int64, device=device)

    def treat(self, g: Tensor, control: Tensor) -> Tensor:
        result: Tensor = torch.ops.lograd.treat_gradient.default(
            g, self.text, self.numbers, control, self.key, self.counters
        )
        return result

    def set_numbers(self, numbers: list[Numbers]) -> None:
        self.numbers.copy_(torch.tensor([numbers[place][name] for place, name in self.names], dtype=torch.float32))

    def current_numbers(self) -> list[Numbers]:
        found: list[Numbers] = [{} for _ in self.treatments]
        for (place, name), value in zip(self.names, self.numbers.tolist(), strict=True):
            found[place][name] = value
        return found


class TreatedLayer:
    """The catcher of one attached layer."""

    def __init__(self, plan: LayerPlan, device: torch.device, session: Session) -> None:
        self.session = session
        self.input = Product(plan.input, device) if plan.input else None
        self.weight = self.input if plan.shared else Product(plan.weight, device) if plan.weight else None
        self.control = torch.zeros(2, dtype=torch.int64)
        self.seen = torch.zeros(3, dtype=torch.int64)
        self.histogram = torch.zeros(SLOTS, dtype=torch.int64, device=device)

    @property
    def products(self) -> dict[str, Product]:
        """The distinct ones, by name."""
        if self.input is not None and self.input is self.weight:
            return {"both": self.input}
        named = (("input", self.input), ("weight", self.weight))
        return {name: product for name, product in named if product is not None}

    def split(self, g: Tensor, input: bool, weight: bool) -> tuple[Tensor, Tensor]:
        torch.ops.lograd.observe_gradient.default(g, self.control, self.histogram, self.seen)
        g_x = self.input.treat(g, self.control) if input and self.input is not None else g
        if self.weight is self.input and input:
            return g_x, g_x
        return g_x, self.weight.treat(g, self.control) if weight and self.weight is not None else g

    def copied(self) -> None:
        self.session.copied()

    def tensors(self) -> dict[str, Tensor]:
        """All that changes as gradients pass, by name."""
        named = {"control": self.control, "seen": self.seen, "histogram": self.histogram}
        for name, product in self.products.items():
            named |= {f"{name}.numbers": product.numbers, f"{name}.key": product.key}
            named |= {f"{name}.counters": product.counters}
        return named


def _observe(g: Tensor, control: Tensor, histogram: Tensor, seen: Tensor) -> None:
    stride = control.tolist()[STRIDE]
    spent = 0
    if stride and g.dtype in FLOAT_TYPES:
        start = time.perf_counter_ns()
        histogram += torch.ops.lograd.log_histogram.default(g, stride).to(histogram.device)
        spent = time.perf_counter_ns() - start
    seen += _constant((1, g.numel(), 0), seen.device) if not spent else torch.tensor([1, g.numel(), spent])


def _treat(g: Tensor, text: str, numbers: Tensor, control: Tensor, key: Tensor, counters: Tensor) -> Tensor:
    if not control.tolist()[READY] or g.dtype not in FLOAT_TYPES:
        counters[COUNTERS.index("passed_through")] += 1
        return dense(g).clone()
    result, start = g, 0
    total: Tensor | None = None
    for place, treatment in enumerate(_parsed(text)):
        names = treatment.number_names
        values = dict(zip(names, numbers[start : start + len(names)].unbind(), strict=True))
        start += len(names)
        # Each treatment has its own random numbers: the seed is a hash, and so is its successor to Philox.
        stage = key if place == 0 else key + _constant((place, 0), key.device)
        result, counts = treatment.apply(result, values, stage)
        if total is None:
            total = counts if counts.numel() == 4 else torch.cat([counts, (g == 0).sum().reshape(1)])
        else:  # zeros and NaN of the last, saturated elements of all, zeros before the first
            total = torch.cat([counts[:2], total[2:3] + counts[2:3], total[3:]])
    assert total is not None, "a product without treatments is not treated"
    counters[:4] += total
    counters[4:] += _constant((g.numel(), 1, 0), counters.device)
    key += _constant((0, g.numel()), key.device)
    return result


@lru_cache(maxsize=1024)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once: a small tensor costs as much as a small kernel."""
    return torch.tensor(values, device=device)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Sentence:
    return from_json(json.loads(text))


register(
    "observe_gradient(Tensor g, Tensor control, Tensor(a!) histogram, Tensor(b!) seen) -> ()",
    _observe,
    None,
    lambda g, *rest: None,
)
register(
    "treat_gradient(Tensor g, str treatments, Tensor numbers, Tensor control, Tensor(a!) key, Tensor(b!) counters)"
    " -> Tensor",
    _treat,
    None,
    lambda g, *rest: torch.empty_like(dense(g)),
)
