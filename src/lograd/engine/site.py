"""Operands of a layer and their sites: the sentence that treats an operand in a product, and all that changes there.

All that changes is in small tensors, which the layer's operators read and write; torch.compile does not look there.
On the CPU the same memory is read and written through NumPy, as a tensor's operator takes longer than a small kernel.
A site may stand without a layer, as an edge between two stages of a pipeline does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidValue
from ..ops import Counted
from ..ops.coded import CodedTensor, Encoded, Folded, Householder
from ..ops.codes import levels_of
from ..ops.contracts import FLOAT_TYPES
from ..ops.histogram import SLOTS
from ..ops.integer_products import fold_by
from ..ops.layouts import dense
from ..ops.registry import call
from ..treatments import (
    OPERANDS,
    PRODUCTS,
    Coded,
    Hadamard,
    Integers,
    Learned,
    Numbers,
    Prune,
    Rows,
    Sentence,
    Setting,
    Treatment,
    checked_result,
    coder,
    describe,
    memories,
    settled,
    stages,
    to_json,
    total_counts,
)
from ..treatments.tensors import is_finite

READY, STRIDE = range(2)
"""Slots of `control`: pass through (0) or treat (1); take the histogram of one cache line in STRIDE, or none if 0."""
PASSES, ELEMENTS, NANOSECONDS = range(3)
"""Slots of `seen`: gradients that came by, their elements in all, time spent on statistics."""
COUNTERS = (
    "zeros_after", "nan", "clipped", "zeros_before", "elements", "treated", "passed_through", "pruned", "fell_back",
    "rows", "rows_zero", "rows_kept",
)  # fmt: skip
"""In the order of the operators' own counts, so that those are added at once.

`pruned` is counted where a sentence both prunes and rounds; elsewhere all new zeros come from the one or the other.
`fell_back` counts tensors that were not finite, so that their product was dense where integer ones were in force.
`rows` are counted where rows may be skipped, with those that were zero and those that were multiplied.
"""
NAN, CLIPPED = 1, 2
"""Slots of counts: elements that are not finite, and those that saturated."""
CPU = torch.device("cpu")
BY_COLUMN = 2
"""In a rule: the second dimension has ranges."""
LONGEST_ROW = 128
"""A row of one element may be padded to so many, each with its own random number."""


# ------------------------------------------------------------------------------------------------- counters and keys


def zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a small tensor of zeros that can be changed in training, even if it is made in inference mode.

    It is real although its layer may still be on the meta device.
    """
    with torch.inference_mode(False):
        return torch.zeros(size, dtype=dtype, device=CPU if device.type == "meta" else device)


