"""Fig. 2 of the lognormal paper: histograms and Q-Q plots of neural gradients, beside those of weight gradients.

./dev reproduce fig2 --data cifar100_20k.npz
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from torch import Tensor

from lograd.laws import HalfNormal, LogNormal, ks_distance, qq
from lograd.plots import axes, lines

from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .looking import begun_resnet, gradients_of
from .result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS: dict[str, type[LogNormal] | type[HalfNormal]] = {"lognormal": LogNormal, "normal": HalfNormal}
POINTS = 99
"""Quantiles of a Q-Q plot."""
BINS = 40
LARGEST = 2**17
"""Elements of a gradient that are looked at; larger ones are thinned evenly."""
LOOKS = "looks"


@final
@dataclass(frozen=True)
class Fig2(Experiment):
    """Both kinds of gradients of a ResNet-8 after some steps.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        steps: dense training steps before the look.
        width: channels of the first layer.
        batch: images of a step.
    """

    words: ClassVar[str] = "histograms and Q-Q plots: neural gradients against weight gradients"
    keeps_figures: ClassVar[bool] = True
    claim: ClassVar[str] = (
        "The paper shows that neural gradients lie on the line of a lognormal law, and weight gradients do not, which "
        "are nearer to a normal one. It prints no numbers."
    )
    verdict: ClassVar[str] = (
        "Neural gradients agree. Weight gradients are narrower, as claimed, but nearer to the lognormal law than to "
        "the normal one in most layers of this network."
    )
    presets: ClassVar = {"smoke": {"steps": 1, "width": 4, "batch": 8}, "cpu": {}}
    core_hours: ClassVar = 0.03

    steps: int = 400
    width: int = 16
    batch: int = 128

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        given = {"data": self.data and self.data.name, "steps": self.steps, "width": self.width, "batch": self.batch}
        yield Measured(LOOKS, given, self._look, threads=1)

    def _look(self) -> Found:
        model, session, batches = begun_resnet(self.data, self.width, self.batch, self.steps)
        for _ in range(self.steps):
            session.step()
        found = gradients_of(model, next(batches))
        sides = {"neural": found.neural, "weight": found.weights}
        return {side: {name: _measured(g) for name, g in one.items()} for side, one in sides.items()}

    def draw(self, folder: CellFolder) -> list[Result]:
        found = folder.found(LOOKS)
        if found is None:
            return []
        rows = [
            [name, *(f"{found[side][name]['ks'][law]:.3f}" for side in ("neural", "weight") for law in LAWS),
             *(f"{found[side][name]['sigma']:.2f}" for side in ("neural", "weight"))]
            for name in found["neural"]
        ]  # fmt: skip
        claim = (
            f"{self.claim} Here: a ResNet-8 of {self.width} channels on {self.source} after {self.steps} steps, batch "
            f"{self.batch}; KS distances of the magnitudes to fitted laws, and sigma of ln |g|. "
            f"`{self.command('steps', 'width', 'batch')}` makes this figure."
        )
        columns = ["layer", "neural, lognormal", "neural, normal", "weight, lognormal", "weight, normal",
                   "sigma, neural", "sigma, weight"]  # fmt: skip
        nearer = {side: sum(one["ks"]["lognormal"] < one["ks"]["normal"] for one in found[side].values())
                  for side in ("neural", "weight")}  # fmt: skip
        middle = {side: median(one["ks"]["lognormal"] for one in found[side].values()) for side in nearer}
        note = "; ".join(
            f"{side} gradients are nearer to the lognormal law in {nearer[side]} of {len(found[side])} layers, at a "
            f"median distance of {middle[side]:.3f}" for side in nearer
        )  # fmt: skip
        return [Result("fig2", "Fig. 2: neural and weight gradients", claim, columns, rows, _figures(found),
                       [note[0].upper() + note[1:] + "."])]  # fmt: skip


def _measured(g: Tensor) -> dict[str, Any]:
    """Return distances, a histogram of log2 |g|, and quantiles of the data and of each law, all in log2."""
    flat = g.detach().flatten()
    x = flat[:: max(flat.numel() // LARGEST, 1)].abs().double().numpy()
    x = x[x > 0]
    counts, edges = np.histogram(np.log2(x), BINS, density=True)
    laws = {name: family.fit(x) for name, family in LAWS.items()}
    pairs = {name: qq(law, x, POINTS) for name, law in laws.items()}
    return {
        "ks": {name: ks_distance(law, x) for name, law in laws.items()},
        "sigma": float(np.log(x).std()),
        "edges": edges.tolist(),
        "heights": counts.tolist(),
        "data": np.log2(pairs["lognormal"].data).tolist(),
        "quantiles": {name: np.log2(one.law).tolist() for name, one in pairs.items()},
    }


def _figures(found: Found) -> list[Figure]:
    """Draw a histogram and a Q-Q plot of both kinds of gradients, for a layer in the middle."""
    name = list(found["neural"])[len(found["neural"]) // 2]
    figures = []
    for side in ("neural", "weight"):
        one = found[side][name]
        figure, ax = axes(f"{side.capitalize()} gradient of {name}", "log2 |g|", "density")
        ax.stairs(one["heights"], one["edges"], fill=True, alpha=0.5)
        ends = [one["data"][0], one["data"][-1]]
        series = {"a perfect fit": (ends, ends)}
        series |= {law: (quantiles, one["data"]) for law, quantiles in one["quantiles"].items()}
        style = dict.fromkeys(one["quantiles"], ".") | {"a perfect fit": "--"}
        title = f"Q-Q plot, {side} gradient of {name}"
        figures += [figure, lines(series, title, "log2 of the law's quantile", "log2 of the data's", style=style)]
    return figures
