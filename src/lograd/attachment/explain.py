"""Explains an attached plan: exact counts, a line of text for each layer, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import final

from rich.text import Text
from torch import nn

from ..engine.backends.choice import INTEGER, SPARSE, Choice
from ..engine.layer import LayerEngine
from ..engine.layers import ON_META, plain_name, unwrapped
from ..engine.site import COUNTERS, NANOSECONDS, PASSES, Site
from ..errors import InvalidValue, LogradWarning, plural
from ..plan import Plan
from ..treatments import BACKWARD, SYMBOLS, Numbers, Prediction, Treatment, mixes
from ..treatments.verdicts import verdict
from .guard import ActiveGuard
from .refresh import Cost, OperandStatistics
from .selection import untreated_parts

# -- counts --


@final
@dataclass(frozen=True)
class Count:
    """Sums over all treated gradients of a layer, or of a model."""

    passes: int = 0
    """Gradients that came by."""
    treated: int = 0
    """Treated copies: one for each gradient, or two where the two products differ."""
    passed_through: int = 0
    """Copies that were to be treated, and came before there were statistics, or were kept as they are by the guard."""
    elements: int = 0
    """Elements of the treated copies; all counts below are of these."""
    zeros_before: int = 0
    zeros_after: int = 0
    clipped: int = 0
    """Elements beyond the largest value of a format; under a Hadamard transform, of the transformed and padded rows."""
    pruned: int = 0
    """Elements that pruning has made zero."""
    underflowed: int = 0
    """Elements that were not zero before a format rounded them, and are: too small for it.

    Treatments of rows and blocks may fill zeros in as well; then it is the difference, and never below 0.
    """
    nan: int = 0
    """NaN in the result."""
    fell_back: int = 0
    """Copies that were not finite, so that their products were dense where integer ones were in force."""

    rows: int = 0
    """Rows of gradients that came to products which may skip rows; the two below are of these."""
    rows_zero: int = 0
    """Rows that were zero as they came."""
    rows_kept: int = 0
    """Rows that were multiplied."""

    @property
    def sparsity(self) -> float:
        """The share of exact zeros in what was handed to the products."""
        return self.zeros_after / self.elements if self.elements else 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, int]:
        """Return the counts as plain values, by name; `fell_back` and rows only where there are any."""
        seldom = ("fell_back", "rows", "rows_zero", "rows_kept")
        return {name: value for name, value in asdict(self).items() if value or name not in seldom}


@final
@dataclass(frozen=True, repr=False)
class Counters:
    """All that was counted: in total, by layer, and by layer and site.

    A site is named by product and operand, as in "weight_gradient.gradient"; "gradient" alone where one treated copy
    serves both products.  Sums are of gradients: treated weights and activations are in `sites` only.
    """

    total: Count
    layers: dict[str, Count]
    sites: dict[str, dict[str, Count]]

    def __repr__(self) -> str:
        treated = f"{plural(self.total.treated, 'gradient')} treated, {self.total.sparsity:.1%} zeros"
        return f"Counters({plural(len(self.layers), 'layer')}, {treated})"

    def metrics(self) -> dict[str, float]:
        """Return the totals as one flat dictionary."""
        total = self.total
        counted = {name: getattr(total, name) for name in ("treated", "passed_through", "clipped", "nan", "fell_back")}
        return {f"lograd/{name}": value for name, value in (counted | {"sparsity": total.sparsity}).items()}

    def gradients(self, layer: str) -> dict[str, Count]:
        """Return the counts of a layer's sites of the gradient."""
        return {name: count for name, count in self.sites[layer].items() if name.endswith("gradient")}


def read_counters(layers: Mapping[str, LayerEngine]) -> Counters:
    """Return the counters of attached layers."""
    by_layer, by_site = {}, {}
    for name, layer in layers.items():
        by_site[name] = {site: _count(found) for site, found in layer.sites.items()}
        gradients = [by_site[name][site] for site in layer.gradient.sites]
        by_layer[name] = _sum([Count(passes=int(layer.gradient.seen[PASSES])), *gradients])
    return Counters(_sum(by_layer.values()), by_layer, by_site)


def _count(site: Site) -> Count:
    value = dict(zip(COUNTERS, site.counters.tolist(), strict=True))
    # Zeros stay zeros under every treatment of single elements, so the new ones are the difference; a treatment of rows
    # or blocks may fill some of them.
    new = max(value["zeros_after"] - value["zeros_before"], 0)
    if not mixes(site.sentence):
        value["pruned"] = new if any(one.makes_zeros for one in site.sentence) else 0
    return Count(**value, underflowed=max(new - value["pruned"], 0))


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())


