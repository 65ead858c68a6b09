"""`Variance`, all that `lograd.variance` measured, with its file, tables, figures and page.

Squared norms have the unit of the squared gradient; ratios have none.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ..errors import InvalidValue, nearest_name, plural
from ..files import check_folder, from_plain, read_file, read_json, replace_file, to_plain
from ..plan import listed
from ..plots import Section, bars, heat_map, write_page
from ..text import TextTable, text_table
from .values import TOTAL, Measured, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 1
MOST_NAMES = 4
"""The most tensors that a sentence names."""


@final
@dataclass(frozen=True)
class ForwardChange:
    """The change of a gradient by the quantized forward alone: the exact gradient against that of float32.

    It is a bias of another kind than that of the backward, which no repetition averages out and no band contains.
    """

    cosine: float
    norm: float
    """The norm of the exact gradient over that of the float32 gradient."""


@final
@dataclass(frozen=True)
class TensorVariance:
    """The gradient of one weight tensor.

    Args:
        name: of the parameter.
        elements: of the tensor.
        energy: |g|^2 of the exact gradient, mean over the batches that were run with the plan.
        signal: |E g|^2 over minibatches, without bias: |mean|^2 - V / n.  By chance it may be negative.
        minibatch: V = E|g_B - E g|^2, the variance of the exact gradient over minibatches.
        noise: W = E|g_q - g_B|^2 over the random numbers of the plan, for the same minibatch.
        bias: |E g_q - g_B|^2, without bias: by chance it may be negative.
        band: the largest estimate of the bias that random numbers without a bias would give, at 4 sigma.
        forward: the change by the quantized forward; None where the plan leaves the forward as it is.
    """

    name: str
    elements: int
    energy: float
    signal: float
    minibatch: Measured
    noise: Measured
    bias: Measured
    band: float
    forward: ForwardChange | None = None

    @property
    def rho(self) -> Measured | None:
        """W / V; None where V is zero.

        Without a bias, a step costs as much as one with 1 / (1 + rho) of the samples.  With one, W contains its square,
        which no number of samples averages out.
        """
        return self.noise.over(self.minibatch)

    @property
    def inside_band(self) -> bool:
        """True if the bias may be chance."""
        return self.bias.mean <= self.band


@final
@dataclass(frozen=True)
class SiteVariance:
    """The treated gradient of one layer, in one product or in both.

    Args:
        layer: its name.
        product: "dX", "dW", or "dX, dW" where one treated copy serves both.
        words: the treatments.
        energy: |G|^2 of the gradient that arrives, without noise.
        noise: E|Q(G) - G|^2 of the quantizer alone.
        predicted: the same by the law of |G|; None where the law does not tell.
    """

    layer: str
    product: str
    words: str
    energy: float
    noise: Measured
    predicted: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Contributions:
    """The noise that each layer brings to each weight tensor when it alone is treated.

    Args:
        layers: the rows.
        tensors: the columns, the names of weight tensors; the last one is the whole gradient.
        noise: in row j and column i, E|g_q - g_B|^2 of tensor i with layer j treated.
        errors: their standard errors.
    """

    layers: tuple[str, ...]
    tensors: tuple[str, ...]
    noise: Values
    errors: Values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contributions) and to_plain(self) == to_plain(other)

    def sum(self, tensor: str = TOTAL) -> Measured:
        """Return the noise of all layers in one tensor, or in the whole gradient, as if noises just added up."""
        column = self.tensors.index(tensor)
        return Measured(float(self.noise[:, column].sum()), float(np.hypot.reduce(self.errors[:, column])))


@final
@dataclass(frozen=True, repr=False)
class Variance:
    """The variance that a plan adds to the gradients of a model, beside the variance that they have anyway.

    `lograd.variance` makes one.

    Attributes:
        plan: the plan in words.
        tensors: each weight tensor that learns; the last entry is all parameters with one dimension together.
        total: the whole gradient.
        sites: the treated gradient of each layer and product, the noise of its quantizer alone, and predictions.
        contributions: the noise that each layer's treatment alone brings to each weight tensor; None if not measured.
        batches: minibatches from which V was estimated.
        treated: those of them that were also run with the plan.
        repeats: draws of random numbers for each of these.
        seed: of the random numbers.
    """

    plan: str
    tensors: tuple[TensorVariance, ...]
    total: TensorVariance
    sites: tuple[SiteVariance, ...]
    contributions: Contributions | None
    batches: int
    treated: int
    repeats: int
    seed: int

    def __getitem__(self, name: str) -> TensorVariance:
        for one in self.tensors:
            if one.name == name:
                return one
        names = [one.name for one in self.tensors]
        raise InvalidValue(f"no weight tensor {name!r} was measured.{nearest_name(name, names)}")

    @property
    def biased(self) -> tuple[str, ...]:
        """The names of tensors whose bias is outside the band of chance."""
        return tuple(one.name for one in self.tensors if not one.inside_band)

    # -- for people and for programs --

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each weight tensor and for the whole gradient; None stands for what is not known."""
        return [_row(one) for one in (*self.tensors, self.total)]

    def table(self) -> TextTable:
        """Return a table for the terminal with one row for each weight tensor."""
        return _tensor_table(self)

    def layers_table(self) -> TextTable:
        """Return a table of the layers that add noise: their quantizers, predictions, and where it arrives."""
        return _site_table(self)

    def plot(self) -> Figure:
        """Return a figure of rho, the noise of the plan in each weight gradient."""
        known = [(one.name, one.rho.mean) for one in self.tensors if one.rho is not None]
        names, values = [name for name, _ in known], [value for _, value in known]
        rule = 1.0 if any(value > 0.5 for value in values) else None
        return bars(names, {"": values}, "Noise of the plan in each weight gradient", "rho = W / V", rule=rule)

    def to_html(self, path: str | os.PathLike[str], title: str = "Variance of the gradients") -> Path:
        """Write a self-contained HTML page: rho of each tensor, and where noise comes from."""
        check_folder(path)  # fails before the page is computed
        return write_page(path, title, _sections(self), "Made by lograd: Variance.to_html.")

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in (self.table(), self.layers_table()))

    def __repr__(self) -> str:
        rho = self.total.rho
        known = "" if rho is None else f", rho {rho.mean:.3g}"
        bias = f"bias in {plural(len(self.biased), 'tensor')}" if self.biased else "no bias seen"
        return f"Variance({plural(len(self.tensors), 'tensor')}, {self.batches:,} batches{known}, {bias})"

    # -- the file --

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they stand in the file."""
        return {"lograd_variance": VERSION, **to_plain(self)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON, of which `load` is the exact inverse; return its path."""
        return replace_file(path, f"{json.dumps(self.to_dict(), indent=1)}\n".encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Variance:
        """Return the measurement in a file; what is wrong with the file is said in one sentence."""
        try:
            data = read_json(read_file(path))
            if not isinstance(data, dict) or data.pop("lograd_variance", None) != VERSION:
                raise InvalidValue(f'it is no variance of version {VERSION}: a JSON object with "lograd_variance".')
            found: Variance = from_plain(cls, data, "the variance")
        except InvalidValue as error:
            raise InvalidValue(f"Cannot read the variance {path}: {error}") from None
        return found


# -- tables --


def _tensor_table(found: Variance) -> TextTable:
    """Return the table of weight tensors, with the whole gradient as the last row."""
    tensors = [*found.tensors, found.total]
    forward = any(one.forward is not None for one in tensors)
    rows = []
    for one in tensors:
        change = "–" if one.forward is None else f"{one.forward.cosine:.4f}"
        verdict = "no noise" if one.noise.mean == 0 else "inside the band" if one.inside_band else "outside"
        shares = [_ratio(value, one.noise.mean) for value in (one.bias.mean, one.band)]
        means = [_measured(value) for value in (one.noise, one.minibatch)]
        rho = _measured(one.rho)
        signal = "–" if math.isnan(one.signal) else f"{one.signal:.3g}"
        rows.append([one.name, rho, verdict, *([change] if forward else []), *means, signal, *shares])
    columns = ["weight tensor", "rho = W/V", "<bias", *(["cosine to float32"] if forward else [])]
    columns += ["noise W", "minibatch V", "signal |E g|²", "bias² / W", "band / W"]
    notes = [
        f"V from {found.batches:,} minibatches; W from {found.repeats} draws of random numbers on {found.treated} of "
        "them. Squared norms are in the unit of the squared gradient, ± one standard error, which is that for these "
        "minibatches in W and bias².",
        _cost(found.total),
        _bias_words(found),
        "To float32: the change of the exact gradient by the quantized forward, a bias of its own kind."
        if forward
        else "",
    ]
    droppable = ("signal |E g|²", "band / W", "bias² / W", "minibatch V", "noise W")
    title = f"Variance of the gradients: {found.plan}"
    return text_table(title, columns, rows, "\n".join(filter(None, notes)), droppable=droppable)


def _bias_words(found: Variance) -> str:
    """Return the verdict on the bias in a sentence."""
    if not found.biased:
        return "Bias: every tensor is inside the band, so chance alone explains it (4 sigma)."
    tensors = plural(len(found.biased), "tensor")
    return f"Bias: {tensors} outside the band of chance (4 sigma): {listed(found.biased, MOST_NAMES)}."


def _cost(total: TensorVariance) -> str:
    """Return what a step is worth in a sentence."""
    if total.rho is None:
        return ""
    if not total.inside_band:
        return "W contains a bias, which no number of samples averages out, so rho does not say what it costs."
    return f"A step costs as much as one with {1 / (1 + total.rho.mean):.1%} of the samples, 1 / (1 + rho)."


def _site_table(found: Variance) -> TextTable:
    """Return the table of treated gradients, with what each layer adds to the weight gradients."""
    rows = []
    shown: set[str] = set()
    for one in found.sites:
        known = "–" if one.predicted is None else _ratio(one.predicted, one.energy)
        arrival = "" if one.layer in shown else _arrival(found, one.layer)
        name = "" if one.layer in shown else one.layer
        rows.append([name, one.product, one.words, _ratio(one.noise.mean, one.energy), known, arrival])
        shown.add(one.layer)
    others = () if found.contributions is None else found.contributions.layers
    rows += [[name, *["–"] * 4, _arrival(found, name)] for name in others if name not in shown]
    caption = (
        "Noise / |G|²: E|Q(G) − G|² of the quantizer on the exact gradient of the first minibatch; by the law: "
        "predicted from the histogram of |G|. In V: the noise in the whole gradient with this layer alone treated, "
        f"over V.\n{_sum_words(found)}"
    )
    columns = ("layer", "<product", "<treatment", "noise / |G|²", "by the law", "in V")
    title = "Noise by layer: the quantizers alone, and what each layer adds to all weight gradients"
    return text_table(title, columns, rows, caption, droppable=("<treatment", "by the law"))


def _arrival(found: Variance, layer: str) -> str:
    """Return what a layer adds to the whole gradient, in units of V."""
    matrix = found.contributions
    if matrix is None or layer not in matrix.layers:
        return "–"
    row = matrix.layers.index(layer)
    unit = Measured(found.total.minibatch.mean, 0.0)  # the error of the unit is that of all rows, and stands elsewhere
    return _measured(Measured(float(matrix.noise[row, -1]), float(matrix.errors[row, -1])).over(unit))


def _sum_words(found: Variance) -> str:
    """Return whether the noises of single layers add up to that of the plan, in a sentence."""
    if found.contributions is None:
        return ""
    whole, parts = found.total.noise, found.contributions.sum()
    deviating = [
        one.name
        for one in (*found.tensors, found.total)
        if not found.contributions.sum(one.name).agrees(one.noise.mean, one.noise.error)
    ]
    ratio = f"{parts.mean / whole.mean:.3g} of" if whole.mean > 0 else "as much as"
    rest = ", equal within 4 sigma"
    if deviating:
        rest = f"; they differ by more than 4 sigma in {listed(deviating, MOST_NAMES)}"
    return f"Alone the layers add {ratio} the noise that they add together{rest}."


def _measured(value: Measured | None) -> str:
    """Return a mean with its standard error; a dash where there is none."""
    return "–" if value is None else f"{value.mean:.3g} ± {value.error:.1g}"


def _ratio(value: float, over: float) -> str:
    return f"{value / over:.3g}" if over > 0 else "–"


def _row(one: TensorVariance) -> dict[str, Any]:
    rho, forward = one.rho, one.forward
    return {
        "name": one.name,
        "elements": one.elements,
        "rho": None if rho is None else rho.mean,
        "rho_error": None if rho is None else rho.error,
        "noise": one.noise.mean,
        "minibatch": one.minibatch.mean,
        "signal": one.signal,
        "bias": one.bias.mean,
        "band": one.band,
        "inside_band": one.inside_band,
        "forward_cosine": None if forward is None else forward.cosine,
        "forward_norm": None if forward is None else forward.norm,
    }


# -- the page --


def _sections(found: Variance) -> list[Section]:
    text = (
        f"Noise that the plan ({found.plan}) adds to each weight gradient, beside the variance that the gradient has "
        f"from minibatch to minibatch anyway. {_cost(found.total)} {_bias_words(found)}"
    )
    drawn = [found.plot()]
    if (matrix := found.contributions) is not None:
        units = np.array([one.minibatch.mean for one in found.tensors])
        values = matrix.noise[:, :-1] / np.where(units > 0, units, np.inf)
        names, title = [one.name for one in found.tensors], "Contributions of single layers to weight gradients"
        drawn.append(heat_map(values, matrix.layers, names, title, unit="W / V", y_label="treated layer"))
    return [Section(text=text, figures=drawn, tables=[found.table(), found.layers_table()])]
