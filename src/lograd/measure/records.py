"""The contents of a profile: one histogram for each layer and observed step.

Everything else (spread, fitted laws, distances) is computed from the histograms when somebody asks.  Records need no
torch, so they can be read without the tensor, the process or the machine that they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue, plural
from ..laws import Empirical, Fit, Law
from ..laws.binned import rank_binned, try_binned
from ..plan import listed
from ..theory import rows_kept

Sample = NDArray[np.float32]
Range = tuple[float, float]
"""The smallest and the largest element."""
MOST_SHOWN = 60
"""The most steps over which distances are averaged and lines are drawn."""


@dataclass(frozen=True)
class Record:
    """The gradient of one layer at one observed step; calls of the same module in that step are counted together."""

    step: int
    law: Empirical | None
    """The histogram of the magnitudes that are finite and not zero; None where there are none."""
    zeros: int
    nan: int = 0
    infinities: int = 0
    masked: float | None = None
    """The share of zeros in the gradient at the output of the BatchNorm that follows the layer; None without one."""

    @property
    def elements(self) -> int:
        """The number of elements, zeros, NaN and infinities included."""
        return (int(self.law.count) if self.law else 0) + self.zeros + self.nan + self.infinities

    @property
    def zero_share(self) -> float:
        """The share of exact zeros."""
        return self.zeros / self.elements if self.elements else 0.0

    @property
    def mu(self) -> float:
        """The mean of ln|g|, natural log; NaN where the gradient was zero."""
        return float(self.law.log_mean) if self.law else np.nan

    @property
    def sigma(self) -> float:
        """The standard deviation of ln|g|, natural log; NaN where the gradient was zero."""
        return float(self.law.log_std) if self.law else np.nan

    @property
    def smallest(self) -> float:
        """The smallest nonzero magnitude: the lower edge of its bin, so at most 1/16 too small."""
        return float(self.law.edges[0]) if self.law else np.nan

    @property
    def largest(self) -> float:
        """The largest finite magnitude: the upper edge of its bin, so at most 1/16 too large."""
        return float(self.law.maximum) if self.law else np.nan

    @cached_property
    def fits(self) -> list[Fit]:
        """All families of `lograd.laws` fitted to the histogram, the best first by Kolmogorov-Smirnov distance."""
        return rank_binned(self.law) if self.law else []

    def ks(self, family: type[Law]) -> float:
        """Return the Kolmogorov-Smirnov distance to the fitted law of a family; NaN where it cannot be fitted."""
        if family not in self._distances:
            fit = try_binned(family, self.law) if self.law else None
            self._distances[family] = fit.ks if fit and fit.law else np.nan
        return self._distances[family]

    @cached_property
    def _distances(self) -> dict[type[Law], float]:
        return {}


def thinned(records: Sequence[Record], most: int = MOST_SHOWN) -> list[Record]:
    """Return at most so many records, evenly spaced, with the first and the last."""
    if len(records) <= most:
        return list(records)
    return [records[index] for index in np.linspace(0, len(records) - 1, most).round().astype(int)]


def mean_over(records: Sequence[Record], value: Callable[[Record], float | None]) -> float:
    """Return the mean of a number over the records that have it; NaN where none has."""
    known = [number for record in records if (number := value(record)) is not None and not np.isnan(number)]
    return float(np.mean(known)) if known else np.nan


@dataclass(frozen=True)
class NoisyGradient:
    """The gradient of a layer in backward passes in which the gradients of all layers were pruned.

    Args:
        law: the histogram of its magnitudes.
        level: the energy of the noise in it over its energy without, which is x - 1 of `theory.Propagation`.
        range: its smallest and its largest element.
    """

    law: Empirical
    level: float
    range: Range

    @classmethod
    def mean_of(cls, several: Sequence[NoisyGradient]) -> NoisyGradient:
        """Return the mean over passes."""
        low, high = np.mean([one.range for one in several], axis=0).tolist()
        level = float(np.mean([one.level for one in several]))
        return cls(Empirical.merge([one.law for one in several]), level, (low, high))


@dataclass(repr=False)
class LayerProfile:
    """The observations of one layer; an observer adds to them while it runs."""

    name: str
    kind: str
    """The class of the module, such as "Conv2d"."""
    weight_shape: tuple[int, ...] | None = None
    """None for a module without a weight, or with one that is computed, as under spectral_norm."""
    flops_input: int | None = None
    """Operations of the product for dX in the first observed step, two for each multiply-add; 0 where the input needs
    no gradient, and None for a module that is no layer."""
    flops_weight: int | None = None
    """Operations of the product for dW, counted in the same way."""
    records: list[Record] = field(default_factory=list)
    """The neural gradient, a record for each observed step."""
    weight_records: list[Record] = field(default_factory=list)
    """The gradient of the weight at the same steps; empty where there is none."""
    row_records: list[Record] = field(default_factory=list)
    """Norms of the gradient's rows (tokens, pixels of 1x1 convolutions, samples of others) at the same steps."""
    sample: Sample = field(default_factory=lambda: np.zeros(0, dtype=np.float32), compare=False)
    """Elements of the neural gradient at the last observed step, spread evenly over the tensor."""
    flops_forward: int | None = None
    """Operations of the forward product, two for each multiply-add."""
    groups: int = 1
    """ParameterGroups of a convolution; a depthwise one has as many groups as channels."""
    transposed: bool = False
    """True for a transposed convolution."""
    range: Range | None = None
    """The smallest and the largest element of the neural gradient at the last step; None unless noise was measured."""
    noisy: tuple[NoisyGradient, ...] = ()
    """The neural gradient of the last step with noise in it, by rising level; empty unless noise was measured, and
    where none arrives."""

    @property
    def last(self) -> Record:
        """The record of the last observed step at which the gradient was not all zeros.

        Formats, thresholds and predictions follow from this record alone.  The scale of gradients drifts over many
        steps, so a histogram of all of them would be wider than the one step that a treatment works on.
        """
        return next((record for record in reversed(self.records) if record.law is not None), self.records[-1])

    @property
    def law(self) -> Empirical | None:
        """The law of |g| at the last observed step; None if every finite element of every step was zero."""
        return self.last.law

    @property
    def sigma(self) -> float:
        """The standard deviation of ln|g|, mean over the steps."""
        return mean_over(self.records, lambda record: record.sigma)

    @property
    def weight_sigma(self) -> float:
        """The standard deviation of the logarithms of the weight gradient, mean over the steps."""
        return mean_over(self.weight_records, lambda record: record.sigma)

    @property
    def zero_share(self) -> float:
        """The share of exact zeros, mean over the steps."""
        return mean_over(self.records, lambda record: record.zero_share)

    @property
    def masked(self) -> float | None:
        """The share of zeros behind the BatchNorm that follows the layer, mean over the steps; None without one."""
        share = mean_over(self.records, lambda record: record.masked)
        return None if np.isnan(share) else share

    def ks(self, family: type[Law]) -> float:
        """Return the Kolmogorov-Smirnov distance to the law of a family fitted at each step, mean over the steps."""
        return mean_over(thinned(self.records), lambda record: record.ks(family))

    @property
    def nearest_law(self) -> str | None:
        """The name of the family that fits best at the last observed step; None where none can be fitted."""
        return next((fit.family for fit in self.last.fits if fit.law is not None), None)

    def rows_kept(self, noise: float) -> float | None:
        """Return the share of rows that `Rows(noise=...)` is expected to keep at the last observed step.

        None where no rows were seen.
        """
        rows = self.row_records[-1] if self.row_records else None
        if rows is None or not rows.elements:
            return None
        return 0.0 if rows.law is None else rows_kept(rows.law, noise, rows.zero_share)

    @property
    def elements(self) -> int:
        """The number of elements of the gradient in one step."""
        return self.last.elements

    def thin(self, every: int) -> None:
        """Keep the steps that are multiples of `every`, or the last step where there is no such step."""
        last = self.records[-1:]
        self.records = [record for record in self.records if record.step % every == 0] or last
        self.weight_records = [record for record in self.weight_records if record.step % every == 0]
        self.row_records = [record for record in self.row_records if record.step % every == 0] or self.row_records[-1:]
        if self.records[-1:] != last:  # drop NaN of a step whose counts are gone
            self.sample = self.sample[np.isfinite(self.sample)]

    def __repr__(self) -> str:
        return f"LayerProfile({self.name!r}, {self.kind}, {plural(len(self.records), 'observed step')})"


