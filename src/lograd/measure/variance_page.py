"""The page of a measurement: rho and bias of each weight tensor, where the noise comes from, bounds and predictions."""

from __future__ import annotations

import numpy as np

from ..report import Bars, Chart, HeatMap, Line, Mark, Page, Points, Rule, TextTable, Tile
from . import variance_table as table
from .values import Findings, TensorVariance

FOOTER = "Made by lograd: Variance.to_html"
MOST_BARS = 24
"""The most tensors that are drawn as bars; more are drawn as points."""


def build(found: Findings, title: str) -> Page:
    """Return the page."""
    page = Page(title, found.plan, FOOTER)
    page.metrics(_tiles(found))
    page.text(
        "A minibatch gradient is an estimate, with the variance V. The plan adds the variance W. Their ratio "
        "rho = W / V says what that costs without a bias: about as much as a batch with 1 / (1 + rho) of the samples."
    )
    page.charts(_rho(found), _bias(found))
    page.table(*_rows(table.tensor_table(found)), table.caption(found), "lrl" + "r" * 6 + "r" * _extra(found))
    page.note(table.bias_words(found))
    if any(one.forward is not None for one in found.tensors):
        page.note(
            "The plan also quantizes the forward. That changes the gradient itself: two columns compare the exact "
            "gradient, which is that of the quantized forward, with the gradient in float32."
        )
    _origins(page, found)
    if found.sites:
        page.heading("The quantizers themselves")
        page.text(
            "Noise that each treatment adds to its layer's gradient G, before any product: measured on the exact "
            "gradient of the first minibatch, predicted by the law of |G|, and bounded by the StatQuant paper, where "
            "they apply."
        )
        page.charts(_quantizers(found))
        page.table(*_rows(table.site_table(found)), "", "lllrrrrrrrr")
    return page


def _tiles(found: Findings) -> list[Tile]:
    total, rho = found.total, found.total.rho
    tiles = []
    if rho is not None:
        fine = rho.mean < 0.1 and total.inside_band
        tone = "good" if fine else "bad" if rho.mean > 1 else ""
        worth = Tile(f"{1 / (1 + rho.mean):.1%}", "of the samples", "1 / (1 + rho), what a step is worth")
        bias = Tile(
            _share(total.bias.mean, total.noise.mean) or "–",
            "bias² / W",
            "no number of samples averages a bias out",
            "bad",
        )
        tiles += [
            Tile(f"{rho.mean:.3g}", "rho = W / V", f"± {rho.error:.1g}, whole gradient", tone),  # type: ignore[arg-type]
            worth if total.inside_band else bias,
        ]
    biased = len(found.biased)
    tiles.append(
        Tile(
            f"{biased} of {len(found.tensors)}",
            "tensors with a bias",
            "outside the band of chance, 4 sigma",
            "bad" if biased else "good",
        )
    )
    if total.minibatch.mean > 0:
        tiles.append(Tile(f"{total.signal / total.minibatch.mean:.3g}", "signal / V", "|E g|² over the variance"))
    return tiles


def _rho(found: Findings) -> Chart:
    known = [(one.name, one.rho.mean) for one in found.tensors if one.rho is not None]
    names, values = [name for name, _ in known], [value for _, value in known]
    marks: list[Mark] = [Rule(1.0, "rho = 1")] if any(value > 0.5 for value in values) else []
    if len(names) <= MOST_BARS:
        return Chart("Noise of the plan in each weight gradient", "", "rho = W / V", [Bars(names, values), *marks])
    line = Line(np.arange(len(names)), values, markers=True)
    return Chart("Noise of the plan in each weight gradient", "", "rho = W / V", [line, *marks], x_names=names)


def _bias(found: Findings) -> Chart:
    known: list[TensorVariance] = [one for one in found.tensors if one.noise.mean > 0]
    names = [one.name for one in known] or ["none"]
    places = np.arange(len(known))
    shares = [one.bias.mean / one.noise.mean for one in known]
    bands = [one.band / one.noise.mean for one in known]
    return Chart(
        "Bias of each weight gradient", "", "|bias|² / W",
        [Points(places, shares, "estimate"), Points(places, bands, "end of the band of chance")],
        x_names=names, note="An estimate above its band is a bias. Without a bias it may be negative, too.",
    )  # fmt: skip


def _origins(page: Page, found: Findings) -> None:
    matrix = found.contributions
    if matrix is None:
        return
    page.heading("Where the noise comes from")
    page.text(
        "Each row treats one layer alone; the columns show the noise that reaches each weight gradient, in units of "
        f"that gradient's own V. {table.sum_words(found)} {table.prediction_words(found)}"
    )
    units = np.array([one.minibatch.mean for one in found.tensors])
    values = matrix.noise[:, :-1] / np.where(units > 0, units, np.inf)
    names = [one.name for one in found.tensors]
    page.charts(
        HeatMap("Contributions", "weight gradient", "treated layer", names, matrix.layers, values, "W / V, by shade."),
        _additive(found),
    )
    rows = [
        [
            one.name,
            table.measured(parts),
            table.measured(one.noise),
            _share(parts.mean, one.noise.mean),
            _agreement(found, one),
        ]
        for one in (*found.tensors, found.total)
        for parts in (matrix.sum(one.name),)
    ]
    page.table(
        ("weight tensor", "sum of single layers", "whole plan W", "sum / W", "agree"), rows,
        "If noise were linear, the noises of single layers would add up to that of the plan", "lrrrl",
    )  # fmt: skip


def _agreement(found: Findings, one: TensorVariance) -> str:
    assert found.contributions is not None
    agrees = found.contributions.sum(one.name).agrees(one.noise.mean, one.noise.error)
    return "within 4 sigma" if agrees else "no"


def _share(value: float, over: float) -> str | None:
    return f"{value / over:.3f}" if over > 0 else None


def _additive(found: Findings) -> Chart:
    matrix = found.contributions
    assert matrix is not None
    names = list(matrix.layers)
    marks: list[Mark] = [Bars(names, matrix.arrived, "measured")]
    if np.isfinite(matrix.predicted).any():
        marks.append(Bars(names, matrix.predicted, "predicted by propagation"))
    what = "sum over layers of W / |dW|²"
    return Chart("What each layer adds to all weight gradients", "treated layer", what, marks)


def _quantizers(found: Findings) -> Chart:
    names = [f"{one.layer} {one.product}" for one in found.sites]
    places = np.arange(len(names))
    marks: list[Mark] = [Points(places, [one.noise.mean / one.energy for one in found.sites], "measured")]
    for label, values in (
        ("predicted by the law", [one.predicted for one in found.sites]),
        ("the paper's bound", [one.bound for one in found.sites]),
    ):
        if any(value is not None for value in values):
            relative = [
                np.nan if value is None else value / one.energy for value, one in zip(values, found.sites, strict=True)
            ]
            marks.append(Points(places, relative, label))
    return Chart("Noise of the quantizers", "", "E|Q(G) − G|² / |G|²", marks, y_scale="log10", x_names=names)


def _rows(made: TextTable) -> tuple[list[str], list[list[object]]]:
    """Return the columns and rows of a table for the terminal, for the page."""
    return [name.removeprefix("<") for name in made.columns], [list(row) for row in made.rows]


def _extra(found: Findings) -> int:
    return len(table.tensor_table(found).columns) - len(table.COLUMNS)
