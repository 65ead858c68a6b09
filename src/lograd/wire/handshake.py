"""The handshake of two neighbouring stages: they go on only with the same plan, from the same step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidValue

SIZE = 64
"""Bytes of a fingerprint: a digest of the plan, and one of the channels."""


def fingerprint(plan: str, channels: Mapping[str, Mapping[str, Any]]) -> Tensor:
    """Return bytes that tell whether two stages have one plan, and the same state of the edges between them."""
    parts = (plan, json.dumps(channels, sort_keys=True))
    return torch.tensor([byte for part in parts for byte in hashlib.sha256(part.encode()).digest()], dtype=torch.uint8)


def compare(own: Tensor, other: Tensor, stages: tuple[int, int]) -> None:
    """Raise InvalidValue where the fingerprints of two neighbouring stages differ."""
    half = SIZE // 2
    if not torch.equal(own[:half], other[:half]):
        raise InvalidValue(
            f"stages {stages[0]} and {stages[1]} were given different plans; `backward` and `forward` must be the same "
            "for all stages."
        )
    if not torch.equal(own[half:], other[half:]):
        raise InvalidValue(
            f"stages {stages[0]} and {stages[1]} were loaded from different steps; load the states of one checkpoint "
            "into all stages."
        )
