"""`Variance`, all that `lograd.variance` measured, with its file, tables, figures and page.

Squared norms have the unit of the squared gradient; ratios have none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ..errors import InvalidValue, nearest_name, plural
from ..files import check_folder, checksum_of_json, read_file, read_json, replace_file
from ..plan import listed
from ..plots import Section, bars, heat_map, write_page
from ..text import TextTable, text_table
from .values import TOTAL, Measured, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERSION = 1
CHECKSUM = "checksum"
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
        bound: the paper's bound on it; None for treatments that the paper does not have.
    """

    layer: str
    product: str
    words: str
    energy: float
    noise: Measured
    predicted: float | None = None
    bound: float | None = None


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

    def __post_init__(self) -> None:
        for name in ("noise", "errors"):
            values = np.array(getattr(self, name), dtype=np.float64).reshape(len(self.layers), len(self.tensors))
            object.__setattr__(self, name, values)
        if not np.all(self.noise >= 0):
            raise InvalidValue("contributions are squared norms, and none may be negative or NaN.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contributions) and _plain(self) == _plain(other)

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
        sites: the treated gradient of each layer and product, the noise of its quantizer alone, predictions and bounds.
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
        """Return a table of the layers that add noise: their quantizers, bounds, predictions, and where it arrives."""
        return _site_table(self)

    def plot(self) -> Figure:
        """Return a figure of rho, the noise of the plan in each weight gradient."""
        known = [(one.name, one.rho.mean) for one in self.tensors if one.rho is not None]
        names, values = [name for name, _ in known], [value for _, value in known]
        rule = 1.0 if any(value > 0.5 for value in values) else None
        return bars(names, {"": values}, "Noise of the plan in each weight gradient", "rho = W / V", rule=rule)

    def to_html(self, path: str | os.PathLike[str], title: str = "Variance of the gradients") -> Path:
        """Write a self-contained HTML page: rho of each tensor, where noise comes from, bounds and predictions."""
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
        matrix = None
        if (found := self.contributions) is not None:
            matrix = {name: _plain(value) for name, value in vars(found).items()}
        values = {name: _plain(value) for name, value in vars(self).items() if name != "contributions"}
        return {"lograd_variance": VERSION, **values, "contributions": matrix}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON with a checksum, of which `load` is the exact inverse; return its path."""
        data = self.to_dict()
        text = json.dumps(data | {CHECKSUM: checksum_of_json(data)}, indent=1, allow_nan=False)
        return replace_file(path, f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Variance:
        """Return the measurement in a file; what is wrong with the file is said in one sentence."""
        try:
            return _loaded(read_json(read_file(path)))
        except InvalidValue as error:
            raise InvalidValue(f"Cannot read the variance {path}: {error}") from None


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: NaN is null, and what has fields is an object."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(one) for name, one in vars(value).items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _loaded(data: Any) -> Variance:
    if not isinstance(data, dict) or data.get("lograd_variance") != VERSION:
        raise InvalidValue(f'it is no variance of version {VERSION}: that is a JSON object with "lograd_variance".')
    rest = {name: value for name, value in data.items() if name != CHECKSUM}
    if data.get(CHECKSUM) != checksum_of_json(rest):
        raise InvalidValue("its checksum does not match: it was changed or damaged after lograd saved it.")
    try:
        matrix = rest.pop("contributions")
        del rest["lograd_variance"]
        rest["tensors"] = tuple(map(_tensor, rest["tensors"]))
        rest["total"] = _tensor(rest["total"])
        rest["sites"] = tuple(SiteVariance(**one | {"noise": Measured(**one["noise"])}) for one in rest["sites"])
        if matrix is not None:
            matrix |= {name: tuple(matrix[name]) for name in ("layers", "tensors")}
        return Variance(**rest, contributions=None if matrix is None else Contributions(**matrix))
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidValue(f"its fields are not those of a variance ({error}).") from None


def _tensor(data: dict[str, Any]) -> TensorVariance:
    measured = {name: Measured(**data[name]) for name in ("minibatch", "noise", "bias")}
    forward = None if data["forward"] is None else ForwardChange(**data["forward"])
    return TensorVariance(**data | measured | {"forward": forward})


# -- tables --


NOISE = ("rho = W/V",)
COLUMNS = (
    "weight tensor", "rho = W/V", "<bias", "noise W", "minibatch V", "signal |E g|²", "bias² / W", "band / W",
    "elements",
)  # fmt: skip
FORWARD = ("cosine to float32", "norm to float32")
SITE_COLUMNS = (
    "layer", "<product", "<treatment", "|G|²", "noise / |G|²", "by the law", "bound", "noise / bound", "in V",
)  # fmt: skip


def _tensor_table(found: Variance) -> TextTable:
    """Return the table of weight tensors, with the whole gradient as the last row."""
    rows = [*found.tensors, found.total]
    forward = any(one.forward is not None for one in rows)
    columns = (*COLUMNS[:3], *FORWARD, *COLUMNS[3:]) if forward else COLUMNS
    notes: list[tuple[tuple[str, ...], str]] = []
    if found.total.rho is not None:
        notes.append((NOISE, _cost(found.total, found.total.rho)))
    notes.append((("<bias",), _bias_words(found)))
    if forward:
        notes.append(
            (FORWARD, "To float32: the change of the exact gradient by the quantized forward, a bias of its own kind.")
        )
    return text_table(
        f"Variance of the gradients: {found.plan}",
        columns,
        [_tensor_row(one, forward) for one in rows],
        _caption(found),
        droppable=("elements", "signal |E g|²", "band / W", "bias² / W", *FORWARD[1:], "minibatch V", "noise W"),
        notes=notes,
    )


def _caption(found: Variance) -> str:
    """Return sentences on what was measured, and in which unit."""
    return (
        f"V from {found.batches:,} minibatches; W from {found.repeats} draws "
        f"of random numbers on {found.treated} of them. Squared norms are in the unit of the squared gradient, ± one "
        "standard error, which is that for these minibatches in W and bias²."
    )


def _bias_words(found: Variance) -> str:
    """Return the verdict on the bias in a sentence."""
    if not found.biased:
        return "Bias: every tensor is inside the band, so chance alone explains it (4 sigma)."
    tensors = plural(len(found.biased), "tensor")
    return f"Bias: {tensors} outside the band of chance (4 sigma): {listed(found.biased, MOST_NAMES)}."


def _cost(total: TensorVariance, rho: Measured) -> str:
    if not total.inside_band:
        return "W contains a bias, which no number of samples averages out, so rho does not say what it costs."
    return f"A step costs as much as one with {1 / (1 + rho.mean):.1%} of the samples, 1 / (1 + rho)."


def _tensor_row(one: TensorVariance, forward: bool) -> list[str]:
    share = [_ratio(value, one.noise.mean) for value in (one.bias.mean, one.band)]
    change = [] if not forward else ["–", "–"]
    if one.forward is not None:
        change = [f"{one.forward.cosine:.4f}", f"{one.forward.norm:.3f}"]
    return [
        one.name,
        _measured(one.rho),
        _verdict(one),
        *change,
        _measured(one.noise),
        _measured(one.minibatch),
        _number(one.signal),
        *share,
        f"{one.elements:,}",
    ]


def _verdict(one: TensorVariance) -> str:
    """Return where the bias of a tensor lies."""
    if one.noise.mean == 0:
        return "no noise"
    return "inside the band" if one.inside_band else "outside"


def _site_table(found: Variance) -> TextTable:
    """Return the table of treated gradients, with what each adds to the weight gradients."""
    rows = [_site_row(found, one, first) for one, first in _with_first(found.sites)]
    known = {one.layer for one in found.sites}
    others = () if found.contributions is None else found.contributions.layers
    extra = [[name, *["–"] * 7, _arrival(found, name)] for name in others if name not in known]
    notes = []
    if found.contributions is not None:
        notes = [(("in V",), _sum_words(found))]
    return text_table(
        "Noise by layer: the quantizers alone, and what each layer adds to all weight gradients",
        SITE_COLUMNS,
        [*rows, *extra],
        "Noise / |G|²: E|Q(G) − G|² of the quantizer on the exact gradient of the first minibatch; by the law: "
        "predicted from the histogram of |G|; bound: of the StatQuant paper. In V: the noise in the whole gradient "
        "with this layer alone treated, over V.",
        droppable=("<treatment", "|G|²", "by the law", "noise / bound", "bound"),
        notes=notes,
    )


def _with_first(sites: tuple[SiteVariance, ...]) -> list[tuple[SiteVariance, bool]]:
    """Return each site, and True for the first of its layer."""
    names = [one.layer for one in sites]
    return [(one, names.index(one.layer) == place) for place, one in enumerate(sites)]


def _site_row(found: Variance, one: SiteVariance, first: bool) -> list[str]:
    """Return the cells of a site; those of its layer stand in the row of its first site."""
    return [
        one.layer if first else "",
        one.product,
        one.words,
        _number(one.energy),
        _ratio(one.noise.mean, one.energy),
        "–" if one.predicted is None else _ratio(one.predicted, one.energy),
        "–" if one.bound is None else _ratio(one.bound, one.energy),
        "–" if one.bound is None else _ratio(one.noise.mean, one.bound),
        _arrival(found, one.layer) if first else "",
    ]


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
    assert found.contributions is not None
    whole, parts = found.total.noise, found.contributions.sum()
    deviating = [
        one.name
        for one in (*found.tensors, found.total)
        if not found.contributions.sum(one.name).agrees(one.noise.mean, one.noise.error)
    ]
    ratio = f"{parts.mean / whole.mean:.3g} of" if whole.mean > 0 else "as much as"
    where = (
        f"; they differ by more than 4 sigma in {listed(deviating, MOST_NAMES)}"
        if deviating
        else ", equal within 4 sigma"
    )
    return f"Alone the layers add {ratio} the noise that they add together{where}."


def _number(value: float) -> str:
    """Return three significant digits; a dash for NaN."""
    return "–" if np.isnan(value) else f"{value:.3g}"


def _measured(value: Measured | None) -> str:
    """Return a mean with its standard error; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value.mean:.3g} ± {value.error:.1g}"


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
    total, rho = found.total, found.total.rho
    numbers = {"tensors with a bias, outside the band of chance": f"{len(found.biased)} of {len(found.tensors)}"}
    if rho is not None:
        numbers["rho = W / V of the whole gradient"] = f"{rho.mean:.3g} ± {rho.error:.1g}"
        if total.inside_band:
            numbers["of the samples is what a step is worth, 1 / (1 + rho)"] = f"{1 / (1 + rho.mean):.1%}"
        else:
            numbers["bias² / W; no number of samples averages a bias out"] = _ratio(total.bias.mean, total.noise.mean)
    if total.minibatch.mean > 0:
        numbers["signal / V: |E g|² over the variance"] = f"{total.signal / total.minibatch.mean:.3g}"
    text = (
        f"Noise that the plan ({found.plan}) adds to each weight gradient, beside the variance that the gradient has "
        "from minibatch to minibatch anyway. " + _bias_words(found)
    )
    sections = [Section(text=text, numbers=numbers)]
    sections.append(Section("Weight gradients", figures=[found.plot(), _bias_figure(found)], tables=[found.table()]))
    if found.contributions is not None:
        sections.append(_origins(found, found.contributions))
    if found.sites:
        text = (
            "Noise that each treatment adds to its layer's gradient G, before any product: measured on the exact "
            "gradient of the first minibatch, predicted by the law of |G|, and bounded by the StatQuant paper, where "
            "they apply."
        )
        quantizers = Section("The quantizers themselves", text, figures=[_quantizers(found)])
        sections += [quantizers, Section(tables=[found.layers_table()])]
    return sections