# -- in words --


@final
class Explanation(str):
    """One line for each linear layer and convolution and for what is not treated, and a summary.

    It is a string, with its parts beside it.
    """

    layers: dict[str, str]
    summary: str

    def __new__(cls, layers: dict[str, str], summary: str) -> Explanation:
        width = max(map(len, layers), default=0)
        lines = [*(f"{name:<{width}}  {text}" for name, text in layers.items()), summary]
        made = super().__new__(cls, "\n".join(lines))
        made.layers, made.summary = layers, summary
        return made

    def __repr__(self) -> str:
        return self[:]

    def __rich__(self) -> Text:
        return Text(self[:])  # layer names may hold brackets, which are no markup

    def __reduce__(self) -> tuple[type[Explanation], tuple[dict[str, str], str]]:
        return Explanation, (self.layers, self.summary)


@dataclass(frozen=True)
class Progress:
    """How far a handle is: steps made, the first that is treated, the cost of all statistics, the loss scale now."""

    steps: int
    start: int
    cost: Cost
    loss_scale: float


def explain(
    model: nn.Module,
    plan: Plan,
    layers: Mapping[str, LayerEngine],
    statistics: Mapping[str, OperandStatistics],
    progress: Progress,
    left_alone: Mapping[str, str],
    converted: Mapping[str, str],
    beside: Mapping[str, str],
    guard: ActiveGuard | None,
    warning: str,
) -> Explanation:
    """Return what a handle does to each layer of its model, and a summary.

    Args:
        statistics: those of the gradients, by layer.
        left_alone: the reason for layers that the plan does not treat, by name.
        converted: the reason for layers that were converted since to what is not treated, by name.
        beside: words for what is done beside layers, by name.
        guard: the guard at work.
        warning: of noise that explodes; empty where there was none.
    """
    counts = read_counters(layers)
    lines: dict[str, str] = {}
    step = plan.evidence.step
    left = untreated_parts(model, step)
    for name in (plain_name(name) for name, _ in unwrapped(model).named_modules()):
        if name in layers and name in converted:
            before = counts.layers[name].treated
            lines[name] = f"not treated: {converted[name]}"
            lines[name] += f"; {plural(before, 'gradient')} treated before" if before else ""
        elif name in layers:
            lines[name] = _line(layers[name], statistics.get(name), counts.layers[name], progress)
            if progress.steps < progress.start:
                lines[name] += f"; treated from step {progress.start} on"
            elif guard is not None and (words := guard.words(name)):
                lines[name] += f"; {words}"
        elif name in left_alone:
            lines[name] = left_alone[name]
        for part in left.pop(name, ()):
            lines[part.name] = part.words(step)
    lines |= {part.name: part.words(step) for parts in left.values() for part in parts}
    lines |= beside
    if plan.channels_last:
        lines["layout"] = "outputs of integer convolutions lie channels-last"
    summary = _counted(counts.total, progress.steps, guard is not None, not {*converted.values()} <= {ON_META})
    if progress.cost.refreshes:
        summary += f"; {_taken(progress, layers)}"
    if step is not None:
        summary += f".\n{step.division(plan.evidence.work)}"
    if guard is not None:
        summary += f".\nGuard: {guard.summary()}"
    if warning:
        summary += f".\nWarning: {warning}"
    return Explanation(lines, summary + ".")


def _counted(total: Count, steps: int, guarded: bool, converted: bool) -> str:
    """Return how many gradients were treated, in words."""
    why = "without statistics or by the guard" if guarded else "before there were statistics"
    why += " or in a type that is not treated" if converted else ""
    return (
        f"{plural(steps, 'step')}; {plural(total.treated, 'gradient')} treated, {total.passed_through:,} passed "
        f"through {why}; {plural(total.elements, 'element')}, {total.sparsity:.1%} zeros"
    )


def _taken(progress: Progress, layers: Mapping[str, LayerEngine]) -> str:
    """Return the cost of all statistics in words."""
    cost, steps = progress.cost, progress.steps
    inside = sum(int(one.seen[NANOSECONDS]) for layer in layers.values() for one in layer.operands.values())
    milliseconds = cost.milliseconds + inside / 1e6
    each, share = milliseconds / cost.refreshes, cost.steps / max(steps, 1)
    return (
        f"{cost.refreshes:,} statistics taken at {each:.2f} ms each in {share:.0%} of the steps, "
        f"{milliseconds / max(steps, 1):.2f} ms a step on average"
    )


