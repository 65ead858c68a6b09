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
