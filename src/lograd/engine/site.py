"""A site: one operand in one product, with the sentence that treats it and all that changes as tensors pass.

All that changes is in small tensors, read and written by one operator that is opaque to torch.compile.
A site may stand without a layer, as an edge between two stages of a pipeline does.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidValue, sentence
from ..ops import Counted
from ..ops.contracts import FLOAT_TYPES, Takes
from ..ops.integer_operands import fold_by
from ..ops.layouts import dense
from ..ops.registry import call, register
from ..treatments import Numbers, Sentence, checked_result, describe, memories, settled, to_json
from .coding import check_sentence, encoded, folded, parsed, settings_of
from .slots import COUNTERS, CPU, READY, count_passed_through, count_treated, zeros


class Site:
    """The treatments of one operand in one product, or in both that it enters where they say the same."""

    def __init__(self, treatments: Sentence, device: torch.device) -> None:
        self.treatments = treatments
        self.text = json.dumps(to_json(treatments))
        if parsed(self.text) != treatments:  # a class was written anew under its old kind, as in a notebook
            parsed.cache_clear()
        self.names = [(place, name) for place, one in enumerate(treatments) for name in one.number_names]
        self.numbers = zeros(len(self.names), torch.float32, device)
        """The numbers that treatments take from statistics of an earlier step, in order."""
        self.key = zeros(2, torch.int64, device)
        self.memory = zeros(sum(one.memory_size for one in treatments), torch.float64, device)
        """The memories that treatments keep from one tensor to the next, in order."""
        self.counters = zeros(len(COUNTERS), torch.int64, device)
        last = treatments[-1] if treatments else None
        self._fuses = len(treatments) == 1 and treatments[0].fuses
        # Not properties: torch.compile would follow them into the tables of formats.
        self.levels = last is not None and last.levels
        """True if the operand comes out as levels, which integer products take."""
        self.per_channel = last is not None and last.levels and last.per_channel
        """True if each channel comes out with a scale of its own."""
        self.per_column = last is not None and last.levels and last.per_column
        """True if each column comes out with a scale of its own."""
        self.per_row = last is not None and last.levels and last.per_row
        """True if each row of a matrix comes out with a scale of its own."""
        self.per_sample = last is not None and last.per_sample
        """True if codes of the operand count from the low end of each sample."""
        self.block_levels = last is not None and last.block_levels
        """True if the operand comes out as levels in blocks along the dimension that its product sums over."""
        self.rotation = None if last is None else last.rotation
        """The Hadamard transform under which the operand is rounded."""
        self.nibbles = last is not None and 0 < last.level_bits <= 4
        """True if two codes of the operand fit into a byte."""
        self.can_fold = last is not None and (last.levels or last.per_sample) and last.can_fold
        """True if channels of the operand may be multiplied by factors before it is rounded to codes."""
        self.learned = self._parameter(device)
        """The parameter of a treatment that learns, from 0 on; None without one."""
        self.held = False
        """True while tensors pass that shall change nothing: those of an evaluation."""
        self._asked = (0, 0)

    def _parameter(self, device: torch.device) -> torch.nn.Parameter | None:
        count = sum(one.learns for one in self.treatments)
        if count > 1:
            raise InvalidValue(f"{describe(self.treatments)}: one treatment of a sentence may learn, not {count}.")
        with torch.inference_mode(False):
            return torch.nn.Parameter(zeros(1, torch.float32, device)) if count else None

    def treat(
        self,
        x: Tensor,
        contracted: tuple[int, ...],
        control: Tensor,
        fold: Tensor | None = None,
        signs: Tensor | None = None,
    ) -> Tensor:
        """Return the operand as the product takes it, which sums over the dimensions `contracted`.

        Args:
            control: that of the operand (`slots`); until it is ready, the operand passes through.
            fold, signs: factors of the channels, and a key that names random signs; see `Setting`.
        """
        result: Tensor = call("treat", x, self.text, contracted, self.numbers, control, *self.changing, fold, signs)
        return result

    def treat_channels(self, weight: Tensor, control: Tensor) -> tuple[Tensor, Tensor]:
        """Return a weight of (outputs, inputs, ...) as the product takes it, and the step of each output.

        Or activations of (samples, inputs), and the step of each sample.
        """
        found: tuple[Tensor, Tensor] = call("treat_channels", weight, self.text, self.numbers, control, *self.changing)
        return found

    @property
    def changing(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that the operator changes, key, memory and counters; copies of them where `held`."""
        if self.held:
            return self.key.clone(), self.memory.clone(), self.counters.clone()
        return self.key, self.memory, self.counters

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
        if self.learned is not None:
            learned = self.learned.detach()
            call("follow_learned", learned[:0] if x is None else x, self.text, learned, self.memory)

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
        self.numbers, self.key = self.numbers.to(device), self.key.to(device)
        self.memory, self.counters = self.memory.to(device), self.counters.to(device)
        if self.learned is not None:
            self.learned.data = self.learned.data.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes, by name."""
        found = {"numbers": self.numbers, "key": self.key, "memory": self.memory, "counters": self.counters}
        return found if self.learned is None else found | {"learned": self.learned.detach()}


def _treat(
    x: Tensor,
    text: str,
    contracted: list[int],
    numbers: Tensor,
    control: Tensor,
    key: Tensor,
    memory: Tensor,
    counters: Tensor,
    fold: Tensor | None = None,
    signs: Tensor | None = None,
    fold_dim: int = 1,
) -> Tensor:
    if not control.tolist()[READY] or x.dtype not in FLOAT_TYPES:
        count_passed_through(counters)
        return dense(x).clone()
    treatments = parsed(text)
    results: list[Counted] = []
    for one, setting in zip(  # as `coding.applied`, with one call less on the way
        treatments, settings_of(treatments, numbers, key, memory, tuple(contracted), fold, signs, fold_dim), strict=True
    ):
        current = results[-1].result if results else x
        found = one.apply(current, setting) if setting.fold is None else folded(one, current, setting)
        results.append(checked_result(one, current, found))
    result, total = settled(treatments, x, results)
    count_treated(counters, key, total, x.numel())
    return result


def _treat_channels(
    x: Tensor, text: str, numbers: Tensor, control: Tensor, key: Tensor, memory: Tensor, counters: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a treated weight and the step of each output: what a gradient is multiplied by before it is rounded."""
    if not control.tolist()[READY] or x.dtype not in FLOAT_TYPES:
        count_passed_through(counters)
        return dense(x).clone(), x.new_ones(x.shape[0], dtype=torch.float32)
    coded, total = encoded(x, parsed(text), numbers, key, memory)
    count_treated(counters, key, total, x.numel())
    return coded.decode(), fold_by(coded.scale.reciprocal()).factors


