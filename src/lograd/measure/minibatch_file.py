"""The minibatch's variance in the header of a profile's file: plain values, and their checks."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidValue, sentence
from ..files.checks import check_number, check_object, check_text, check_whole
from .measured import Measured
from .minibatch import LEAST_BATCHES, TOTAL, GradientVariance, Minibatch

_NUMBERS = ("elements", "variance", "error", "signal")


def packed_minibatch(minibatch: Minibatch) -> dict[str, Any]:
    """Return plain values: the batches, and a list of numbers for each weight tensor and for the whole gradient."""
    return {
        "batches": minibatch.batches,
        "tensors": {one.name: _row(one) for one in minibatch.tensors},
        "total": _row(minibatch.total),
    }


def unpacked_minibatch(data: Any) -> Minibatch:
    """Return the value that `packed_minibatch` was given; every number is checked."""
    check_object("its minibatch", data, ("batches", "tensors", "total"))
    batches = check_whole("batches of its minibatch", data["batches"], LEAST_BATCHES)
    if not isinstance(data["tensors"], dict):
        raise InvalidValue(sentence("tensors of its minibatch", data["tensors"], "an object with names of tensors"))
    tensors = tuple(_variance(check_text("a tensor", name), row) for name, row in data["tensors"].items())
    return Minibatch(tensors, _variance(TOTAL, data["total"]), batches)


def _row(one: GradientVariance) -> list[float]:
    return [one.elements, one.variance.mean, one.variance.error, one.signal]


def _variance(name: str, row: Any) -> GradientVariance:
    if not isinstance(row, list) or len(row) != len(_NUMBERS):
        raise InvalidValue(sentence(f"the variance of {name!r}", row, "a list of " + ", ".join(_NUMBERS)))
    elements = check_whole(f"elements of {name!r}", row[0], 1)
    variance = check_number(f"V of {name!r}", row[1], 0)
    error = check_number(f"the error of V of {name!r}", row[2], 0)
    return GradientVariance(name, elements, Measured(variance, error), check_number(f"the signal of {name!r}", row[3]))
