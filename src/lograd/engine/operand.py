"""An operand of a layer as it arrives: its histogram when one is due, and the sites that treat it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from ..ops.contracts import FLOAT_TYPES, Takes
from ..ops.histogram import SLOTS
from ..ops.registry import call, register
from ..treatments import OPERANDS, PRODUCTS, Sentence
from .site import Site
from .slots import CPU, READY, STRIDE, constant, zeros


class Operand:
    """The activations, the weights or the gradient of one layer.

    The two products that it enters have a site each, or share one where they say the same.  The histogram is of the
    tensor itself, so that both sites have their statistics from it.

    Args:
        name: "activations", "weights" or "gradient".
        sentences: by product.
        shared: whether one treated copy serves both products.
    """

    def __init__(self, name: str, sentences: Mapping[str, Sentence], shared: bool, device: torch.device) -> None:
        self.name = name
        self.products = tuple(product for product in PRODUCTS if name in OPERANDS[product])
        self.shared = shared and bool(sentences[self.products[0]])
        """True if both products take one treated copy."""
        made: dict[str, Site | None] = {
            product: Site(sentences[product], device) if sentences[product] else None for product in self.products
        }
        if self.shared:
            made = dict.fromkeys(self.products, made[self.products[0]])
        self.at = made
        """The site in each product; None where the operand is left as it is."""
        self.control, self.seen = zeros(2, torch.int64, CPU), zeros(3, torch.int64, CPU)
        self.ready = False
        """True once the operand is treated; before, it passes through.  The operators read it from `control`."""
        self.histogram = zeros(SLOTS if self.has_statistics or name == "gradient" else 0, torch.int64, device)

    @property
    def sites(self) -> dict[str, Site]:
        """The distinct sites: by the operand's name if it is shared, else by product and operand."""
        if self.shared:
            site = self.at[self.products[0]]
            return {} if site is None else {self.name: site}
        return {f"{product}.{self.name}": site for product, site in self.at.items() if site is not None}

    @property
    def has_statistics(self) -> bool:
        """True if a treatment takes numbers from statistics."""
        return any(site is not None and site.names for site in self.at.values())

    def set_ready(self, ready: bool) -> None:
        """Treat the operand from now on, or let it pass through."""
        self.control[READY] = int(ready)
        self.ready = ready

    def begin(self) -> None:
        """Treat what needs no statistics; the rest is treated once it has them."""
        if not self.has_statistics:
            self.set_ready(True)

    def wait(self) -> None:
        """Let everything pass until `begin`."""
        self.set_ready(False)

    def observe(self, x: Tensor) -> None:
        """Count the tensor, and take its histogram if one is due."""
        call("observe", x, self.control, self.histogram, self.seen)

    def treated(self, x: Tensor, product: str, contracted: tuple[int, ...], signs: Tensor | None = None) -> Tensor:
        """Return the operand as a product takes it; one that both take sums over no dimension in particular.

        Args:
            signs: a key that names random signs; see `Setting`.
        """
        site = self.at[product]
        return x if site is None else site.treat(x, () if self.shared else contracted, self.control, None, signs)

    def move_to(self, device: torch.device) -> None:
        """Move all tensors but those that stay on the CPU."""
        self.histogram = self.histogram.to(device)
        for site in self.sites.values():
            site.move_to(device)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes as tensors pass, by name."""
        named = {}
        if self.sites or self.name == "gradient":
            own = {"control": self.control, "seen": self.seen, "histogram": self.histogram}
            named = {f"{self.name}.{key}": tensor for key, tensor in own.items() if tensor.numel()}
        for name, site in self.sites.items():
            named |= {f"{name}.{key}": tensor for key, tensor in site.tensors().items()}
        return named


def _observe(x: Tensor, control: Tensor, histogram: Tensor, seen: Tensor) -> None:
    stride = control.tolist()[STRIDE]
    spent = 0
    if stride and x.dtype in FLOAT_TYPES:
        start = time.perf_counter_ns()
        histogram += torch.ops.lograd.log_histogram.default(x, stride).to(histogram.device)
        spent = time.perf_counter_ns() - start
    seen += constant((1, x.numel(), 0), seen.device) if not spent else torch.tensor([1, x.numel(), spent], device=CPU)


register(
    "observe(Tensor x, Tensor control, Tensor(a!) histogram, Tensor(b!) seen) -> ()",
    _observe,
    _observe,
    lambda x, *rest: None,
    takes={
        "x": Takes(),
        "control": Takes((torch.int64,), 2, anywhere=True),
        "histogram": Takes((torch.int64,), SLOTS, anywhere=True),
        "seen": Takes((torch.int64,), 3, anywhere=True),
    },
)