def _line(layer: LayerEngine, statistics: OperandStatistics | None, count: Count, progress: Progress) -> str:
    """Return what is said of one layer; `statistics` are those of its gradient."""
    gradient = layer.gradient
    # Where tensors of another type came, the choice among products of codes is in force nowhere.
    choices = {name: one for name, one in layer.choices.items() if layer.coded or SPARSE in one.serving}
    unused = _unused(layer)
    parts = [
        _label(name) + _site(site, operand.ready, choices.get(name))
        for operand in layer.operands.values()
        for name, site in operand.sites.items()
        if name not in unused
    ]
    if "output" in choices:
        parts.append(f"Y: {layer.choices['output'].words()}")
    text = "; ".join([*parts, *_bits(layer, unused)])
    if statistics is None:
        return f"{text or 'unchanged by plan'}; {plural(count.passes, 'gradient')} came by"
    if not count.passes:
        if progress.steps:
            return (
                f"{text}; but no gradient came by: its forward did not run (a parent such as nn.MultiheadAttention "
                "uses its weight directly), or nothing needed its gradient"
            )
        return f"{text}; waits for its first gradient"
    if statistics.problem:
        text += f"; the last statistics were of no use: {statistics.problem}"
    if not gradient.ready:
        return f"{text}; passes through" + _until(statistics)
    text += f"; {count.sparsity:.1%} zeros so far"
    if layer.why_dense:
        text += f", dense products: {layer.why_dense}"
    if statistics.table is None:
        return text
    scale = progress.loss_scale
    predicted, bounds = statistics.predictions(scale), statistics.bounds(scale)
    cosine = " and ".join(_cosine(one, bounds.get(name)) for name, one in predicted.items() if name not in unused)
    return f"{text}; statistics of step {statistics.step}; predicted cosine {cosine}"


def _until(statistics: OperandStatistics) -> str:
    """Return how long a gradient passes through, or why; empty where a guard says so."""
    if not statistics.treats:
        return ""
    known = statistics.table is not None
    return " in this step, a reference for the guard" if known else " until handle.step() has statistics"


def _cosine(predicted: Prediction | None, bound: Prediction | None) -> str:
    """Return a predicted cosine in words, or the least that it is; `bound` has at least as much noise."""
    known = predicted or bound
    if known is None:
        return "unknown"
    return f"{'' if predicted else 'at least '}{known.cosine:.3f} ({verdict(known.cosine)})"


def _unused(layer: LayerEngine) -> set[str]:
    """Return the sites of a gradient in a product that nobody needs, such as dX of the first layer."""
    used = {name: bool(site.counters.any()) for name, site in layer.gradient.sites.items()}
    return {name for name, one in used.items() if not one} if any(used.values()) else set()


def _bits(layer: LayerEngine, unused: set[str]) -> list[str]:
    """Return whether few bits are real, in products and memory, or simulated; nothing without rounding."""
    if not any(one.element_bits is not None for site in layer.sites.values() for one in site.treatments):
        return []
    if not layer.coded:
        levels = any(site.levels or site.per_sample or site.block_levels for site in layer.sites.values())
        return [f"bits are simulated: {layer.why_simulated}" if levels else "bits are simulated"]
    choices = {name: choice for name, choice in layer.choices.items() if name not in unused}
    real = [name for name, choice in choices.items() if choice.in_force == INTEGER]
    if len(real) == len(choices):
        return ["bits are real"]
    other = f": {layer.why_simulated}" if layer.why_simulated else ""
    parts = [*(["what is saved"] if layer.saves_codes else []), *(_product(name) for name in real)]
    return [f"bits are real in {' and '.join(parts)} only{other}" if parts else f"bits are simulated{other}"]


def _product(name: str) -> str:
    """Return the symbols of the products of a choice."""
    return {"output": "Y", "gradient": "dX and dW"}.get(name) or SYMBOLS[name.partition(".")[0]]


def _label(site: str) -> str:
    """Return the words before a site: none for a gradient that both products share."""
    product, _, operand = site.rpartition(".")
    if not product:
        return "" if operand == "gradient" else f"{operand}: "
    return f"{SYMBOLS[product]}: " if operand == "gradient" else f"{operand} of {SYMBOLS[product]}: "


