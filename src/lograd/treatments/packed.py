"""The two forms of a treatment that rounds a tensor to levels over one range: values, and codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .. import ops
from ..ops.coded import Encoded
from .treatment import Setting

if TYPE_CHECKING:
    from torch import Tensor


class PackedLevels(ABC):
    """A base beside `Treatment`, for those whose only step is `_packed`."""

    bits: int

    @abstractmethod
    def _packed(self, g: Tensor, setting: Setting) -> ops.RangedCodes:
        """Return the tensor as levels, with its counts."""

    @property
    def element_bits(self) -> float:
        """The bits of a level."""
        return self.bits

    @property
    def level_bits(self) -> int:
        """The bits of a level."""
        return self.bits

    @property
    def can_encode(self) -> bool:
        """True: every level has a code."""
        return True

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        """Return the values of the levels, with their counts."""
        found = self._packed(g, setting)
        return ops.Counted(found.coded.decode(), found.counts)

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """Return the levels, with their counts."""
        found = self._packed(g, setting)
        return Encoded(found.coded, found.counts)
