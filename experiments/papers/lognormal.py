"""When and why neural gradients are near-lognormal: the law of |g| over architectures and training, and in theory.

    ./dev reproduce lognormal --data cifar100_20k.npz

When: small networks with and without normalisation, at several moments of training; how far |g| of each layer is from
fitted laws, and how many zeros each law's threshold gives when 85 % are asked, solved from one step and applied to the
next one.  Why: random networks of growing depth and width, beside what a product of random factors predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import numpy as np

from .architectures import CASES, SOLVED, TARGET, Case, looked_at
from .cells import Cell, CellFolder, Measured
from .experiment import Experiment
from .random_networks import RANDOM, measured, random_table
from .result import Result

Layer = dict[str, Any]


@final
@dataclass(frozen=True)
class Lognormal(Experiment):
    """The law of |g| in more than twenty networks, and in random ones.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        only: networks whose name holds this text; "random" for the random ones alone.
        steps: training steps; gradients are looked at before the first, after a tenth and after all of them.
        batch: examples of a step.
        draws: random networks of each depth and width.
    """

    words: ClassVar[str] = "when and why gradients are near-lognormal: by architecture, moment and neighbour; at random"
    claim: ClassVar[str] = (
        "The paper explains near-lognormal gradients by the product of many factors along the backward pass. It does "
        "not say for which networks they are near-lognormal."
    )
    verdict: ClassVar[str] = (
        "When: layers with BatchNorm or GroupNorm have near-lognormal gradients at any moment; without normalisation "
        "they are nearer to a normal law in most layers, and with LayerNorm they become near-lognormal in training. "
        "Why: in random networks sigma follows the product of factors, but it grows with depth over width, so it "
        "takes a network that is deeper than it is wide; one BatchNorm behind one layer gives a sigma of 1.75 at "
        "once. The explanation by depth alone does not hold for usual widths. The empirical law hits the target of "
        "zeros whatever the law is."
    )
    presets: ClassVar = {"smoke": {"steps": 2, "batch": 8, "draws": 2, "only": "MLP"}, "cpu": {}}
    core_hours: ClassVar = 0.5

    steps: int = 100
    batch: int = 32
    draws: int = 20

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        source = None if self.data is None else self.data.name
        moments = sorted({0, self.steps // 10, self.steps})
        for case in self._cases():
            given = {"network": case.cell, "data": source, "steps": self.steps, "batch": self.batch}
            yield Measured(case.cell, given, partial(looked_at, case, self.data, self.batch, moments))
        for network in RANDOM[: 2 if self.only not in ("", "random") else None]:
            given = {**network._asdict(), "draws": self.draws}
            yield Measured(network.cell, given, partial(measured, network, self.draws))

    def _cases(self) -> list[Case]:
        return [case for case in CASES if self.only in case.name]

    # -- drawing --

    def draw(self, folder: CellFolder) -> list[Result]:
        looks = [
            (case, int(when), layers)
            for case in self._cases()
            if (found := folder.found(case.cell)) is not None
            for when, layers in found["looks"].items()
        ]
        drawn = [self._networks(looks), _grouped("norm", "by normalisation and activation", looks, _by_kind)]
        return [*drawn, _grouped("before", "by what comes behind the layer", looks, _by_follower), random_table(folder)]

    def _networks(self, looks: Sequence[tuple[Case, int, list[Layer]]]) -> Result:
        claim = (
            f"The law of |g| in the layers of small networks, batch {self.batch}; images are {self.source}, text is "
            "the play in the package. Sigma (natural log; a normal law has 1.11) and the KS distances to a fitted "
            f"lognormal and a fitted half-normal law are medians over the layers. Miss: {TARGET:.0%} zeros asked of "
            "each layer with the threshold that a law gives from one step, counted on the gradient of the next step; "
            "the median and the largest difference in points over the layers. "
            f"`{self.command('steps', 'batch', 'draws')}` makes these tables."
        )
        columns = ["network", "normalisation", "activation", "steps", *NUMBERS]
        columns += [f"miss, {name}" for name in ("empirical", *SOLVED)]
        rows = [[case.name, case.norm, case.activation, when, *_numbers(layers), *_misses(layers)]
                for case, when, layers in looks]  # fmt: skip
        return Result("lognormal", "The law of |g| by architecture", claim, columns, rows)


NUMBERS = ["sigma", "KS lognormal", "KS normal", "nearer to lognormal"]


def _numbers(layers: Sequence[Layer]) -> list[object]:
    """Return medians over layers, and in how many the lognormal law is nearer than the normal one."""

    def middle(values: list[float | None]) -> float:
        return float(np.nanmedian(np.array(values, dtype=float)))

    pairs = [(layer["ks"]["LogNormal"], layer["ks"]["HalfNormal"]) for layer in layers]
    nearer = sum(one is not None and other is not None and one < other for one, other in pairs)
    return [
        f"{middle([layer['sigma'] for layer in layers]):.2f}",
        *(f"{middle(list(side)):.3f}" for side in zip(*pairs, strict=True)), f"{nearer} of {len(layers)}",
    ]  # fmt: skip


def _misses(layers: Sequence[Layer]) -> list[object]:
    """Return what each law misses in points: the median and the largest."""
    misses = [np.array([layer["miss"][name] for layer in layers], dtype=float) for name in ("empirical", *SOLVED)]
    return [f"{100 * np.nanmedian(one):.1f} / {100 * np.nanmax(one):.1f}" for one in misses]


def _by_kind(case: Case, layer: Layer) -> str:
    return f"{case.norm}, {case.activation}"


def _by_follower(case: Case, layer: Layer) -> str:
    return str(layer["before"])


def _grouped(
    name: str, title: str, looks: Sequence[tuple[Case, int, list[Layer]]], group: Callable[[Case, Layer], str]
) -> Result:
    """Return the numbers of all layers of a group together, at each moment."""
    found: dict[tuple[str, int], list[Layer]] = {}
    for case, when, layers in looks:
        for layer in layers:
            found.setdefault((group(case, layer), when), []).append(layer)
    rows = [[words, when, *_numbers(layers), *_misses(layers)] for (words, when), layers in sorted(found.items())]
    columns = ["layers", "steps", *NUMBERS, *(f"miss, {law}" for law in ("empirical", *SOLVED))]
    claim = "The same numbers over all layers of all networks together."
    return Result(f"lognormal-{name}", f"The law of |g| {title}", claim, columns, rows)
