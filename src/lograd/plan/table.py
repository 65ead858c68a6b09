"""A plan as a table for the terminal: the treatments of each layer, and their predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..errors import plural
from ..report import TextTable, text_table
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, SYMBOLS, Prediction, Sentence, describe
from ..treatments.verdicts import LARGE_RELATIVE_ERROR, VERDICTS_IN_WORDS, verdict
from .expected import Expected
from .forecast import Forecast
from .layer import LayerPlan
from .work import StepWork, percent

COLUMNS = ("layer", "<product", "<treatment", "elements/step", "work", "zeros", "cosine", "relative error")


class Planned(Protocol):
    """The parts of a `Plan` that its table shows."""

    @property
    def layers(self) -> Mapping[str, LayerPlan]:
        """The plan of each layer."""

    @property
    def every(self) -> LayerPlan | None:
        """The plan of all other layers."""

    @property
    def kept(self) -> Mapping[str, str]:
        """Layers that are left alone, with the reason."""

    @property
    def unpruned(self) -> Mapping[str, str]:
        """Layers that are rounded and not pruned, with the reason."""

    @property
    def work(self) -> Mapping[str, tuple[int, int]]:
        """Operations of the products for dX and dW."""

    @property
    def total_work(self) -> int:
        """Operations of the products for dX and dW of all layers."""

    @property
    def step(self) -> StepWork | None:
        """Operations of the whole training step."""

    @property
    def skipped(self) -> float:
        """The share of the products for dX and dW that predicted zeros skip."""

    @property
    def skipped_of_step(self) -> float | None:
        """The share of the whole training step that they skip."""

    @property
    def growth(self) -> Forecast | None:
        """The predicted growth of noise; None where it is not known."""

    @property
    def expected(self) -> Expected | None:
        """The predicted noise in units of the minibatch's variance; None where it is not known."""


def plan_table(plan: Planned) -> TextTable:
    """Return a row for each treated site and each kept layer, with notes below."""
    title = f"Plan for {plural(len(plan.layers), 'layer')}" + (f", {len(plan.kept)} kept" if plan.kept else "")
    total = max(plan.total_work if plan.step is None else plan.step.total, 1)
    shares = {name: (dX / total, dW / total) for name, (dX, dW) in plan.work.items()}
    rows = [row for name, layer in plan.layers.items() for row in _rows(name, layer, shares.get(name, (0.0, 0.0)))]
    if plan.every is not None:
        rows += _rows("(every other)", plan.every, (0.0, 0.0))
    rows += [[name, "", f"kept: {reason}", *[""] * 5] for name, reason in plan.kept.items()]
    return text_table(
        title, COLUMNS, rows, "\n".join(_notes(plan)),
        droppable=("elements/step", "relative error", "work", "<product"),
    )  # fmt: skip


def _rows(name: str, layer: LayerPlan, work: tuple[float, float]) -> list[list[str]]:
    """Return a row for each treated site; `work` is the share of the products for dX and dW in that of all layers."""
    sites: list[tuple[str, Sentence, Prediction | None, float]] = [
        (SYMBOLS[product], layer.site(product, "gradient"), layer.prediction(product), share)
        for product, share in zip(BACKWARD, work, strict=True)
    ]
    if sites[0][1:3] == sites[1][1:3]:
        sites = [("both", *sites[0][1:3], sum(work))]
    sites += [
        (operand if product in BACKWARD else f"{operand} of Y", found, None, 0.0)
        for product in (*BACKWARD, *PRODUCTS[:1])
        for operand in OPERANDS[product]
        if operand != "gradient" and (found := layer.site(product, operand))
    ]
    rows = []
    for product, treatments, predicted, share in sites:
        numbers = ["–"] * 3
        if predicted is not None:
            numbers = [
                f"{predicted.sparsity:.1%}",
                f"{predicted.cosine:.4f} {verdict(predicted.cosine)}",
                f"{predicted.relative_error:.4f}",
            ]
        elements = f"{layer.elements:,}" if layer.elements else "–"
        shown = percent(share) if share else "–"
        rows.append([name, product, describe(treatments), elements, shown, *numbers])
    return rows


def _notes(plan: Planned) -> list[str]:
    """Return what the columns mean, and what holds of the plan as a whole."""
    notes = []
    expected = [found for layer in plan.layers.values() for name in BACKWARD if (found := layer.prediction(name))]
    if plan.layers:
        notes.append("Zeros, cosine and relative error, the mean of |error| / |g|, are predicted.")
    if expected:
        notes.append(f"Cosine: {VERDICTS_IN_WORDS}.")
    if any(one.relative_error >= 1 and verdict(one.cosine) != "risky" for one in expected):
        notes.append(LARGE_RELATIVE_ERROR)
    if plan.unpruned:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(plan.unpruned.items())[:3])
        more = ", ..." if len(plan.unpruned) > 3 else ""
        notes.append(f"Not pruned: {len(plan.unpruned)} of the rounded layers ({reasons}{more}).")
    notes += [_bits(plan)] if _bits(plan) else []
    notes += _work_lines(plan)
    if plan.growth is not None:
        notes.append(plan.growth.words())
    if plan.expected is not None:
        notes.append(plan.expected.words())
    return notes


def _bits(plan: Planned) -> str:
    """Return whether few bits are real or simulated; empty for a plan that rounds nothing."""
    layers = [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    sentences = [layer.site(product, name) for layer in layers for product in PRODUCTS for name in OPERANDS[product]]
    if not any(one.element_bits is not None for found in sentences for one in found):
        return ""
    real = {product: all(layer.has_levels(product) for layer in layers) for product in PRODUCTS}
    if not any(layer.has_levels(product) for layer in layers for product in PRODUCTS):
        return "Bits are simulated: rounding saves neither time nor memory."
    products = " and ".join(SYMBOLS[product] for product, all_of_it in real.items() if all_of_it) or "some products"
    return (
        f"Bits are real in {products} of layers that integer products serve, unless dense ones are asked for; "
        "elsewhere they are simulated."
    )


def _work_lines(plan: Planned) -> list[str]:
    """Return what the shares in the column "work" are shares of, and what is not treated."""
    if plan.step is None:
        text = (
            "Work is the share of the products for dX and dW of the layers in this plan, kept ones included; the "
            f"whole step was not counted. Predicted zeros skip {plan.skipped:.1%} of these products."
        )
        return [text] if plan.skipped else []
    skipped = (
        f"Work is the share of the multiply-adds of the whole training step; predicted zeros skip "
        f"{percent(plan.skipped_of_step or 0.0)} of it, and {plan.skipped:.1%} of the products for dX and dW."
    )
    return [*([skipped] if plan.skipped else []), *plan.step.lines(plan.work)]
