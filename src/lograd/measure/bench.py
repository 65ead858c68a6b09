"""One model on a bench: gradients of a batch under several plans, always from the same state.

Buffers and PyTorch's random numbers are put back before each pass, so a forward is repeated bit for bit, dropout
included.  The numbers and memories of treatments are those after a few steps of warm-up, and stay so.  Only the random
numbers of the backward differ from draw to draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..attachment import Handle, attach
from ..attachment.refresh import set_keys
from ..engine.layers import candidates
from ..engine.site import STRIDE, Operand, Site
from ..errors import InvalidValue, LogradWarning
from ..plan import LayerPlan, Plan
from . import variants
from .arriving import settling
from .gradients import learned_parameters
from .loss import LossFunction, loss_of
from .start import Start, taken

WARM_UP = 4
"""Steps in which treatments take their statistics: the first without noise, the others with their own.  In the last one
numbers follow the noise that arrives in it, as they do after many steps."""

Gradients = list[Tensor]


class _Settled(NamedTuple):
    """An operand after the warm-up."""

    ready: bool
    sites: dict[str, Site]
    """By product."""
    tensors: dict[str, dict[str, Tensor]]
    """Copies of numbers, memory and key, by product."""

    @classmethod
    def of(cls, operand: Operand) -> _Settled:
        sites = {product: site for product, site in operand.at.items() if site is not None}
        copies = {
            product: {name: tensor.clone() for name, tensor in site.tensors().items()}
            for product, site in sites.items()
        }
        return cls(operand.ready, sites, copies)

    def write(self, operand: Operand) -> None:
        """Write numbers and memory to an operand of the same layer in another plan; keys only where Y takes it."""
        for product, site in operand.at.items():
            for source in (product, "output"):  # the exact backward takes what the output takes
                known = self.sites.get(source)
                if site is not None and known is not None and known.treatments == site.treatments:
                    copies = self.tensors[source]
                    site.numbers.copy_(copies["numbers"])
                    site.memory.copy_(copies["memory"])
                    if site is operand.at.get("output"):
                        site.key.copy_(self.tensors["output"]["key"])
                    break
        operand.set_ready(self.ready)
        operand.control[STRIDE] = 0  # no histogram


class Bench:
    """Gradients of a model under a plan, its parts, and without it.

    Args:
        model: a plain model; its state must be restored by the caller.
        plan: what is measured.
        loss_fn: as for `lograd.profile`.
        seed: of the random numbers of treatments.
    """

    def __init__(self, model: nn.Module, plan: Plan, loss_fn: LossFunction | None, seed: int) -> None:
        self.model, self.plan, self.loss_fn, self.seed = model, plan, loss_fn, seed
        self.advance: Callable[[], None] = lambda: None
        """Called after each pass."""
        self.parameters = learned_parameters(model)
        self.layers: dict[str, LayerPlan] = {}
        """The treated layers, in the order of the model, and their plans."""
        self._settled: dict[str, dict[str, _Settled]] = {}
        self._start = Start(model)
        self._draws = 0

    # -- the state from which all passes start --

    def begin(self, batch: Any) -> None:
        """Take the random state of now for all passes of this batch, and warm the plan up if it is the first one."""
        self._start.take_random_state()
        if not self._settled:
            self._warm_up(batch)

    def _warm_up(self, batch: Any) -> None:
        with attach(self.model, self.plan, self.seed, backend="dense") as handle:
            modules = candidates(self.model)
            for place in range(WARM_UP):
                with settling(handle.layers, modules) if place == WARM_UP - 1 else nullcontext():
                    self._pass(batch)
                handle.step()
            self.layers = variants.layer_plans(self.plan, self.model, handle.layers)
            self._settled = {
                name: {key: _Settled.of(operand) for key, operand in engine.operands.items()}
                for name, engine in handle.layers.items()
            }
        if not any(layer.treats for layer in self.layers.values()) and self.plan.saved is None:
            raise InvalidValue("the plan treats no layer of this model, so there is no variance to measure.")

    # -- plans --

    @contextmanager
    def under(self, plan: Plan | None) -> Iterator[Handle | None]:
        """Attach a variant of the plan, with the numbers and memories of the warm-up; None leaves the model plain."""
        if plan is None:
            yield None
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogradWarning)  # the warm-up has said it all
            with attach(self.model, plan, self.seed, backend="dense") as handle:
                self._settle(handle, 0)
                yield handle

    def draw(self, handle: Handle) -> None:
        """Give the backward fresh random numbers; the forward keeps its own."""
        self._draws += 1
        self._settle(handle, self._draws)

    def _settle(self, handle: Handle, number: int) -> None:
        set_keys(handle.layers.values(), self.seed, WARM_UP + number)
        for name, engine in handle.layers.items():
            for key, operand in engine.operands.items():
                self._settled[name][key].write(operand)

    @property
    def treats_forward(self) -> bool:
        """True if the plan changes the forward."""
        return variants.treats_forward(self.plan, self.layers)

    @property
    def exact_plan(self) -> Plan | None:
        """The plan of the exact gradient; None where that is the plain model's."""
        return variants.forward_only(self.plan, self.layers) if self.treats_forward else None

    # -- passes --

    def exact(self, batch: Any) -> Gradients:
        """Return the exact gradient of a batch."""
        with self.under(self.exact_plan):
            return self._pass(batch)

    def plain(self, batch: Any) -> Gradients:
        """Return the gradient without any plan, that of float32."""
        return self._pass(batch)

    def draws(self, batch: Any, plan: Plan, repeats: int, clean: Gradients) -> Iterator[Gradients]:
        """Yield the difference to the exact gradient, again and again with fresh random numbers."""
        with self.under(plan) as handle:
            for _ in range(repeats):
                if handle is not None:
                    self.draw(handle)
                yield [noisy.sub_(exact) for noisy, exact in zip(self._pass(batch), clean, strict=True)]

    def _pass(self, batch: Any) -> Gradients:
        self._start.put_back()
        for parameter in self.parameters.values():
            parameter.grad = None
        loss_of(self.model, batch, self.loss_fn).backward()  # type: ignore[no-untyped-call]
        found = [taken(parameter) for parameter in self.parameters.values()]
        self.advance()
        return found
