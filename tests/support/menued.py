"""A profile with measured noise, and menus of methods whose times are made up: fast to get and always the same."""

from __future__ import annotations

from functools import cache

import torch
from networks import conv_net, image_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd.measure.timing import Candidate, Menus
from lograd.theory import noise_to_signal, nonzero_sparsity, threshold

TIMES = {
    "dense": 1.0, "int8-full": 0.5, "int6-full": 0.5, "int4-full": 0.42, "int8wa": 0.9, "prune80": 0.9, "prune90": 0.65,
    "prune95": 0.5, "identity/prune90": 0.85, "int8wa+prune90": 0.55,
}  # fmt: skip
"""Seconds of each method over those of dense products."""
ROUNDED = {"int8-full": 1e-4, "int6-full": 2e-3, "int4-full": 4e-2}
"""The noise-to-signal ratio of rounding the gradient."""


@cache
def observed() -> lograd.Profile:
    """A profile of a small network with its noise and the variance of its minibatches."""
    torch.manual_seed(0)
    return lograd.profile(conv_net(), image_batches(4), cross_entropy, noise=2)


def noise_of_zeros(law, sparsity: float) -> float:
    """The noise-to-signal ratio of a pruned gradient."""
    share = float(nonzero_sparsity(sparsity, law.zero_share))
    return float(noise_to_signal(law, threshold(law, share))) if share > 0 else 0.0


def menus_of(profile: lograd.Profile, *, slow: str | None = None) -> Menus:
    """Menus for the layers of a profile.

    Args:
        slow: a layer in which nothing is faster than dense products.
    """
    layers = {}
    for place, (name, layer) in enumerate(profile.layers.items()):
        base = 1e-3 * (1 + place)
        menu = {}
        for method, factor in TIMES.items():
            seconds = base * (1.0 if method == "dense" else 1.2 if name == slow else factor)
            forward = 0.3 * seconds
            gradient = ROUNDED.get(method, 0.0)
            if "prune" in method:
                gradient = noise_of_zeros(layer.law, float(method.split("prune")[1][:2]) / 100)
            noise = (0.0 if method.startswith("identity/") else gradient, gradient)
            penalty = {"int8": 1e-4, "int6": 2e-3, "int4": 3e-2}.get(method[:4], 0.0)
            energy = profile.minibatch.unit
            menu[method] = Candidate(method, forward, seconds - forward, *noise, penalty * energy)
        layers[name] = menu
    total = sum(menu["dense"].seconds for menu in layers.values())
    step = total + 2e-3
    uniform = {name: step * (0.2 + 0.8 * factor) for name, factor in TIMES.items() if name != "dense"}
    return Menus(layers, step, uniform)
