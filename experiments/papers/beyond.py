"""Beyond the papers: newer formats, the law that a layer really has, and sparse products, at equal bits or zeros.

    ./dev reproduce beyond --data cifar100_20k.npz

Gradients of 4 bits by the methods of the three papers and by later ones, and 90 % zeros by the papers' law and by ours.
Then a dense step and a step with pruned gradients and sparse products are timed in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

from .cells import Cell, CellFolder, Found, Measured
from .comparison import BASE, Outcome, Way, WaysToTrain
from .runs import speeds, timed_in_turns

TIMES = "times"
TIMED = (BASE, "lognormal90", "empirical90", "cosine90")
WAYS = {
    BASE: Way("float32"),
    "chmiel": Way("4 bits: FP4 as in the lognormal paper's code", "fp4-lognormal"),
    "fp4": Way("4 bits: FP4, largest magnitude at the top, stochastic", "fp4"),
    "bhq": Way("4 bits: block Householder (StatQuant), dW at 8 bits", "int4-bhq"),
    "interval": Way("4 bits: INT4 in a clipped interval", "int4-interval"),
    "luq": Way("4 bits: LUQ", "fp4-luq"),
    "mxfp4": Way("4 bits: MXFP4", "mxfp4"),
    "mxfp4-rht": Way("4 bits: MXFP4 under a random Hadamard transform", "mxfp4-rht"),
    "nvfp4": Way("4 bits: NVFP4", "nvfp4"),
    "luq4": Way("4 bits in all products: LUQ", "luq4"),
    "mxfp4-full": Way("4 bits in all products: MXFP4", "mxfp4-full"),
    "nvfp4-full": Way("4 bits in all products: NVFP4", "nvfp4-full"),
    "lognormal90": Way("90 % zeros: lognormal law, the same in all layers", "prune90-lognormal"),
    "empirical90": Way("90 % zeros: empirical law, the same in all layers", "prune90"),
    "cosine90": Way("90 % zeros: empirical law, the same cosine in all layers", "prune90-cosine"),
}


@final
@dataclass(frozen=True)
class Beyond(WaysToTrain):
    """Later methods beside those of the papers.

    Args:
        turns: steps of each way that are made in turns to time them, of which the last third counts; 0 times nothing.
    """

    words: ClassVar[str] = (
        "LUQ, MXFP4, NVFP4, empirical law and common cosine beside the papers' own; sparse wall clock"
    )
    title: ClassVar[str] = "Beyond the papers, at equal bits or zeros"
    backend: ClassVar = "auto"  # zeros and integers are timed with the products that they are made for
    keeps: ClassVar = ("first", "last")  # as in the work on LUQ and MXFP4
    claim: ClassVar[str] = (
        "No paper claims this: later formats and the empirical law should be ahead of the three papers' own methods at "
        "equal bits or zeros, and zeros should save time."
    )
    verdict: ClassVar[str] = (
        "In a character transformer later formats are ahead of two of the three papers: gradients of 4 bits lose 0.01 "
        "bits per character in MXFP4 and NVFP4 and 0.02 with LUQ, 0.16 as INT4 in a clipped interval and 1.05 as FP4 "
        "with the scale of the lognormal paper's code. StatQuant's block Householder quantizer is level with them, "
        "with 8 bits in dW. With 4 bits in all products, LUQ loses 0.06 and MXFP4 0.04. At 90 % zeros the histogram "
        "loses 0.55, the lognormal law, which makes 92.1 % zeros instead, 0.62, and the same cosine in all layers 0.52 "
        "with 91.4 % zeros: both of ours are ahead, and so many zeros are too many here. They save no time in so "
        "narrow a network, timed in its first 30 steps; `./dev bench models` times wider ones. In 6 epochs of ResNet-8 "
        "MXFP4 loses about a point, and LUQ less than the spread over seeds."
    )
    presets: ClassVar = {
        "smoke": {"network": "digits", "seeds": 1, "turns": 3, "only": "fp32,luq,cosine90"},
        # Left out: 4 bits in all products, which `bits` has, one more FP4, and MXFP4 under a Hadamard transform.
        "cpu": {
            "network": "charlm",
            "only": "fp32,chmiel,bhq,interval,luq,mxfp4,nvfp4,lognormal90,empirical90,cosine90",
        },
    }
    committed: ClassVar = dict.fromkeys(
        ("bits-charlm", "bits-resnet8"),
        ("float32", "INT4, learned clips, gradients in", "INT4 forward by SAWB", "MXFP4"),
    )
    more_columns: ClassVar = ("zeros got", "steps in the time of a float32 one")
    notes: ClassVar = ("Times are those of steps with pruned gradients, by sparse products where these are faster.",)

    turns: int = 30

    def ways(self) -> dict[str, Way]:
        return dict(WAYS)

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        yield from super().cells(folder)
        if self.turns:
            # The same ones whatever `only` says: processes that share a folder share this cell.
            given = {"network": self.network, "turns": self.turns, "ways": TIMED}
            yield Measured(TIMES, given, partial(self._time, folder), threads=1)

    def _time(self, folder: CellFolder) -> Found:
        configs = {name: self.config(folder, name, 0) for name in TIMED}
        return timed_in_turns({name: (one, one.load_plan()) for name, one in configs.items()}, self.turns)

    def numbers(self, folder: CellFolder, name: str, one: Outcome, base: Outcome | None) -> list[object]:
        faster = speeds(folder.found(TIMES), BASE).get(name)
        zeros = f"{one.zeros:.1%}" if one.zeros is not None and name.endswith("90") else None
        return [*super().numbers(folder, name, one, base), zeros, None if faster is None else f"{faster:.2f}"]
