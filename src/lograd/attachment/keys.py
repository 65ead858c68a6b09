"""The keys of random numbers: each site of each layer has its own in each step, on each rank of a process group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ..engine.layer import LayerEngine
from ..engine.site import CPU, Site

_NUMBERS = {
    "gradient": 0,
    "input_gradient.gradient": 1,
    "weight_gradient.gradient": 2,
    "input_gradient.weights": 3,
    "weight_gradient.activations": 4,
}
_OTHERS = {"output.activations": 0, "output.weights": 1, "activations": 2, "weights": 3}
"""Sites of the output have numbers far above those of the backward, which runs of earlier versions have."""


def _number(index: int, site: str) -> int:
    """Return the number of a site of the layer with this index."""
    if site in _NUMBERS:
        return len(_NUMBERS) * index + _NUMBERS[site]
    return 2**40 + len(_OTHERS) * index + _OTHERS[site]


def numbered_sites(layers: Iterable[LayerEngine]) -> list[tuple[int, Site]]:
    """Return every distinct site with a number of its own, from which its random numbers follow."""
    return [(_number(index, name), site) for index, layer in enumerate(layers) for name, site in layer.sites.items()]


def set_keys(layers: Iterable[LayerEngine], seed: int, steps: int) -> None:
    """Write the key of each site for a step."""
    sites = numbered_sites(layers)
    distributed = torch.distributed
    ready = distributed.is_available() and distributed.is_initialized()
    common = mix(mix(np.uint64(seed % 2**64)) + np.uint64(distributed.get_rank() if ready else 0))
    seeds = mix(mix(common + np.array([number for number, _ in sites], dtype=np.uint64)) + np.uint64(steps))
    for (_, site), own in zip(sites, seeds.view(np.int64).tolist(), strict=True):
        site.key.copy_(torch.tensor([own, 0], device=CPU))


def mix(x: Any) -> Any:
    """Return 64 bits that depend on all 64 bits of x, by the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
