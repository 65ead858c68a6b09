"""The geometry of a convolution, one value wherever it is needed; a linear layer has the empty one."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """How a convolution moves over its input.

    >>> Geometry((1, 1), (1, 1), (1, 1)).groups
    1
    """

    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1


LINEAR = Geometry()
"""The geometry of a linear layer."""

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, ...]:
    """Return a number of both axes of an image as two numbers."""
    return (value, value) if isinstance(value, int) else tuple(value)


def single(value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a number of the one axis of a sequence as a tuple."""
    return (value,) if isinstance(value, int) else tuple(value)