def _bias_figure(found: Variance) -> Figure:
    known = [one for one in found.tensors if one.noise.mean > 0]
    series = {
        "estimate": [one.bias.mean / one.noise.mean for one in known],
        "end of the band of chance": [one.band / one.noise.mean for one in known],
    }
    return bars([one.name for one in known], series, "Bias; above its band it is none of chance", "|bias|² / W")


def _origins(found: Variance, matrix: Contributions) -> Section:
    text = (
        "Each row treats one layer alone; the columns show the noise that reaches each weight gradient, in units of "
        f"that gradient's own V. {_sum_words(found)}"
    )
    units = np.array([one.minibatch.mean for one in found.tensors])
    values = matrix.noise[:, :-1] / np.where(units > 0, units, np.inf)
    names = [one.name for one in found.tensors]
    drawn = heat_map(
        values, matrix.layers, names, "Contributions", unit="W / V", x_label="weight gradient", y_label="treated layer"
    )
    return Section("Where the noise comes from", text, figures=[drawn])


def _quantizers(found: Variance) -> Figure:
    def over_energy(values: Sequence[float | None]) -> list[float]:
        return [
            math.nan if value is None else value / one.energy for value, one in zip(values, found.sites, strict=True)
        ]

    series = {"measured": over_energy([one.noise.mean for one in found.sites])}
    series["predicted by the law"] = over_energy([one.predicted for one in found.sites])
    series["the paper's bound"] = over_energy([one.bound for one in found.sites])
    known = {label: values for label, values in series.items() if np.isfinite(values).any()}
    names = [f"{one.layer} {one.product}" for one in found.sites]
    return bars(names, known, "Noise of the quantizers", "E|Q(G) − G|² / |G|²", log=True)