@lru_cache(maxsize=1024)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a tensor of these values, made once: a small tensor costs as much as a small kernel."""
    return torch.tensor(values, device=device)


# ------------------------------------------------------------------------------------------------------------- levels


class Levels(NamedTuple):
    """An operand as levels, in two plain tensors that autograd saves: an element is (code - zero) / scale.

    The codes of images lie channels-last, those of matrices by rows.  For dX only, codes may count from the lowest
    element of each sample (`low`), and samples may have been mixed by a Householder transform (`mixing`).
    """

    codes: Tensor
    """uint8, in the shape of the operand."""
    parameters: Tensor
    """float32, (2, rows): scales and zeros.  There is one of each for the operand, or one for each row (first
    dimension: outputs of a weight, samples of activations of a linear layer), or for a gradient in dW alone one for
    each column (second dimension).  Scales are NaN where an element was not finite; all rows have the same zero."""
    low: Tensor | None = None
    """float32, one for each row: what is added to its elements; None for 0."""
    mixing: Householder | None = None
    """How rows were mixed, which is undone at last; None if they were not."""

    @property
    def step(self) -> Tensor:
        """The differences between neighbouring levels."""
        return self.parameters[0].reciprocal()

    @property
    def zero(self) -> int:
        """The code of zero."""
        return int(self.parameters[1, 0])

    @property
    def finite(self) -> bool:
        """True if every element was finite."""
        return not bool(self.parameters[0].isnan().any())

    def decode(self) -> Tensor:
        """Return an operand without `low` as float32, in the layout of its codes."""
        result: Tensor = call(
            "dequantize_levels", self.codes, self.parameters[0], self.parameters[1, :1], torch.float32
        )
        return result


def _folded(one: Treatment, x: Tensor, setting: Setting) -> Counted:
    """Return a tensor treated, its channels multiplied before by the factors of the setting, and divided afterwards."""
    if one.reads_fold:
        return one.apply(x, setting)
    assert setting.fold is not None
    multiplied = x.float() * _factors(setting, x)
    found = checked_result(one, multiplied, one.apply(multiplied, setting._replace(fold=None)))
    return Counted(Folded(setting.fold, setting.fold_dim).undone(found.result).to(x.dtype), found.counts)


def _levels(coded: CodedTensor, finite: bool, by: Coded, multiplied: bool) -> Levels:
    """Return a tensor that a treatment has coded as plain tensors.

    Args:
        multiplied: True if factors are in the codes, and not to be divided by.
    """
    codes, scale, zero = coded.codes, coded.scale, coded.zero
    if by.scales == "column":
        columns = next(step.factors for step in coded.transform if isinstance(step, Folded))
        scale = columns if multiplied else scale * columns  # scales of rows are the factors
    if zero is None:
        known = levels_of(coded.format)
        codes = codes if known.identity else call("code_levels", codes, coded.format)
        scale, zero = scale.reshape(1) / known.factor, scale.new_full((1,), known.zero)
    if codes.dim() == 4:
        codes = codes.contiguous(memory_format=torch.channels_last)
    if not finite:
        scale = torch.full_like(scale, math.nan)
    mixing = next((step for step in coded.transform if isinstance(step, Householder)), None)
    codes = codes.contiguous() if codes.dim() == 2 else codes
    parameters = torch.stack([scale.reshape(-1), zero.reshape(-1)[:1].expand(scale.numel())])
    return Levels(codes, parameters, coded.low if by.scales == "sample" else None, mixing)


def _factors(setting: Setting, x: Tensor) -> Tensor:
    """Return the factors of channels in a shape that multiplies a tensor."""
    assert setting.fold is not None
    return setting.fold.reshape([-1 if dim == setting.fold_dim else 1 for dim in range(x.dim())])


# --------------------------------------------------------------------------------------------------------------- sites


class Site:
    """The treatments applied to one operand.  The operand's two products share a site if their treatments are equal."""

    def __init__(self, treatments: Sentence, device: torch.device, units: tuple[str, ...] = ()) -> None:
        to_json(treatments)  # refuses what a plan could not hold
        self.sentence = treatments
        """All treatments."""
        self.rows = _gathered(treatments, units)
        """The treatment that decides which rows are multiplied; None where all are."""
        if self.rows is not None:
            treatments = treatments[1:]
        self.treatments = treatments
        """The treatments of what is multiplied."""
        self.names = [(place, name) for place, one in enumerate(treatments) for name in one.number_names]
        self.numbers = zeros(len(self.names), torch.float32, device)
        """The numbers that treatments take from statistics of an earlier step, in order."""
        self.key = zeros(2, torch.int64, device)
        self.memory = zeros(sum(one.memory_size for one in treatments), torch.float64, device)
        """The memories that treatments keep from one tensor to the next, in order."""
        self.counters = zeros(len(COUNTERS), torch.int64, device)
        last = coder(treatments)
        self._fuses = len(treatments) == 1 and isinstance(treatments[0], Prune)
        # Not properties: torch.compile would follow them into the tables of formats.
        self.levels = last is not None and last.levels
        """True if the operand comes out as levels, which integer products take."""
        self.per_channel = last is not None and last.levels and last.scales == "channel"
        """True if each channel comes out with a scale of its own."""
        self.per_column = last is not None and last.levels and last.scales == "column"
        """True if each column comes out with a scale of its own."""
        self.per_row = last is not None and last.levels and last.scales == "row"
        """True if each row of a matrix comes out with a scale of its own."""
        self.per_sample = last is not None and last.scales == "sample"
        """True if codes of the operand count from the low end of each sample."""
        self.block_levels = last is not None and last.block_levels
        """True if the operand comes out as levels in blocks along the dimension that its product sums over."""
        self.rotation = treatments[-1].rotation if treatments and isinstance(treatments[-1], Hadamard) else None
        """The Hadamard transform under which the operand is rounded."""
        self.nibbles = last is not None and 0 < last.level_bits <= 4
        """True if two codes of the operand fit into a byte."""
        self.can_fold = last is not None and (last.levels or last.scales == "sample") and last.can_fold
        """True if channels of the operand may be multiplied by factors before it is rounded to codes."""
        self.learned = self._parameter(device)
        """The parameter of a treatment that learns, from 0 on; None without one."""
        self.held = False
        """True while tensors pass that shall change nothing: those of an evaluation."""
        self._asked = (0, 0)
        self._rules: dict[bool, tuple[int, ...] | None] = {}

    def _parameter(self, device: torch.device) -> torch.nn.Parameter | None:
        learning = [one for one in self.treatments if isinstance(one, Learned)]
        if len(learning) > 1:
            raise InvalidValue(f"{describe(self.treatments)}: one treatment of a sentence may learn, not several.")
        with torch.inference_mode(False):
            return torch.nn.Parameter(zeros(1, torch.float32, device)) if learning else None

    def rule(self, matrix: bool) -> tuple[int, ...] | None:
        """Return what a native kernel must know to round a tensor here by itself; None where the sentence is another.

        Args:
            matrix: True for the operands of a linear layer, whose rows may have ranges.
        """
        if matrix not in self._rules:
            self._rules[matrix] = self._rule(matrix)
        return self._rules[matrix]

    def _rule(self, matrix: bool) -> tuple[int, ...] | None:
        one = self.treatments[0] if len(self.treatments) == 1 else None
        if not isinstance(one, Integers) or not self.key.is_cpu or not native.status().available:
            return None
        by_row = one.per == "row" and matrix
        ranges = BY_COLUMN if one.per == "column" else int(by_row or one.per == "channel")
        switches = by_row and not one.symmetric, one.symmetric, one.rounding == "stochastic", one.power_of_two
        memory = native.own_address(self.memory) if one.memory_size else 0
        return (
            one.bits,
            ranges,
            *map(int, switches),
            native.own_address(self.key),
            memory,
            native.own_address(self.counters),
        )

    # -- tensors that pass --

    def codes(
        self, x: Tensor, contracted: tuple[int, ...] = (), fold: Tensor | None = None, signs: Tensor | None = None,
        fold_dim: int = 1,
    ) -> Encoded:  # fmt: skip
        """Return a tensor as the codes of the last treatment, with the counts of all.

        Args:
            contracted: the dimensions that the product sums over.
            fold, signs, fold_dim: factors of the channels, and a key that names random signs; see `Setting`.
        """
        settings = self._settings(contracted, fold, signs, fold_dim)
        current, counts = x, []
        for one, setting in zip(self.treatments[:-1], settings[:-1], strict=True):
            current, found = checked_result(one, current, one.apply(current, setting))
            counts.append(found)
        last, setting = self.treatments[-1], settings[-1]
        assert isinstance(last, Coded)
        if fold is None or last.reads_fold:
            coded, found = last.encode(current, setting)
        else:
            coded, found = last.encode(current * _factors(setting, x), setting._replace(fold=None))
            coded = replace(coded, transform=(*coded.transform, Folded(fold, setting.fold_dim)))
        return Encoded(coded, total_counts(self.treatments, x, [*counts, found]))

    def _settings(
        self, contracted: tuple[int, ...], fold: Tensor | None, signs: Tensor | None, fold_dim: int
    ) -> list[Setting]:
        """Return what each treatment is given beside the tensor; the last one alone is given the factors."""
        memory = self.memory.clone() if self.held else self.memory
        if len(self.treatments) == 1 and not self.names:
            return [Setting({}, self.key, memory, contracted, fold, fold_dim, signs)]
        numbers = iter(self.numbers.unbind())
        named = [{name: next(numbers) for name in one.number_names} for one in self.treatments]
        settings = [one._replace(signs=signs) for one in stages(self.treatments, named, self.key, memory, contracted)]
        return [*settings[:-1], settings[-1]._replace(fold=fold, fold_dim=fold_dim)]

    def treat(
        self, x: Tensor, contracted: tuple[int, ...], control: Tensor, fold: Tensor | None = None,
        signs: Tensor | None = None, fold_dim: int = 1,
    ) -> Tensor:  # fmt: skip
        """Return the operand as the product takes it, in its own type, and count it; arguments as in `codes`.

        Args:
            control: that of the operand; until it is ready, the operand passes through.
        """
        if not control.tolist()[READY] or x.dtype not in FLOAT_TYPES:
            self.count_passed_through()
            return dense(x).clone()
        results: list[Counted] = []
        settings = self._settings(contracted, fold, signs, fold_dim)
        for one, setting in zip(self.treatments, settings, strict=True):
            current = results[-1].result if results else x
            found = one.apply(current, setting) if setting.fold is None else _folded(one, current, setting)
            results.append(checked_result(one, current, found))
        result, counts = settled(self.treatments, x, results)
        self.count(counts, x.numel())
        return result

    def treat_channels(self, x: Tensor, control: Tensor) -> tuple[Tensor, Tensor]:
        """Return a weight of (outputs, inputs, ...) as the product takes it, and the step of each output.

        Or activations of (samples, inputs), and the step of each sample.  A gradient is multiplied by these steps
        before it is rounded.
        """
        if not control.tolist()[READY] or x.dtype not in FLOAT_TYPES:
            self.count_passed_through()
            return dense(x).clone(), x.new_ones(x.shape[0], dtype=torch.float32)
        coded, counts = self.codes(x)
        self.count(counts, x.numel())
        return coded.decode(), fold_by(coded.scale.reciprocal()).factors

    def levelled(
        self, x: Tensor, contracted: tuple[int, ...] = (), fold: Tensor | None = None, fold_dim: int = 1
    ) -> tuple[Levels, bool]:
        """Return the operand as levels, and True if it was finite, else they are of no use; count it."""
        last, found = self.treatments[-1], None
        assert isinstance(last, Coded)
        if len(self.treatments) == 1 and not self.names:
            found = last.level_codes(x, self._settings(contracted, fold, None, fold_dim)[0])
        if found is not None:
            levels, counts = Levels(found.codes, found.parameters), found.counts
            finite = not int(counts[NAN])
        else:
            coded, counts = self.codes(x, contracted, fold, None, fold_dim)
            # Most treatments saturate infinity, and count it.
            finite = not int(counts[NAN]) and (not int(counts[CLIPPED]) or last.reads_fold or is_finite(x))
            levels = _levels(coded, finite, last, fold is not None)
        self.count(counts, x.numel(), fell_back=not finite)
        return levels, finite

    def count(self, counts: Tensor, elements: int, fell_back: bool = False) -> None:
        """Count a treated tensor, and move the key on to the next random numbers, unless nothing shall change."""
        if self.held:
            return
        if fell_back:
            self.counters[COUNTERS.index("fell_back")] += 1
        if self.counters.is_cpu and counts.is_cpu:
            written, found = self.counters.numpy(), counts.numpy()
            written[:4] += found[:4]
            written[4] += elements
            written[5] += 1
            if len(found) > 4:
                written[7] += found[4]
            self.key.numpy()[1] += LONGEST_ROW * elements
            return
        # Not counters[:4] += counts: that copies the sum over itself once more.
        self.counters[:4].add_(counts[:4])
        self.counters[4:7].add_(_constant((elements, 1, 0), self.counters.device))
        if counts.numel() > 4:
            self.counters[7:8].add_(counts[4:])
        self.key += _constant((0, LONGEST_ROW * elements), self.key.device)

    def count_passed_through(self) -> None:
        """Count a tensor that passed through, unless nothing shall change."""
        if not self.held:
            self.counters[COUNTERS.index("passed_through")] += 1

    @property
    def threshold(self) -> Tensor | None:
        """The number of a single pruning that sparse kernels do on the way; None for any other sentence."""
        return self.numbers if self._fuses else None

    @property
    def makes_zeros(self) -> bool:
        """True if a treatment is there to make zeros."""
        return any(one.makes_zeros for one in self.treatments)

    def recent_zeros(self) -> float | None:
        """Return the share of zeros in what was treated since it was last asked; None if nothing was."""
        found, elements = (int(self.counters[COUNTERS.index(name)]) for name in ("zeros_after", "elements"))
        before, self._asked = self._asked, (found, elements)
        return (found - before[0]) / (elements - before[1]) if elements > before[1] else None

    # -- numbers and memory --

    def follow(self, x: Tensor | None = None) -> None:
        """Bring what is learned up to its parameter; a tensor gives it its initial value if it has none."""
        if self.learned is None or self.held:
            return
        learned = self.learned.detach()
        for one, part in zip(self.treatments, memories(self.treatments, self.memory), strict=True):
            if isinstance(one, Learned):
                one.follow(learned[:0] if x is None else x, float(learned), part)

    def learn(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of an operand and of the parameter, from the gradient of the treated operand."""
        parts = zip(self.treatments, memories(self.treatments, self.memory), strict=True)
        (found,) = (one.learn(g, x, part) for one, part in parts if isinstance(one, Learned))
        return found

    def set_numbers(self, numbers: list[Numbers]) -> None:
        """Write the numbers of each treatment."""
        found = [numbers[place][name] for place, name in self.names]
        self.numbers.copy_(torch.tensor(found, dtype=torch.float32, device=CPU))

    def current_numbers(self) -> list[Numbers]:
        """Return the numbers of each treatment."""
        found: list[Numbers] = [{} for _ in self.treatments]
        for (place, name), value in zip(self.names, self.numbers.tolist(), strict=True):
            found[place][name] = value
        return found

    def remembered(self) -> list[Numbers]:
        """Return the memory of each treatment in named numbers, for people."""
        parts = memories(self.treatments, self.memory)
        return [one.memory_words(part.tolist()) for one, part in zip(self.treatments, parts, strict=True)]

    def numbers_and_memory(self) -> list[Numbers]:
        """Return the numbers of each treatment with those that it remembers: all that is in force."""
        return [a | b for a, b in zip(self.current_numbers(), self.remembered(), strict=True)]

    def rescale(self, factor: float) -> None:
        """Follow a loss scale that was multiplied by a factor."""
        for treatment, part in zip(self.treatments, memories(self.treatments, self.memory), strict=True):
            part.copy_(treatment.rescaled(part, factor))

    # -- tensors --

    def move_to(self, device: torch.device) -> None:
        """Move all tensors."""
        self._rules.clear()
        self.numbers, self.key = self.numbers.to(device), self.key.to(device)
        self.memory, self.counters = self.memory.to(device), self.counters.to(device)
        if self.learned is not None:
            self.learned.data = self.learned.data.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes, by name."""
        found = {"numbers": self.numbers, "key": self.key, "memory": self.memory, "counters": self.counters}
        return found if self.learned is None else found | {"learned": self.learned.detach()}


def _gathered(treatments: Sentence, units: tuple[str, ...]) -> Rows | None:
    first = treatments[0] if treatments else None
    return first if isinstance(first, Rows) and first.of in units else None


class Operand:
    """The activations, the weights or the gradient of one layer.

    The two products that it enters have a site each, or share one where they say the same.  The histogram is of the
    tensor itself, so that both sites have their statistics from it.

    Args:
        name: "activations", "weights" or "gradient".
        sentences: by product.
        shared: whether one treated copy serves both products.
        units: what `Rows` may drop in front of the products: "row", "sample".
    """

    def __init__(
        self, name: str, sentences: Mapping[str, Sentence], shared: bool, device: torch.device,
        units: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.name = name
        self.products = tuple(product for product in PRODUCTS if name in OPERANDS[product])
        self.shared = shared and bool(sentences[self.products[0]])
        """True if both products take one treated copy."""
        made: dict[str, Site | None] = {
            product: Site(sentences[product], device, units) if sentences[product] else None
            for product in self.products
        }
        if self.shared:
            made = dict.fromkeys(self.products, made[self.products[0]])
        self.at = made
        """The site in each product; None where the operand is left as it is."""
        self.control, self.seen = zeros(2, torch.int64, CPU), zeros(3, torch.int64, CPU)
        self.ready = False
        """True once the operand is treated; before, it passes through.  It is in `control`, too."""
        self.has_statistics = any(site is not None and site.names for site in made.values())
        """True if a treatment takes numbers from statistics."""
        self.histogram = zeros(SLOTS if self.has_statistics or name == "gradient" else 0, torch.int64, device)

    @property
    def sites(self) -> dict[str, Site]:
        """The distinct sites: by the operand's name if it is shared, else by product and operand."""
        if self.shared:
            site = self.at[self.products[0]]
            return {} if site is None else {self.name: site}
        return {f"{product}.{self.name}": site for product, site in self.at.items() if site is not None}

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
        stride, spent, seen = int(self.control.numpy()[STRIDE]), 0, self.seen.numpy()
        if stride and x.dtype in FLOAT_TYPES:
            start = time.perf_counter_ns()
            self.histogram += call("log_histogram", x, stride).to(self.histogram.device)
            spent = time.perf_counter_ns() - start
        seen[PASSES] += 1
        seen[ELEMENTS] += x.numel()
        seen[NANOSECONDS] += spent

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
        named: dict[str, Any] = {}
        if self.sites or self.name == "gradient":
            own = {"control": self.control, "seen": self.seen, "histogram": self.histogram}
            named = {f"{self.name}.{key}": tensor for key, tensor in own.items() if tensor.numel()}
        for name, site in self.sites.items():
            named |= {f"{name}.{key}": tensor for key, tensor in site.tensors().items()}
        return named
