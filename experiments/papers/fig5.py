"""Fig. 5 of the lognormal paper: accuracy over the sparsity of the gradients, and the sparsity asked and got.

    ./dev reproduce fig5 --data cifar100_20k.npz

Left, each method at several targets: accuracy over the share of zeros that it really made.  Right, the share of zeros
by law: which law hits the target.  `./dev reproduce sparsity` has the right part layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from lograd.plots import lines

from ..lab import metric_of
from .cells import CellFolder
from .comparison import BASE, Outcome, Way, WaysToTrain, outcomes, whole_numbers
from .result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Method(NamedTuple):
    """A way to choose the zeros."""

    title: str
    recipe: str
    lost: tuple[tuple[int, float], ...] = ()
    """Points that the paper loses at a target, where it says so."""


PRUNINGS = {
    "lognormal": Method("stochastic, the same in all layers, by a lognormal law", "prune{}-lognormal", ((80, 0.0),)),
    "empirical": Method("stochastic, the same in all layers, by the histogram", "prune{}"),
    "normal": Method("stochastic, the same in all layers, by a normal law", "prune{}-normal"),
    "cosine": Method("stochastic, the same cosine in all layers", "prune{}-cosine", ((85, 0.0), (90, -0.3))),
    "topk": Method("top-k", "topk{}"),
    "saw": Method("SAW: top-k of weights and activations", "saw{}"),
    "atp": Method("ATP", "atp{}"),
    "topk-stochastic": Method("stochastic above the top-k threshold", "topk{}-stochastic"),
}


@final
@dataclass(frozen=True)
class Fig5(WaysToTrain):
    """Methods to make gradients sparse, at several targets.

    Args:
        targets: percentages of zeros that are asked for, with commas between them.
    """

    words: ClassVar[str] = "accuracy over achieved sparsity for each method of pruning; sparsity asked and got by law"
    title: ClassVar[str] = "Fig. 5: accuracy over sparsity"
    keeps_figures: ClassVar[bool] = True
    keeps: ClassVar = ("last",)  # as `profile.plan` does
    claim: ClassVar[str] = (
        "The paper claims that stochastic pruning beats top-k, that unequal sparsities beat equal ones, and that only "
        "the right law hits the target: ResNet18 on ImageNet loses nothing at 80 % equal and at 85 % unequal zeros, "
        "and less than 0.3 points at about 90 %."
    )
    verdict: ClassVar[str] = (
        "In a character transformer stochastic pruning beats top-k by far at 90 % zeros: it loses 0.22 bits per "
        "character, top-k 1.32. Unequal sparsities, with the same cosine in all layers, lose 0.16, less than equal "
        "ones. ATP and stochastic pruning above the top-k threshold lose least, 0.02 and 0.03, as they make only 63 "
        "% and 66 % zeros of the 90 % asked for. SAW, which leaves gradients dense, loses 0.07. That 90 % lose "
        "almost nothing does not hold here. Only the histogram itself hits the target in every layer: the lognormal "
        "law misses it by up to 6 points, the normal one by up to 17. Short runs of ResNet-20 lose 0.3 to 1.4 "
        "points at 80 to 90 % zeros where the paper loses almost nothing, and only if the first steps stay dense."
    )
    presets: ClassVar = {
        "smoke": {"network": "digits", "seeds": 1, "only": "fp32,lognormal-90,topk-90,cosine-90"},
        "cpu": {
            "network": "charlm",
            "steps": 300,
            "targets": "90",
            "only": "fp32,lognormal-90,cosine-90,topk-90,saw-90,atp-90,topk-stochastic-90",
        },
    }
    committed: ClassVar = {"sparsity": (), "learning-resnet20": (), "learning-resnet18": ()}
    more_columns: ClassVar = ("zeros got",)
    notes: ClassVar = ("SAW leaves gradients dense, so it has no zeros to count here.",)

    targets: str = "80,90"

    def _targets(self) -> list[int]:
        return whole_numbers("targets", self.targets, 1, 99)

    def ways(self) -> dict[str, Way]:
        found = {BASE: Way("dense")}
        for target in self._targets():
            for name, method in PRUNINGS.items():
                lost = dict(method.lost).get(target)
                found[f"{name}-{target}"] = Way(f"{method.title}, {target} %", method.recipe.format(target), lost=lost)
        return found

    def numbers(self, folder: CellFolder, name: str, one: Outcome, base: Outcome | None) -> list[object]:
        shown = None if one.zeros is None or name.startswith("saw") else f"{one.zeros:.1%}"
        return [*super().numbers(folder, name, one, base), shown]

    def draw(self, folder: CellFolder) -> list[Result]:
        found = outcomes(folder, self.ways(), self.seeds, self.training.kind)
        return [replace(self.table(folder), figures=[self._accuracy(found)]), self._asked(found)]

    def _asked(self, found: dict[str, Outcome]) -> Result:
        """The share of zeros that was asked for and that the runs had, by method."""
        rows: list[list[object]] = []
        series: dict[str, Any] = {}
        for name, method in PRUNINGS.items():
            got = {target: one.zeros for target in self._targets()
                   if (one := found.get(f"{name}-{target}")) is not None and one.zeros is not None}  # fmt: skip
            if not got or name == "saw":
                continue
            series[name] = ([target / 100 for target in got], list(got.values()))
            rows.append(
                [method.title, *(f"{got[target]:.1%}" if target in got else None for target in self._targets())]
            )
        figures = [lines(series, "Zeros asked and got", "asked", "got", percent=True)]
        if len(self._targets()) < 2:
            figures = []  # lines of one point cannot be seen
        claim = "The share of zeros in the treated gradients over the whole run, mean over the seeds, by target."
        columns = ["method", *(f"{target} % asked" for target in self._targets())]
        return Result(f"{self.label}-asked", "Fig. 5, right: sparsity asked and got", claim, columns, rows, figures)

    def _accuracy(self, found: dict[str, Outcome]) -> Figure:
        """Draw results over the share of zeros."""
        series: dict[str, Any] = {}
        if (base := found.get(BASE)) is not None and base.values:
            level = mean(base.values.values())
            zeros = [target / 100 for target in self._targets()]
            zeros += [one.zeros for one in found.values() if one.zeros is not None]
            series["dense"] = ([min(zeros), max(zeros)], [level, level])
        for name in PRUNINGS:
            points = [
                (one.zeros, mean(one.values.values()))
                for target in self._targets()
                if (one := found.get(f"{name}-{target}")) is not None and one.values and one.zeros is not None
            ]
            if points and name != "saw":
                series[name] = tuple(zip(*points, strict=True))
        metric = metric_of(self.training.kind)
        unit = ", %" * metric.percent
        title = f"{metric.words.capitalize()} over sparsity"
        style = dict.fromkeys(series, "o") | {"dense": "--"}
        return lines(series, title, "share of zeros got", f"test {metric.words}{unit}", style=style)