def _check(x: Tensor, text: str, contracted: list[int], numbers: Tensor, *rest: Any) -> None:
    check_sentence(text, numbers, rest[2])
    fold, fold_dim = rest[4], rest[6] if len(rest) > 6 else 1
    if fold is not None and (x.dim() < 2 or fold_dim not in (0, 1) or fold.numel() != x.shape[fold_dim]):
        raise InvalidValue(f"fold must have a factor for each channel of x, dimension {fold_dim}; got {fold.numel()}.")
    if any(not 0 <= dim < x.dim() for dim in contracted):
        raise InvalidValue(sentence("contracted", list(contracted), f"dimensions of a tensor of {x.dim()}"))


SITE = {
    "numbers": Takes((torch.float32,)),
    "control": Takes((torch.int64,), 2, anywhere=True),
    "memory": Takes((torch.float64,)),
    "counters": Takes((torch.int64,), len(COUNTERS)),
    "fold": Takes((torch.float32,)),
    "signs": Takes((torch.int64,), 2),
}
"""The tensors of a site, as operators take them."""
register(
    "treat(Tensor x, str treatments, int[] contracted, Tensor numbers, Tensor control, Tensor(a!) key,"
    " Tensor(b!) memory, Tensor(c!) counters, Tensor? fold, Tensor? signs, int fold_dim=1) -> Tensor",
    _treat,
    _treat,
    lambda x, *rest: torch.empty_like(dense(x)),
    _check,
    {"x": Takes(), **SITE},
)
register(
    "treat_channels(Tensor x, str treatments, Tensor numbers, Tensor control, Tensor(a!) key, Tensor(b!) memory,"
    " Tensor(c!) counters) -> (Tensor, Tensor)",
    _treat_channels,
    _treat_channels,
    lambda x, *rest: (torch.empty_like(dense(x)), x.new_empty(x.shape[0], dtype=torch.float32)),
    lambda x, text, numbers, control, key, memory, counters: check_sentence(text, numbers, memory),
    {"x": Takes(), **SITE},
)
