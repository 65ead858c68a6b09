"""A treated layer: small tensors that compiled code reads and writes, and the two operators that do the work.

The tensors are the numbers of the treatments, the random key, whether statistics are due.  The operators are opaque to
torch.compile and count as they go.
"""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InvalidValue, sentence
from ..ops.contracts import Takes
from ..ops.histogram import SLOTS
from ..ops.library import FLOAT_TYPES, call, dense, register
from ..plan import LayerPlan
from ..treatments import Numbers, Prune, Sentence, from_json, memories, to_json, treat
from .clock import BACKWARD
from .multiply import Backend, Choice, dense_products, multiply
from .slots import COUNTERS, CPU, READY, STRIDE, all_counters, constant, count_passed_through, count_treated, zeros

TENSORS = ("both", "input", "weight", "weights", "activations")
"""What a layer may treat: its gradient for both products, for dX or for dW, and the operands that it meets there."""


class Session(Protocol):
    """What the layers of one handle share."""

    def copied(self) -> None: ...


class Product:
    """The treatments of one tensor of one product, or of the gradient in both where they are the same."""

    def __init__(self, treatments: Sentence, device: torch.device) -> None:
        self.treatments = treatments
        self.text = json.dumps(to_json(treatments))
        self.names = [(place, name) for place, one in enumerate(treatments) for name in one.number_names]
        self.numbers = zeros(len(self.names), torch.float32, device)
        self.key = zeros(2, torch.int64, device)
        self.state = zeros(sum(one.state_size for one in treatments), torch.float64, device)
        """What treatments remember from one tensor to the next, in order."""
        self.counters = zeros(len(COUNTERS), torch.int64, device)
        self.choice: Choice | None = None
        """The backend of its products; None where there is no choice but dense ones."""
        self._asked = (0, 0)

    def treat(self, g: Tensor, contracted: tuple[int, ...], control: Tensor) -> Tensor:
        result: Tensor = torch.ops.lograd.treat_gradient.default(
            g, self.text, contracted, self.numbers, control, self.key, self.state, self.counters
        )
        return result

    def move_to(self, device: torch.device) -> None:
        self.numbers, self.key = self.numbers.to(device), self.key.to(device)
        self.state, self.counters = self.state.to(device), self.counters.to(device)

    def rescale(self, factor: float) -> None:
        """The loss scale was multiplied by a factor."""
        for treatment, state in zip(self.treatments, memories(self.treatments, self.state), strict=True):
            state.copy_(treatment.rescaled(state, factor))

    def tensors(self) -> dict[str, Tensor]:
        choice = {} if self.choice is None or self.choice.fixed else {"choice": self.choice.tensor}
        return {"numbers": self.numbers, "key": self.key, "state": self.state, "counters": self.counters, **choice}

    def recent_zeros(self) -> float | None:
        """The share of zeros in what was treated since it was last asked; None if nothing was."""
        zeros, elements = (int(self.counters[COUNTERS.index(name)]) for name in ("zeros_after", "elements"))
        before, self._asked = self._asked, (zeros, elements)
        return (zeros - before[0]) / (elements - before[1]) if elements > before[1] else None

    @property
    def makes_zeros(self) -> bool:
        return any(one.makes_zeros for one in self.treatments)

    def multiply(
        self,
        g: Tensor,
        operands: tuple[Tensor, Tensor],
        geometry: tuple[int, ...],
        contracted: tuple[int, ...],
        control: Tensor,
        need: tuple[bool, bool, bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dX, dW and dbias; a single pruning is done on the way to the lists of nonzero elements."""
        assert self.choice is not None
        fused = len(self.treatments) == 1 and isinstance(self.treatments[0], Prune)
        treated = g if fused else self.treat(g, contracted, control)
        threshold = self.numbers if fused else None
        return multiply(
            treated, operands, geometry, threshold, control, self.key, self.counters, self.choice.tensor, need
        )

    def set_numbers(self, numbers: list[Numbers]) -> None:
        found = [numbers[place][name] for place, name in self.names]
        self.numbers.copy_(torch.tensor(found, dtype=torch.float32, device=CPU))

    def current_numbers(self) -> list[Numbers]:
        found: list[Numbers] = [{} for _ in self.treatments]
        for (place, name), value in zip(self.names, self.numbers.tolist(), strict=True):
            found[place][name] = value
        return found

    def remembered(self) -> list[Numbers]:
        """What the memory of each treatment says to people."""
        states = memories(self.treatments, self.state)
        return [one.state_words(state.tolist()) for one, state in zip(self.treatments, states, strict=True)]

    def numbers_and_memory(self) -> list[Numbers]:
        """All that is in force."""
        return [a | b for a, b in zip(self.current_numbers(), self.remembered(), strict=True)]


class TreatedLayer:
    """The catcher of one attached layer."""

    def __init__(self, plan: LayerPlan, device: torch.device, session: Session) -> None:
        self.session = session
        self.input = Product(plan.input, device) if plan.input else None
        self.weight = self.input if plan.shared else Product(plan.weight, device) if plan.weight else None
        self.weights = Product(plan.weights, device) if plan.weights else None
        self.activations = Product(plan.activations, device) if plan.activations else None
        self.sparse = False
        """Whether its products have a choice; else they are dense, and `why_dense` says why, if zeros are made."""
        self.why_dense = ""
        self.control = zeros(2, torch.int64, CPU)
        self.operand_control = zeros(2, torch.int64, CPU)
        self.begin()
        self.seen = zeros(3, torch.int64, CPU)
        self.histogram = zeros(SLOTS, torch.int64, device)

    @property
    def products(self) -> dict[str, Product]:
        """The distinct ones, by name."""
        if self.input is not None and self.input is self.weight:
            return {"both": self.input}
        named = (("input", self.input), ("weight", self.weight))
        return {name: product for name, product in named if product is not None}

    @property
    def operands_by_name(self) -> dict[str, Product]:
        """The treated operands that the gradient meets."""
        named = (("weights", self.weights), ("activations", self.activations))
        return {name: product for name, product in named if product is not None}

    def begin(self) -> None:
        """Treat what needs no statistics; the rest is treated once it has them."""
        self.operand_control[READY] = 1
        if not any(product.names for product in self.products.values()):
            self.control[READY] = 1

    def wait(self) -> None:
        """Let everything pass until `begin`."""
        self.operand_control[READY] = self.control[READY] = 0

    def choose(self, backend: Backend, why_dense: str | None) -> None:
        """Let the products of gradients that are made sparse take the faster backend, or a given one, if it serves."""
        pruned = [product for product in self.products.values() if product.makes_zeros]
        if pruned and (backend == "dense" or why_dense):
            self.why_dense = why_dense or "asked for"
            return
        self.sparse = bool(pruned)
        for product in pruned:
            product.choice = Choice(backend)

    def reconsider(self) -> None:
        """Time the products again where the share of zeros has changed since."""
        for product in self.products.values():
            if product.choice is not None and (zeros := product.recent_zeros()) is not None:
                product.choice.reconsider(zeros)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors` of another gave; products that it did not choose between are timed again."""
        for name, tensor in self.tensors().items():
            if name in tensors:
                given = tensors[name].detach()
                tensor.copy_(all_counters(given) if name.endswith(".counters") else given)
        for product in self.products.values():
            product.recent_zeros()  # what was counted before is not recent

    def products_of(
        self, g: Tensor, x: Tensor, weight: Tensor, geometry: tuple[int, ...], need: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dX, dW and dbias, where `sparse`; what is not needed has no elements."""
        call("observe_gradient", g, self.control, self.histogram, self.seen)
        given = (self._activations(x) if need[1] else x, self._weights(weight, (0,)) if need[0] else weight)

        def products(
            product: Product | None, contracted: tuple[int, ...], wanted: tuple[bool, bool, bool]
        ) -> tuple[Tensor, Tensor, Tensor]:
            if product is not None and product.choice is not None:
                return product.multiply(g, given, geometry, contracted, self.control, wanted)
            treated = g if product is None else product.treat(g, contracted, self.control)
            return dense_products(treated, given, geometry, wanted)

        if self.input is self.weight:
            return products(self.input, (), need)
        d_x = d_weight = d_bias = g.new_empty(0)
        if need[0]:
            d_x, _, _ = products(self.input, (1,), (True, False, False))
        if need[1] or need[2]:
            _, d_weight, d_bias = products(self.weight, _all_but_channels(g), (False, need[1], need[2]))
        return d_x, d_weight, d_bias

    def split(self, g: Tensor, input: bool, weight: bool) -> tuple[Tensor, Tensor]:
        call("observe_gradient", g, self.control, self.histogram, self.seen)
        samples = _all_but_channels(g)
        if self.weight is self.input:  # one copy serves both products
            both = g if self.input is None else self.input.treat(g, (), self.control)
            return both, both
        g_x = self.input.treat(g, (1,), self.control) if input and self.input is not None else g
        return g_x, self.weight.treat(g, samples, self.control) if weight and self.weight is not None else g

    def operands(
        self, x: Tensor | None, weight: Tensor | None, weight_sums: tuple[int, ...]
    ) -> tuple[Tensor | None, Tensor | None]:
        return None if x is None else self._activations(x), None if weight is None else self._weights(
            weight, weight_sums
        )

    def _activations(self, x: Tensor) -> Tensor:
        return x if self.activations is None else self.activations.treat(x, _all_but_channels(x), self.operand_control)

    def _weights(self, weight: Tensor, sums: tuple[int, ...]) -> Tensor:
        return weight if self.weights is None else self.weights.treat(weight, sums, self.operand_control)

    def copied(self) -> None:
        self.session.copied()

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """A copy of the layer that takes all its attributes along has no catcher."""
        self.copied()

    def move_to(self, device: torch.device) -> None:
        """The layer has moved."""
        if device.type != "meta" and device != self.histogram.device:
            self.histogram = self.histogram.to(device)
            for product in (*self.products.values(), *self.operands_by_name.values()):
                product.move_to(device)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes as gradients pass, by name."""
        named = {"control": self.control, "seen": self.seen, "histogram": self.histogram}
        for name, product in (self.products | self.operands_by_name).items():
            named |= {f"{name}.{key}": tensor for key, tensor in product.tensors().items()}
        return named


def _all_but_channels(x: Tensor) -> tuple[int, ...]:
    """The dimensions that the product for dW sums over: samples and pixels."""
    return (0, *range(2, x.dim()))


def _observe(g: Tensor, control: Tensor, histogram: Tensor, seen: Tensor) -> None:
    BACKWARD.arrived()
    stride = control.tolist()[STRIDE]
    spent = 0
    if stride and g.dtype in FLOAT_TYPES:
        start = time.perf_counter_ns()
        histogram += torch.ops.lograd.log_histogram.default(g, stride).to(histogram.device)
        spent = time.perf_counter_ns() - start
    seen += constant((1, g.numel(), 0), seen.device) if not spent else torch.tensor([1, g.numel(), spent], device=CPU)


def _treat(
    g: Tensor,
    text: str,
    contracted: list[int],
    numbers: Tensor,
    control: Tensor,
    key: Tensor,
    state: Tensor,
    counters: Tensor,
) -> Tensor:
    if not control.tolist()[READY] or g.dtype not in FLOAT_TYPES:
        count_passed_through(counters)
        return dense(g).clone()
    treatments = _parsed(text)
    values = iter(numbers.unbind())
    named = [{name: next(values) for name in one.number_names} for one in treatments]
    result, total = treat(treatments, g, named, key, state, tuple(contracted))
    count_treated(counters, key, total, g.numel())
    BACKWARD.done()
    return result


@lru_cache(maxsize=256)
def _parsed(text: str) -> Sentence:
    return from_json(json.loads(text))


def _check_treated(g: Tensor, text: str, contracted: list[int], numbers: Tensor, *rest: Any) -> None:
    treatments, state = _parsed(text), rest[2]
    names, size = sum(len(one.number_names) for one in treatments), sum(one.state_size for one in treatments)
    if numbers.numel() != names or state.numel() != size:
        raise InvalidValue(
            f"these treatments have {names} numbers and a state of {size}; got {numbers.numel()} and {state.numel()}."
        )
    if any(not 0 <= dim < g.dim() for dim in contracted):
        raise InvalidValue(sentence("contracted", list(contracted), f"dimensions of a tensor of {g.dim()}"))


_CONTROL = Takes((torch.int64,), 2, anywhere=True)
register(
    "observe_gradient(Tensor g, Tensor control, Tensor(a!) histogram, Tensor(b!) seen) -> ()",
    _observe,
    _observe,
    lambda g, *rest: None,
    takes={
        "g": Takes(),
        "control": _CONTROL,
        "histogram": Takes((torch.int64,), SLOTS, anywhere=True),
        "seen": Takes((torch.int64,), 3, anywhere=True),
    },
)
register(
    "treat_gradient(Tensor g, str treatments, int[] contracted, Tensor numbers, Tensor control, Tensor(a!) key,"
    " Tensor(b!) state, Tensor(c!) counters) -> Tensor",
    _treat,
    None,
    lambda g, *rest: torch.empty_like(dense(g)),
    _check_treated,
    {
        "g": Takes(),
        "numbers": Takes((torch.float32,)),
        "control": _CONTROL,
        "state": Takes((torch.float64,)),
        "counters": Takes((torch.int64,), len(COUNTERS)),
    },
)
