"""Random networks of growing depth and width: is the law of their gradients that of a product of random factors?

In a network of L linear layers of n units with ReLU and He's weights, the squared norm of a gradient that goes back
through all of them is a product of L nearly independent factors [hanin2020], so its logarithm has a variance of about
5 L / n, and that of the norm a quarter of it.  The elements of one such vector are nearly normal, whose ln |g| has a
variance of pi^2 / 8.  If all layers drew their factors anew for each element, sigma would be the root of the sum.

@article{hanin2020,
  title   = {Products of Many Large Random Matrices and Gradients in Deep Neural Networks},
  author  = {Hanin, Boris and Nica, Mihai},
  journal = {Communications in Mathematical Physics},
  year    = {2020}
}
"""

from __future__ import annotations

from math import pi, sqrt
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from lograd.laws import HalfNormal, LogNormal, ks_distance

from .cells import CellFolder, Found
from .result import Result

SAMPLES = 64
"""Inputs of a network, drawn from a normal law."""
NORMAL = pi**2 / 8
"""The variance of ln |x| of a normal x."""


class Network(NamedTuple):
    """Hidden layers of one width, with BatchNorm or without."""

    depth: int
    width: int
    norm: bool

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return f"random-{self.depth}-{self.width}" + "-batchnorm" * self.norm

    @property
    def predicted(self) -> float | None:
        """Sigma of ln |g| by the product of factors; None where nobody has worked it out."""
        return None if self.norm else sqrt(NORMAL + 5 * self.depth / (4 * self.width))

    def build(self) -> nn.Sequential:
        """Return it with random weights."""
        parts: list[nn.Module] = []
        for _ in range(self.depth):
            layer = nn.Linear(self.width, self.width, bias=False)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            parts += [layer, *([nn.BatchNorm1d(self.width)] * self.norm), nn.ReLU()]
        return nn.Sequential(*parts)


RANDOM = tuple(Network(depth, width, norm) for norm in (False, True) for width in (16, 64, 256)
               for depth in (1, 2, 4, 8, 16, 32))  # fmt: skip


def measured(network: Network, draws: int) -> Found:
    """Return sigma and distances of the gradient that arrives at the first layer's output.

    Each network is looked at alone, where all inputs meet the same weights, and all of them together.
    """
    alone, together = [], []
    for _ in range(draws):
        model = network.build()
        inputs = torch.randn(SAMPLES, network.width)
        first = model[0](inputs).detach().requires_grad_()
        model[1:](first).backward(torch.randn(SAMPLES, network.width))
        assert first.grad is not None
        x = first.grad.flatten().abs().double().numpy()
        x = x[x > 0]
        if x.size > 1:
            alone.append(_distances(x))
            together.append(x)
    if not together:
        return {"networks": 0}
    middle = {name: mean(one[name] for one in alone) for name in alone[0]}
    return {"networks": len(alone), "alone": middle, "together": _distances(np.concatenate(together))}


def _distances(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    return {
        "sigma": float(np.log(x).std()),
        "lognormal": ks_distance(LogNormal.fit(x), x),
        "normal": ks_distance(HalfNormal.fit(x), x),
    }


def random_table(folder: CellFolder) -> Result:
    """Return the table of the random networks: sigma measured and predicted, and distances."""
    rows: list[list[object]] = []
    for network in RANDOM:
        found = folder.found(network.cell)
        if not found or not found["networks"]:
            continue
        sides = [found["alone"], found["together"]]
        rows.append([
            "BatchNorm" if network.norm else "none", network.width, network.depth,
            None if network.predicted is None else f"{network.predicted:.2f}",
            *(f"{side['sigma']:.2f}" for side in sides),
            *(f"{side[law]:.3f}" for side in sides for law in ("lognormal", "normal")),
        ])  # fmt: skip
    columns = ["normalisation", "width", "depth", "sigma of a product of factors", "sigma, one network",
               "sigma, all networks", *(f"KS {law}, {which}" for which in ("one network", "all networks")
                                        for law in ("lognormal", "normal"))]  # fmt: skip
    claim = (
        f"Random networks with ReLU, {SAMPLES} normal inputs, a random gradient at the output: the magnitudes at the "
        "output of the first layer, in one network (mean over the draws) and in all draws together. If factors were "
        "drawn anew for each element, sigma would be that of a product; inputs of one network share its weights."
    )
    return Result("lognormal-random", "Random networks and the product of factors", claim, columns, rows)
