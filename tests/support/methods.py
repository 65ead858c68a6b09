"""One recipe of every family and some variants, by name, and a gradient to try them on."""

import torch

from lograd.treatments import ALL_RECIPES, recipe

EXAMPLES = [entry.example for entry in ALL_RECIPES]
VARIANTS = [
    "mxfp4-nearest", "mxfp6", "mxfp8", "mxfp4-rht", "nvfp4-ht", "int4-ptq-rht", "int8-psq-nearest", "int5-ptq-nearest",
    "fp6-mean", "fp8-luq", "fp4-luq-nearest", "dithered2.5", "prune85+fp6", "int5-bhq/int5-bhq", "topk85/identity",
    "fp6-nearest", "fp3-luq-smp16", "luq4-smp2-hindsight", "luq4-hindsight", "int4-full-po2", "mxfp4-full-ht",
]  # fmt: skip
NAMES = EXAMPLES + VARIANTS


def gradient(rows=64, columns=256, sigma=1.5, zeros=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp(sigma * torch.randn(rows, columns, generator=generator) - 9)
    signs = torch.randn(rows, columns, generator=generator).sign()
    return size * signs * (torch.rand(rows, columns, generator=generator) >= zeros)


def sides(name):
    """The distinct sentences of a recipe with what their product sums over; those that change nothing are left out."""
    found = recipe(name)
    named = [
        (found.input_gradient.gradient, (1,)), (found.weight_gradient.gradient, (0,)),
        (found.input_gradient.weights, (0,)), (found.weight_gradient.activations, (0,)),
    ]  # fmt: skip
    return [side for place, side in enumerate(named) if side[0] and side not in named[:place]]
