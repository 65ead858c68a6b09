"""StatQuant: the variance that gradients of few bits add, and what they cost in accuracy, per tensor, sample and block.

    ./dev reproduce statquant --data cifar100_20k.npz

All ways have forward passes of 8 bits, and differences are those to training with these alone (QAT), as in the paper.
The variance is measured in the network after some steps of float32, in units of the variance over minibatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

from lograd import Plan, variance

from ..lab import load_data, loss_of, session_of
from .bits import WAYS
from .cells import Cell, CellFolder, Found, Measured
from .comparison import BASE, Outcome, Way, WaysToTrain

QUANTIZERS = ("ptq", "psq", "bhq")


@final
@dataclass(frozen=True)
class Statquant(WaysToTrain):
    """Gradients of 8, 6, 5 and 4 bits by three methods.

    Args:
        before: steps of float32 before the variance is measured; 0 measures none.
        minibatches: how many the variance over minibatches is estimated from.
        repeats: draws of random numbers for one minibatch.
    """

    words: ClassVar[str] = "variance and accuracy with gradients of few bits: per tensor, per sample, block Householder"
    title: ClassVar[str] = "StatQuant: bits of gradients by method"
    claim: ClassVar[str] = (
        "The paper claims that the block Householder quantizer with 5 bits is as good as one range per tensor with 8: "
        "ResNet-50 on ImageNet loses 0.5 points against a forward of 8 bits alone."
    )
    base: ClassVar[str] = "qat8"
    backend: ClassVar = "auto"  # as `bits`, whose cells are shared
    verdict: ClassVar[str] = (
        "On a character transformer the claim holds, out of the noise: 5-bit BHQ adds as much variance as 8-bit PTQ, "
        "0.0023 of that of minibatches, and is level with it. Per tensor, 5 and 4 bits add 0.013 and 0.044 and lose "
        "0.02 and 0.08 bits per character; per sample and with block Householder nothing is lost. In 6 epochs of "
        "ResNet-8 all methods are within the spread over seeds."
    )
    presets: ClassVar = {
        "smoke": {
            "network": "digits",
            "seeds": 1,
            "only": "qat8,fqt5-bhq",
            "before": 1,
            "minibatches": 3,
            "repeats": 4,
        },
        "cpu": {"network": "charlm"},
    }
    committed: ClassVar = dict.fromkeys(("bits-charlm", "bits-resnet8"), ("float32", "forward of 8 bits", "StatQuant"))
    more_columns: ClassVar = ("rho",)
    notes: ClassVar = (
        "rho: the variance that the quantizers add to all weight gradients, over that of minibatches, with its "
        "standard error, measured after some steps of float32.",
    )

    before: int = 200
    minibatches: int = 16
    repeats: int = 12

    def ways(self) -> dict[str, Way]:
        found = {name: WAYS[name] for name in (BASE, self.base)}
        for bits in (8, 6, 5, 4):
            for method in QUANTIZERS:
                name = f"fqt{bits}-{method}"
                found[name] = WAYS[name]._replace(lost=-0.5 if name == "fqt5-bhq" else None)
        return found

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        if self.before:
            config = self.usual()
            given = {"network": self.network, "width": config.width, "batch": config.batch, "before": self.before,
                     "minibatches": self.minibatches, "repeats": self.repeats}  # fmt: skip
            for name, way in self.chosen().items():
                if way.recipe is not None and name != self.base:
                    work = partial(self._variance, way.recipe)
                    yield Measured(f"variance-{name}", given | {"recipe": way.recipe}, work, threads=1)
        yield from super().cells(folder)

    def _variance(self, recipe: str) -> Found:
        """Return W, V and rho of all weight gradients together, after the steps of float32."""
        config = replace(self.usual(), epochs=None, steps=self.before, schedule="constant", recipe=None)
        session = session_of(config, load_data(config))
        for _ in range(self.before):
            session.step()
        batches = [next(session.batches) for _ in range(self.minibatches)]
        found = variance(
            session.model, batches, Plan.uniform(recipe), loss_of, steps=self.minibatches, treated=1,
            repeats=self.repeats, contributions=False, progress=False,
        ).total  # fmt: skip
        rho = found.rho
        return {"noise": found.noise.mean, "minibatch": found.minibatch.mean,
                "rho": None if rho is None else rho.mean, "error": None if rho is None else rho.error}  # fmt: skip

    def numbers(self, folder: CellFolder, name: str, one: Outcome, base: Outcome | None) -> list[object]:
        found = folder.found(f"variance-{name}")
        rho = None if found is None or found["rho"] is None else f"{found['rho']:.2g} ± {found['error']:.1g}"
        return [*super().numbers(folder, name, one, base), rho]
