"""The geometry of a convolution: one value wherever it is needed, the sizes that follow, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidValue


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


def output_size(
    input_size: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:  # fmt: skip
    """Height and width of the result of a convolution."""
    sizes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)


def check_geometry(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int, most: int = 2,
) -> tuple[int, ...]:  # fmt: skip
    """Return the shape of the result of a convolution over at most so many dimensions; refuse shapes that make none."""
    axes, lengths = len(weight) - 2, {len(stride), len(padding), len(dilation)}
    if not 1 <= axes <= most or len(x) != len(weight) or lengths != {axes}:
        raise InvalidValue(
            "a convolution has an x of (batch, channels, ...), a weight of as many dimensions, and a stride, padding "
            f"and dilation for each of the last 1 to {most}; got {tuple(x)}, {tuple(weight)}, {list(stride)}, "
            f"{list(padding)} and {list(dilation)}."
        )
    if min(*stride, *dilation, groups) < 1 or min(padding) < 0:
        raise InvalidValue(
            f"stride, dilation and groups must be at least 1 and padding at least 0; got {list(stride)}, "
            f"{list(dilation)}, {groups} and {list(padding)}."
        )
    if x[1] != groups * weight[1] or weight[0] % groups:
        raise InvalidValue(
            "a weight of (outputs, channels / groups, ...) meets an x of (batch, channels, ...); got "
            f"{tuple(weight)} and {tuple(x)} with groups={groups}."
        )
    sizes = output_size(x[2:], weight[2:], stride, padding, dilation)
    if min(*sizes, *weight[2:]) < 1:
        raise InvalidValue(f"a kernel of {tuple(weight[2:])} is too large for an x of {tuple(x)}, or has no elements.")
    return (x[0], weight[0], *sizes)
