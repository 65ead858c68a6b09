"""Operands by a sentence: applied, in their own type, or encoded, as the integer backend and the backward take them.

Both forms draw the same random numbers and change the memory alike, so a tensor is either applied or encoded.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..coded import Encoded
from ..errors import InvalidValue
from ..ops import Counted
from ..ops.registry import call
from ..treatments import Sentence, Setting, from_json, settled, stages, total_counts

NAN = 1
"""The slot of counts that tells of elements that are not finite."""


class Codes(NamedTuple):
    """An operand as levels, in plain tensors that autograd saves: an element is (code - zero) / scale.

    The codes of images lie channels-last, those of matrices by rows.
    """

    codes: Tensor
    """uint8, in the shape of the operand."""
    scale: Tensor
    """float32: one for the operand, or one for each row (first dimension); NaN where an element was not finite."""
    zero: Tensor
    """float32, one: a whole number from 0 to 255."""

    @property
    def step(self) -> Tensor:
        """The difference between two neighbouring levels, one or one for each row."""
        return self.scale.reciprocal()

    @property
    def offset(self) -> int:
        """The code of zero."""
        return int(self.zero)

    @property
    def finite(self) -> bool:
        """True if every element was finite."""
        return not math.isnan(float(self.scale if self.scale.numel() == 1 else self.scale.sum()))

    def decode(self) -> Tensor:
        """Return the operand as float32, in the layout of its codes."""
        result: Tensor = call("dequantize_levels", self.codes, self.scale, self.zero, torch.float32)
        return result


@lru_cache(maxsize=256)
def parsed(text: str) -> Sentence:
    """Return the sentence of a text, which a site hands to its operators."""
    return from_json(json.loads(text))


def applied(
    x: Tensor, treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...] = (),
    fold: Tensor | None = None,
) -> Counted:  # fmt: skip
    """Return a tensor treated by a sentence, in its own type, with its counts."""
    results: list[Counted] = []
    for one, setting in zip(treatments, settings_of(treatments, numbers, key, memory, contracted, fold), strict=True):
        results.append(one.apply(results[-1].result if results else x, setting))
    return settled(treatments, x, results)


def encoded(
    x: Tensor, treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...] = (),
    fold: Tensor | None = None,
) -> Encoded:  # fmt: skip
    """Return a tensor as the codes of the last treatment of a sentence, with the counts of all."""
    settings = settings_of(treatments, numbers, key, memory, contracted, fold)
    current, counts = x, []
    for one, setting in zip(treatments[:-1], settings[:-1], strict=True):
        current, found = one.apply(current, setting)
        counts.append(found)
    coded, found = treatments[-1].encode(current, settings[-1])
    return Encoded(coded, total_counts(treatments, x, [*counts, found]))


def settings_of(
    treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...],
    fold: Tensor | None,
) -> list[Setting]:  # fmt: skip
    """Return what each treatment of a sentence is given beside the tensor; `numbers` are those of all, in order."""
    if len(treatments) == 1 and not treatments[0].number_names:
        return [Setting({}, key, memory, contracted, fold)]
    values = iter(numbers.unbind())
    named = [{name: next(values) for name in one.number_names} for one in treatments]
    return stages(treatments, named, key, memory, contracted, fold)


def levels(found: Encoded) -> Codes:
    """Return a coded tensor of levels as plain tensors."""
    coded = found.coded
    assert coded.zero is not None
    return Codes(coded.codes, coded.scale, coded.zero[:1])


def steps_of(scale: Tensor) -> Tensor:
    """Return the steps of a weight's channels, which a gradient is multiplied by; 1 where one is not finite."""
    return scale.reciprocal().nan_to_num(nan=1.0)


def check_sentence(text: str, numbers: Tensor, memory: Tensor) -> None:
    """Refuse numbers and a memory that are not those of a sentence."""
    treatments = parsed(text)
    names, size = sum(len(one.number_names) for one in treatments), sum(one.memory_size for one in treatments)
    if numbers.numel() != names or memory.numel() != size:
        raise InvalidValue(
            f"these treatments have {names} numbers and a memory of {size}; got {numbers.numel()} and {memory.numel()}."
        )