# -- what is not finite --

MOST_NAMES = 3
"""Layers that a message names; it only counts the others."""


@final
@dataclass(frozen=True)
class NonFiniteLoss:
    """The first step at which the loss was "NaN" or "infinite", and how many such steps there were."""

    step: int
    kind: str
    steps: int = 1

    def __str__(self) -> str:
        more = f" and at {self.steps - 1} more" if self.steps > 1 else ""
        return f"the loss was {self.kind} at step {self.step}{more}"


def nonfinite_layers(layers: Mapping[str, LayerProfile]) -> dict[str, str]:
    """Return the layers with a NaN or infinite gradient, the earliest step first, and how much of it was not finite."""
    found = []
    for name, layer in layers.items():
        for of_weight, records in ((False, layer.records), (True, layer.weight_records)):
            bad = next((record for record in records if record.nan or record.infinities), None)
            if bad is not None:
                counts = {"NaN": bad.nan, "infinite": bad.infinities}
                elements = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
                what = "elements of its weight's gradient" if of_weight else "elements"
                found.append((bad.step, name, f"{name!r} ({elements} of {bad.elements:,} {what} at step {bad.step})"))
                break
    return {name: words for _, name, words in sorted(found, key=lambda one: one[0])}


def nonfinite_words(layers: Mapping[str, LayerProfile], loss: NonFiniteLoss | None) -> str | None:
    """Return one sentence on all that was not finite; None where everything was finite."""
    found = nonfinite_layers(layers)
    if not found:
        return None if loss is None else f"T{str(loss)[1:]}, though all gradients were finite."
    text = f"NaN or infinite gradients in {len(found)} of {len(layers)} layers: {_named(found)}"
    return f"{text}; {loss}." if loss is not None else f"{text}."


def refuse_nonfinite(layers: Mapping[str, LayerProfile], treated: Sequence[str], loss: NonFiniteLoss | None) -> None:
    """Raise InvalidValue if one of the layers to treat had a gradient that was not finite.

    Args:
        layers: all layers of the profile.
        treated: names of those that a plan would treat.
        loss: the first loss that was not finite, which may be the cause.
    """
    found = nonfinite_layers({name: layers[name] for name in treated})
    if not found:
        return
    why = "" if loss is None else f" ({loss})"
    text = (
        f"no plan follows from NaN or infinite gradients, which the profile has in {len(found)} of the {len(treated)} "
        f"layers to treat: {_named(found)}; mend the loss or the data{why}, or lower the learning rate or the loss "
        "scale, and profile again"
    )
    if len(found) < len(treated):
        text += f", or leave these layers alone as well (keep= or --keep: {listed(list(found), MOST_NAMES)})"
    raise InvalidValue(f"{text}.")


def _named(found: Mapping[str, str]) -> str:
    more = f", and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(list(found.values())[:MOST_NAMES]) + more
