"""The minibatch's variance in the file of a profile: names in the header, numbers in an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue, sentence
from ..files.checks import check_object, check_text, check_whole
from .measured import Measured
from .minibatch import LEAST_BATCHES, TOTAL, GradientVariance, Minibatch


def packed_minibatch(minibatch: Minibatch) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Return what the header has of it, and the array."""
    rows = [
        (one.elements, one.variance.mean, one.variance.error, one.signal)
        for one in (*minibatch.tensors, minibatch.total)
    ]
    header = {"tensors": [one.name for one in minibatch.tensors], "batches": minibatch.batches}
    return header, np.array(rows, dtype=np.float64)


def unpacked_minibatch(header: Any, numbers: NDArray[Any] | None) -> Minibatch:
    """Return the value that `packed_minibatch` was given; every number is checked."""
    check_object("its minibatch", header, ("tensors", "batches"))
    batches = check_whole("batches of its minibatch", header["batches"], LEAST_BATCHES)
    if not isinstance(header["tensors"], list):
        raise InvalidValue(sentence("tensors of its minibatch", header["tensors"], "a list of names"))
    names = [check_text("a tensor of its minibatch", name) for name in header["tensors"]]
    if numbers is None or numbers.dtype != np.float64 or numbers.shape != (len(names) + 1, 4):
        raise InvalidValue("the numbers of its minibatch do not fit the tensors that they are said to be of.")
    *tensors, total = (_row(name, *row) for name, row in zip([*names, TOTAL], numbers.tolist(), strict=True))
    return Minibatch(tuple(tensors), total, batches)


def _row(name: str, elements: float, variance: float, error: float, signal: float) -> GradientVariance:
    whole = int(elements) if elements == elements and abs(elements) < 2**63 else -1
    if whole != elements:
        raise InvalidValue(sentence(f"elements of {name!r}", elements, "a whole number"))
    return GradientVariance(name, check_whole(f"elements of {name!r}", whole, 1), Measured(variance, error), signal)
