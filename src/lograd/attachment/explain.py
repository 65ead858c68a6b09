"""An attached plan in words: what it does to each layer, and why it leaves others alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from rich.text import Text
from torch import nn

from ..engine.backends.choice import INTEGER, SPARSE, Choice
from ..engine.layer import LayerEngine
from ..engine.layers import ON_META, plain_name, unwrapped
from ..engine.site import COUNTERS, NANOSECONDS, Site
from ..errors import plural
from ..plan import Plan
from ..treatments import SYMBOLS, Numbers, Prediction, Treatment
from ..treatments.verdicts import verdict
from .counters import Count, read_counters
from .guard import ActiveGuard, Growth
from .refresh import Cost, OperandStatistics
from .untreated import untreated_parts


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


def explain(
    model: nn.Module,
    layers: dict[str, LayerEngine],
    statistics: dict[str, OperandStatistics],
    skipped: dict[str, str],
    steps: int,
    cost: Cost,
    loss_scale: float,
    growth: Growth | None,
    start: int,
    plan: Plan,
    beside: dict[str, str],
    guard: ActiveGuard | None = None,
    converted: Mapping[str, str] | None = None,
) -> Explanation:
    """Return what a handle does to each layer of its model, and a summary.

    Args:
        layers, skipped: layers that are treated, and those that are left alone with the reason, by name.
        statistics: those of the gradients, by layer.
        steps, start: steps made so far, and the first that is treated.
        cost: of all statistics.
        loss_scale: the one in force.
        growth: of noise, where it was warned of.
        beside: words for what is done beside layers, by name.
        guard: the guard at work.
        converted: layers that were converted since to what is not treated, by name with the reason.
    """
    converted = converted or {}
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
            lines[name] = _line(layers[name], statistics.get(name), counts.layers[name], steps, loss_scale)
            if steps < start:
                lines[name] += f"; treated from step {start} on"
            elif guard is not None and (words := guard.words(name)):
                lines[name] += f"; {words}"
        elif name in skipped:
            lines[name] = skipped[name]
        for part in left.pop(name, ()):
            lines[part.name] = part.words(step)
    lines |= {part.name: part.words(step) for parts in left.values() for part in parts}
    lines |= beside
    if plan.channels_last:
        lines["layout"] = "outputs of integer convolutions lie channels-last"
    summary = _counted(counts.total, steps, guard is not None, not {*converted.values()} <= {ON_META})
    if cost.refreshes:
        summary += f"; {_taken(cost, layers, steps)}"
    if step is not None:
        summary += f".\n{step.division(plan.evidence.work)}"
    if guard is not None:
        summary += f".\nGuard: {guard.summary()}"
    if growth is not None:
        summary += f".\nWarning: {growth}"
    return Explanation(lines, summary + ".")


def _counted(total: Count, steps: int, guarded: bool, converted: bool) -> str:
    """Return how many gradients were treated, in words."""
    why = "without statistics or by the guard" if guarded else "before there were statistics"
    why += " or in a type that is not treated" if converted else ""
    return (
        f"{plural(steps, 'step')}; {plural(total.treated, 'gradient')} treated, {total.passed_through:,} passed "
        f"through {why}; {plural(total.elements, 'element')}, {total.sparsity:.1%} zeros"
    )


def _taken(cost: Cost, layers: dict[str, LayerEngine], steps: int) -> str:
    """Return the cost of all statistics in words."""
    inside = sum(int(one.seen[NANOSECONDS]) for layer in layers.values() for one in layer.operands.values())
    milliseconds = cost.milliseconds + inside / 1e6
    each, share = milliseconds / cost.refreshes, cost.steps / max(steps, 1)
    return (
        f"{cost.refreshes:,} statistics taken at {each:.2f} ms each in {share:.0%} of the steps, "
        f"{milliseconds / max(steps, 1):.2f} ms a step on average"
    )


def _line(layer: LayerEngine, statistics: OperandStatistics | None, count: Count, steps: int, loss_scale: float) -> str:
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
        if steps:
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
    predicted, bounds = statistics.predictions(loss_scale), statistics.bounds(loss_scale)
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
