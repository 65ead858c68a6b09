"""The charts of the demo; a colour means the same thing on the whole page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lograd.laws import Empirical, Law
from lograd.laws.binned import try_binned
from lograd.report import Band, Bars, Chart, Histogram, Line, Mark, Points, Rule
from lograd.theory import float_formats, relative_error, scale, simulate

from .findings import BITS, LAWS, LOW_BITS, PERCENT, PRUNING_LAWS, TARGET, WAYS, Finding, Layer
from .racing import Run
from .tasks import Task

WAY_COLORS = dict(zip(WAYS, (7, 0, 1), strict=True))
LAW_COLORS = dict(zip(LAWS, (1, 2, 3), strict=True))
QUANTILES = np.arange(1, 40) / 40
WINDOW = 15
"""Steps over which a loss is averaged."""


def score_chart(finding: Finding) -> Chart:
    """The score over the steps of each way to train."""
    task = finding.task
    chart = _over_runs(
        finding,
        f"{task.name}: {task.score_name} of the {task.model_name}",
        f"{task.score_name}{f', {task.score_unit}' if task.score_unit else ''}",
        list(finding.runs[0].scores),
        lambda run: list(run.scores.values()),
        _seeds(task),
        markers=True,
    )
    return _without_the_climb(chart, finding) if task.score_unit == "%" else chart


def _without_the_climb(chart: Chart, finding: Finding) -> Chart:
    """The axis of the second half: the ends of the lines are what is compared."""
    scores = [list(run.scores.values()) for run in finding.runs]
    low = 10.0 * (min(min(one[len(one) // 2 :]) for one in scores) // 10)
    if low <= min(map(min, scores)):
        return chart
    return replace(chart, y_range=(low, 100.0), note=f"{chart.note} Points below {low:.0f} % are cut off.")


def loss_chart(finding: Finding) -> Chart:
    """The training loss over the steps, smoothed."""
    task = finding.task
    window = max(1, min(WINDOW, task.steps // 4))  # a short run still has a line, and not one point

    def smooth(run: Run) -> list[float]:
        return list(np.convolve(run.losses, np.full(window, 1 / window), "valid"))

    return _over_runs(
        finding,
        f"{task.name}: training loss of the {task.model_name}",
        "cross-entropy, nats (log axis)",
        list(range(window, task.steps + 1)),
        smooth,
        f"{_seeds(task)} Smoothed over {window} steps.",
        log=True,
    )


def _over_runs(
    finding: Finding,
    title: str,
    what: str,
    steps: Sequence[int],
    values: Callable[[Run], list[float]],
    note: str,
    *,
    markers: bool = False,
    log: bool = False,
) -> Chart:
    bands: list[Mark] = []
    lines: list[Mark] = []
    for way in WAYS:
        table = np.array([values(run) for run in finding.of(way)])
        color = WAY_COLORS[way]
        if len(table) > 1:
            bands.append(Band(steps, table.min(0), table.max(0), color=color))
        # Dashed, as it often lies on the dense line.
        lines.append(Line(steps, table.mean(0), way, color, dashed=way == LOW_BITS, markers=markers))
    return Chart(
        title, "step", what, [*bands, *lines], y_scale="log10" if log else "linear", x_whole=True, note=note
    )  # fmt: skip


def _seeds(task: Task) -> str:
    if task.seeds == 1:
        return "One seed."
    return f"Lines: mean of {task.seeds} seeds. Bands: from the lowest to the highest."


def histogram(finding: Finding) -> Chart:
    """On a log axis, where a lognormal law is a bell."""
    layer = finding.typical
    data = _data(layer)
    low, high = np.log2(data.quantile([0.01, 0.9999]))
    edges = 2.0 ** np.arange(np.floor(low), np.ceil(high) + 0.25, 0.25)
    centres = np.sqrt(edges[1:] * edges[:-1])
    marks: list[Mark] = [Histogram(edges, np.diff(data.cdf(edges)) * 4, "gradient", 0)]
    for name, law in _laws(data).items():
        marks.append(Line(centres, np.diff(law.cdf(edges)) * 4, name, LAW_COLORS[name]))
    profile = layer.profile
    return Chart(
        f"{finding.task.name}, {layer.name}: magnitudes", "|g|, log axis", "share of elements per octave", marks,
        x_scale="log2", y_percent=True, note=f"{profile.elements:,} elements at step {profile.last.step}.",
    )  # fmt: skip


def qq(finding: Finding) -> Chart:
    """Quantiles of ln|g| in a typical layer against those of each law."""
    layer = finding.typical
    data = _data(layer)
    observed = data.quantile(QUANTILES)
    ends = [float(observed.min()), float(observed.max())]
    marks: list[Mark] = [Line(ends, ends, "equal", 7, dashed=True)]
    for name, law in _laws(data).items():
        marks.append(Points(law.quantile(QUANTILES), observed, name, LAW_COLORS[name]))
    return Chart(
        f"{finding.task.name}, {layer.name}: Q-Q", "quantile of the fitted law", "quantile of |g|", marks,
        x_scale="log2", y_scale="log2", note="2.5 % to 97.5 % of the elements. On the dashed line a law is exact.",
    )  # fmt: skip


def distances(finding: Finding) -> Chart:
    """The KS distance of each layer to each law."""
    names = [layer.name for layer in finding.layers]
    bars = [Bars(names, [layer.distances[law] for layer in finding.layers], law, LAW_COLORS[law]) for law in LAWS]
    note = f"Mean over {len(finding.layers[0].profile.records)} steps of the first {finding.task.scout}."
    return Chart(f"{finding.task.name}: distance from each law", "", "KS distance (0 is perfect)", bars, note=note)


def splits(finding: Finding) -> Chart:
    """The error by which a split is chosen, for the layers with the narrowest and with the widest law."""
    ordered = sorted(finding.treated, key=lambda layer: float(_data(layer).log_std))
    marks: list[Mark] = []
    for color, layer in zip((0, 1), (ordered[0], ordered[-1]), strict=False):
        data, x = _data(layer), np.abs(layer.profile.sample.astype(np.float64))
        x = x[x > 0]
        predicted, measured = [], []
        for format in float_formats(BITS):
            factor = float(scale(data, format, "max"))
            predicted.append(float(relative_error(data, format, factor)))
            measured.append(float(np.mean(np.abs(simulate.quantize(x, format, factor) - x) / x)))
        exponents = [format.exponent for format in float_formats(BITS)]
        label = f"{layer.name}, σ {float(data.log_std):.2f}"
        marks += [Line(exponents, predicted, label, color), Points(exponents, measured, color=color)]
    return Chart(
        f"{finding.task.name}: error of each {BITS}-bit split", f"exponent bits; {BITS - 1} with the mantissa",
        "mean of |Q(g) − g| / |g|, log axis", marks, y_scale="log10", x_whole=True,
        note="Lines: predicted. Points: measured. The largest magnitude is at the top; the lowest is chosen.",
    )  # fmt: skip


def allocation(finding: Finding) -> Chart:
    """Zeros asked of each layer and got while training."""
    zeros = [(layer.name, layer.zeros) for layer in finding.layers if layer.zeros is not None]
    names = [name for name, _ in zeros]
    bars = [
        Bars(names, [one.asked for _, one in zeros], "asked", 7),
        Bars(names, [one.trained for _, one in zeros], "got", WAY_COLORS[WAYS[2]]),
    ]
    rule = Rule(TARGET)
    return Chart(
        f"{finding.task.name}: zeros in each layer while training", "", "share of zeros", [*bars, rule], y_percent=True,
        y_range=(0.0, 1.0), note=f"Exact counts, without the first steps. Dashed: {PERCENT}, their mean by work.",
    )  # fmt: skip


def zeros_by_law(finding: Finding) -> Chart:
    """Zeros on one gradient if each law gives the threshold."""
    names = [layer.name for layer in finding.treated]
    colors = dict(zip(PRUNING_LAWS, (0, LAW_COLORS["lognormal"], LAW_COLORS["normal"]), strict=True))
    bars = [
        Bars(names, [100 * (layer.by_law[law] - TARGET) for layer in finding.treated], f"{law} law", colors[law])
        for law in PRUNING_LAWS
    ]
    return Chart(
        f"{finding.task.name}: what a threshold misses, by law", "", f"zeros got, in points above {PERCENT}", bars,
        note=f"{PERCENT} asked of each layer; thresholds solved for each law, applied to one step's gradient.",
    )  # fmt: skip


def times(findings: Sequence[Finding]) -> Chart:
    """Milliseconds of a step and of its backward, by task and way."""
    names = [f"{finding.task.name}, {part}" for finding in findings for part in ("step", "backward")]
    bars = []
    for way in WAYS:
        results = [finding.result(way) for finding in findings]
        heights = [time for result in results for time in (result.milliseconds, result.backward)]
        bars.append(Bars(names, heights, way, WAY_COLORS[way]))
    return Chart(
        "Time of a training step, and of its backward", "", "milliseconds, median", bars,
        note="A step: forward, backward, optimizer and treatment; the three ways in turn, step by step.",
    )  # fmt: skip


def skippable(findings: Sequence[Finding]) -> Chart:
    """The share of multiply-adds that have a zero as a factor."""
    names = [finding.task.name for finding in findings]
    columns = list(zip(*([result.skippable for result in finding.results] for finding in findings), strict=True))
    bars = [Bars(names, column, way, WAY_COLORS[way]) for way, column in zip(WAYS, columns, strict=True)]
    return Chart(
        "Multiply-adds of the backward with a zero as a factor", "", "share of all", bars, y_percent=True,
        y_range=(0.0, 1.0), note="Work that a sparse product may leave out.",
    )  # fmt: skip


def _data(layer: Layer) -> Empirical:
    law = layer.profile.law
    assert law is not None
    return law


def _laws(data: Empirical) -> dict[str, Law]:
    return {name: law for name, family in LAWS.items() if (law := try_binned(family, data).law) is not None}
