"""Packets of an edge: a treated tensor or its codes in, bytes out, and the tensor back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidValue, sentence
from ..ops import Counted
from ..ops.coded import CodedTensor
from .elements import VALUES, Values
from .reading import decode as read
from .writing import encode as write
from .writing import prune_and_encode as prune_and_write

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The types of tensors that packets hold."""


class Packing(NamedTuple):
    """How tensors are encoded; codes of a format are packed as they are."""

    values: Values = "exact"
    """Round what pruning has left to fewer mantissa bits, or leave it as it is."""
    entropy: bool = False
    """Spend time on smaller packets."""

    def check(self) -> Packing:
        """Return these settings, or refuse them."""
        if self.values not in VALUES:
            raise InvalidValue(sentence("values", self.values, "'exact', 'bfloat16' or 'float8'"))
        if not isinstance(self.entropy, bool):
            raise InvalidValue(sentence("entropy", self.entropy, "True or False"))
        return self


def encode(x: Tensor | CodedTensor, packing: Packing, alpha: Tensor | None = None) -> Tensor:
    """Return the packet of a tensor or of a coded one, as a uint8 vector on its device.

    Args:
        alpha: the threshold, where the tensor was pruned.
    """
    if isinstance(x, CodedTensor) or x.dtype == torch.float64:
        return write(x)
    return write(x, values=packing.values, entropy=packing.entropy, alpha=alpha)


def prune_and_encode(x: Tensor, threshold: Tensor, key: Tensor, packing: Packing) -> Counted:
    """Return the packet of a tensor after stochastic pruning, with the counts of pruning."""
    seed, offset = key.unbind()
    found: Counted = prune_and_write(
        x, threshold, seed, offset, values=packing.values, entropy=packing.entropy, counted=True
    )
    return found


def decode(packet: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of a packet; a packet that claims to be much larger than another tensor is refused."""
    found = read(packet, limit=2 * like.numel() * like.element_size() + 4096)
    tensor: Tensor = found.decode() if isinstance(found, CodedTensor) else found
    return tensor
