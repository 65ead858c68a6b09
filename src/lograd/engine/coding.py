"""Operands by a sentence: applied, in their own type, or encoded, as the integer backend and the backward take them.

Both forms draw the same random numbers and change the memory alike, so a tensor is either applied or encoded.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidValue
from ..ops import Counted
from ..ops.coded import CodedTensor, Encoded, Folded, Householder
from ..ops.codings import levels_of
from ..ops.registry import call
from ..treatments import Sentence, Setting, Treatment, checked_result, from_json, settled, stages, total_counts
from ..treatments.tensors import is_finite

NAN = 1
"""The slot of counts that tells of elements that are not finite."""


class Codes(NamedTuple):
    """An operand as levels, in plain tensors that autograd saves: an element is (code - zero) / scale.

    The codes of images lie channels-last, those of matrices by rows.  A gradient that only meets weights may have codes
    that count from the low end of each sample, whose samples may have been mixed before they were rounded.
    """

    codes: Tensor
    """uint8, in the shape of the operand."""
    scale: Tensor
    """float32: one for the operand, or one for each row (first dimension: outputs of a weight, samples of activations
    of a linear layer), or for a gradient in dW alone one for each column (second dimension); NaN where an element was
    not finite."""
    zero: Tensor
    """float32, one: a whole number from 0 to 255."""
    low: Tensor | None = None
    """float32, one for each row: what is added to its elements; None for 0."""
    mixing: Householder | None = None
    """How rows were mixed, which is undone at last; None if they were not."""

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
        """Return an operand without `low` as float32, in the layout of its codes."""
        result: Tensor = call("dequantize_levels", self.codes, self.scale, self.zero, torch.float32)
        return result


class Levelled(NamedTuple):
    """An operand as levels, with the counts of its sentence."""

    codes: Codes
    counts: Tensor
    finite: bool
    """True if every element was finite; codes of an operand that was not are of no use."""


@lru_cache(maxsize=256)
def parsed(text: str) -> Sentence:
    """Return the sentence of a text, which a site hands to its operators."""
    return from_json(json.loads(text))


def applied(
    x: Tensor, treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...] = (),
    fold: Tensor | None = None, signs: Tensor | None = None, fold_dim: int = 1,
) -> Counted:  # fmt: skip
    """Return a tensor treated by a sentence, in its own type, with its counts."""
    results: list[Counted] = []
    settings = settings_of(treatments, numbers, key, memory, contracted, fold, signs, fold_dim)
    for one, setting in zip(treatments, settings, strict=True):
        current = results[-1].result if results else x
        found = one.apply(current, setting) if setting.fold is None else folded(one, current, setting)
        results.append(checked_result(one, current, found))
    return settled(treatments, x, results)


def folded(one: Treatment, x: Tensor, setting: Setting) -> Counted:
    """Return a tensor treated, its channels multiplied before by the factors of the setting, and divided afterwards."""
    if one.reads_fold:
        return one.apply(x, setting)
    assert setting.fold is not None
    multiplied = x.float() * _factors(setting, x)
    found = checked_result(one, multiplied, one.apply(multiplied, setting._replace(fold=None)))
    return Counted(Folded(setting.fold, setting.fold_dim).undone(found.result).to(x.dtype), found.counts)


def encoded(
    x: Tensor, treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...] = (),
    fold: Tensor | None = None, signs: Tensor | None = None, fold_dim: int = 1,
) -> Encoded:  # fmt: skip
    """Return a tensor as the codes of the last treatment of a sentence, with the counts of all."""
    settings = settings_of(treatments, numbers, key, memory, contracted, fold, signs, fold_dim)
    current, counts = x, []
    for one, setting in zip(treatments[:-1], settings[:-1], strict=True):
        current, found = checked_result(one, current, one.apply(current, setting))
        counts.append(found)
    last, setting = treatments[-1], settings[-1]
    if fold is None or last.reads_fold:
        coded, found = last.encode(current, setting)
    else:
        coded, found = last.encode(current * _factors(setting, x), setting._replace(fold=None))
        coded = replace(coded, transform=(*coded.transform, Folded(fold, setting.fold_dim)))
    return Encoded(coded, total_counts(treatments, x, [*counts, found]))


def levelled(
    x: Tensor, treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...] = (),
    fold: Tensor | None = None, fold_dim: int = 1,
) -> Levelled:  # fmt: skip
    """Return a tensor as the levels of the last treatment of a sentence, which has some."""
    if len(treatments) == 1 and not treatments[0].number_names:
        found = treatments[0].level_codes(x, Setting({}, key, memory, contracted, fold, fold_dim))
        if found is not None:
            codes = Codes(found.codes, found.scale, found.zero[:1])
            return Levelled(codes, found.counts, not int(found.counts[NAN]))
    coded, counts = encoded(x, treatments, numbers, key, memory, contracted, fold, None, fold_dim)
    _, nan, saturated, *_ = counts.tolist()
    finite = not nan
    if finite and saturated and not treatments[-1].reads_fold:  # most treatments saturate infinity, and count it
        finite = is_finite(x)
    return Levelled(_levels(coded, finite, treatments[-1], fold is not None), counts, finite)


def _levels(coded: CodedTensor, finite: bool, by: Treatment, multiplied: bool) -> Codes:
    """Return a tensor that a treatment has coded as plain tensors.

    Args:
        multiplied: True if factors are in the codes, and not to be divided by.
    """
    codes, scale, zero = coded.codes, coded.scale, coded.zero
    if by.per_column:
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
    return Codes(codes, scale, zero[:1], coded.low if by.per_sample else None, mixing)


def _factors(setting: Setting, x: Tensor) -> Tensor:
    """Return the factors of channels in a shape that multiplies a tensor."""
    assert setting.fold is not None
    return setting.fold.reshape([-1 if dim == setting.fold_dim else 1 for dim in range(x.dim())])


def settings_of(
    treatments: Sentence, numbers: Tensor, key: Tensor, memory: Tensor, contracted: tuple[int, ...],
    fold: Tensor | None, signs: Tensor | None = None, fold_dim: int = 1,
) -> list[Setting]:  # fmt: skip
    """Return what each treatment of a sentence is given beside the tensor; the last one alone is given the factors.

    `numbers` are those of all treatments, in order.
    """
    if len(treatments) == 1 and not treatments[0].number_names:
        return [Setting({}, key, memory, contracted, fold, fold_dim, signs)]
    values = iter(numbers.unbind())
    named = [{name: next(values) for name in one.number_names} for one in treatments]
    settings = stages(treatments, named, key, memory, contracted)
    if fold is None and signs is None:
        return settings
    last = settings[-1]._replace(fold=fold, fold_dim=fold_dim, signs=signs)
    return [*(one._replace(signs=signs) for one in settings[:-1]), last]


def in_nibbles(codes: Tensor) -> Tensor:
    """Return codes of at most 4 bits two to a byte, along the channels; (samples, channels, ...) with half of these."""
    packed: Tensor = call("pack_nibbles", codes if codes.dim() == 2 else codes.permute(0, 2, 3, 1))
    return packed if codes.dim() == 2 else packed.permute(0, 3, 1, 2)


def in_bytes(codes: Tensor, channels: int, needed: bool = True) -> Tensor:
    """Return codes of so many channels one to a byte, from such codes or from those of `in_nibbles`.

    In the place of codes that are not needed it is a tensor of their shape.
    """
    if codes.shape[1] == channels:
        return codes
    if not needed:
        return codes.new_empty(()).expand(codes.shape[0], channels, *codes.shape[2:])
    whole: Tensor = call("unpack_nibbles", codes if codes.dim() == 2 else codes.permute(0, 2, 3, 1), channels)
    return whole if codes.dim() == 2 else whole.permute(0, 3, 1, 2)


def check_sentence(text: str, numbers: Tensor, memory: Tensor) -> None:
    """Refuse numbers and a memory that are not those of a sentence."""
    treatments = parsed(text)
    names, size = sum(len(one.number_names) for one in treatments), sum(one.memory_size for one in treatments)
    if numbers.numel() != names or memory.numel() != size:
        raise InvalidValue(
            f"these treatments have {names} numbers and a memory of {size}; got {numbers.numel()} and {memory.numel()}."
        )