def _site(site: Site, ready: bool, choice: Choice | None) -> str:
    numbers = site.numbers_and_memory() if ready else site.remembered()
    parts = [_treatment(one, values) for one, values in zip(site.treatments, numbers, strict=True)]
    text = ", then ".join([*_rows(site), *parts])
    return text if choice is None else f"{text}, {choice.words()}"


def _rows(site: Site) -> list[str]:
    """Return what becomes of the rows of a gradient; nothing where all are multiplied."""
    if site.rows is None:
        return []
    rows, zero, kept = (int(site.counters[COUNTERS.index(name)]) for name in ("rows", "rows_zero", "rows_kept"))
    if not rows:
        return [str(site.rows)]
    return [f"{site.rows}: {kept / rows:.0%} of the rows are multiplied, which is real ({zero / rows:.0%} were zero)"]


def _treatment(treatment: Treatment, numbers: Numbers) -> str:
    shown = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
    return f"{treatment} ({shown})" if shown else str(treatment)


# -- warnings --


def warn_of_useless_formats(plan: Plan, loss_scale: float | None) -> None:
    """Warn of a format made for a scaled loss where the loss is not scaled: most gradients would become zero."""
    layers = [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    for one in (one for layer in layers for name in BACKWARD for one in layer.site(name, "gradient")):
        if loss_scale is None and one.overflows:
            warnings.warn(
                f"{one} is for a loss that a GradScaler scales, and without one most gradients become zero; "
                "give attach(..., loss_scale=scaler.get_scale()).",
                LogradWarning,
                stacklevel=3,
            )
            return


def warn_of_skipped_layers(plan: Plan, treated: int, skipped: Mapping[str, str]) -> None:
    """Warn of layers that the plan names and that cannot be treated; refuse a plan that treats no layer at all.

    Args:
        treated: the number of layers that are treated.
        skipped: the layers that are left alone, and why.
    """
    if not treated and (plan.layers or plan.every is not None):
        found: dict[str, str] = {}
        for name, reason in skipped.items():
            found.setdefault(reason, f"{name!r} is {reason}")
        reasons = "; ".join(list(found.values())[:3]) or "it has no linear layer or convolution"
        raise InvalidValue(f"the plan treats no layer of this model: {reasons}.")
    if left := {name: skipped[name] for name in plan.layers if name in skipped}:
        name, reason = next(iter(left.items()))
        warnings.warn(
            f"{len(left)} of the {len(plan.layers)} layers of the plan cannot be treated, such as {name!r}, {reason}; "
            "handle.explain() names all.",
            LogradWarning,
            stacklevel=3,
        )


def warn_of_converted_layers(reasons: Mapping[str, str], layers: int) -> bool:
    """Warn of layers that pass everything through, as the model was converted after `attach`; return True if any do.

    Args:
        reasons: why, by layer; a layer on the meta device computes nothing, which whoever put it there knows.
        layers: how many layers the plan treats.
    """
    reasons = {name: reason for name, reason in reasons.items() if reason != ON_META}
    if not reasons:
        return False
    name, reason = next(iter(reasons.items()))
    warnings.warn(
        f"{len(reasons)} of the {plural(layers, 'layer')} of the plan pass through unchanged since the model was "
        f"converted, such as {name!r}: {reason}; convert it back, or remove the plan.",
        LogradWarning,
        stacklevel=3,
    )
    return True


def warn_of_untreated_gradients(total: Count, steps: int, start: int, seen: int) -> None:
    """Warn, where a plan is taken off, that it has treated nothing, and why.

    Args:
        total: all that was counted.
        steps: how often handle.step() was called.
        start: the first step that was to be treated.
        seen: gradients that came by, in the layer with the most.
    """
    # Where step() was never called, only the gradients that came by tell how far the run was.
    begun = steps > start or (not steps and seen > start)
    if total.passed_through and not total.treated and begun:
        warnings.warn(
            f"no gradient was treated: {total.passed_through} passed through unchanged while handle.step() was "
            f"called {plural(steps, 'time')}; call it after each optimizer step.",
            LogradWarning,
            stacklevel=3,
        )
    elif steps and not total.passes:
        warnings.warn(
            f"no gradient came by in {plural(steps, 'step')}; if a copy of the model was trained, attach to the copy.",
            LogradWarning,
            stacklevel=3,
        )
