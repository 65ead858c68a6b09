"""The page of the demo: the result first, then the way to it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lograd import __version__
from lograd.errors import plural
from lograd.laws import Law
from lograd.laws.binned import try_binned
from lograd.plots import COLORS, Section, axes, bars, histogram, lines, write_page

from . import words
from .findings import BITS, LAWS, LOW_BITS, PERCENT, PRUNING_LAWS, SPARSE, TARGET, WAYS, Finding
from .racing import DENSE, Run
from .sooner import FAST, Sooner, curve
from .tables import layer_table, result_table, sparsity_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = np.linspace(0.01, 0.99, 49)
WINDOW = 6
"""Steps over which a loss is averaged."""
CREDITS = (
    "Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998, UCI Machine Learning "
    "Repository, doi:10.24432/C50P49, CC BY 4.0. Text: Romeo and Juliet by William Shakespeare, public domain."
)


def write(path: Path, sooner: Sooner, findings: Sequence[Finding], seconds: float) -> Path:
    """Write the page and return its path."""
    sections = [_sooner(sooner), _laws(findings), _plan(findings), _training(findings), _zeros(findings)]
    footer = (
        f"lograd {__version__}, torch {torch.__version__}, one thread, {platform.machine()}; {seconds:.0f} s. "
        f"Made by ./dev demo. {CREDITS}"
    )
    return write_page(path, "Training sooner: few bits, many zeros, and the law of gradients", sections, footer)


def _sooner(sooner: Sooner) -> Section:
    task = sooner.task
    text = (
        "`handle = lograd.accelerate(model)`, then train as before, with `handle.step()` after each step.\n\n"
        f"lograd.accelerate: {sooner.found} Dense: float32, {sooner.layout}, the faster of two memory layouts. "
        f"{task.steps} steps of each, in turn; one line for each seed. The first steps are the measurement, and count; "
        "evaluations do not."
    )
    numbers = {}
    if sooner.gained:
        difference = words.signed(sooner.difference, task.score_digits)
        spread = f"{sooner.spread:.{task.score_digits}f}"
        numbers = {
            f"training, the same steps: {sooner.seconds(FAST):.1f} s, dense {sooner.seconds(DENSE):.1f} s": (
                words.speed(sooner.ratio)
            ),
            f"{task.score_name} at the end, against dense; dense seeds differ by {spread}": (
                f"{difference} {task.difference_unit}"
            ),
        }
    figures = [
        _over_seconds(sooner, task.score_name, f"{task.score_name}, {task.score_unit}", curve),
        _over_seconds(sooner, "training loss", "cross-entropy, nats", _smooth_curve),
    ]
    return Section(words.sooner(sooner), text, numbers, figures)


def _over_seconds(
    sooner: Sooner, name: str, label: str, points: Callable[[Run], Sequence[tuple[float, float]]]
) -> Figure:
    figure, ax = axes(f"{sooner.task.model_name}: {name} over time", "seconds of training", label)
    for way, color in ((DENSE, COLORS[-1]), (FAST, COLORS[2])):
        for place, run in enumerate(sooner.of(way)):
            seconds, values = zip(*points(run), strict=True)
            ax.plot(seconds, values, ".-", color=color, label=way if not place else None)
    ax.legend(frameon=False)
    return figure


def _smooth_curve(run: Run) -> list[tuple[float, float]]:
    window = max(1, min(WINDOW, len(run.losses) // 4))
    taken = list(accumulate(run.milliseconds))[window - 1 :]
    return [(after / 1e3, float(loss)) for after, loss in zip(taken, _smooth(run.losses, window), strict=True)]


def _smooth(losses: Sequence[float], window: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.convolve(losses, np.full(window, 1 / window), "valid")


def _laws(findings: Sequence[Finding]) -> Section:
    text = (
        "Behind it is the law of gradients; what follows from it is shown on two small networks. A neural gradient is "
        "the gradient of the loss with respect to a layer's output; g is one element of it. The KS distance is the "
        f"largest gap between the distribution of |g| and that of a fitted law. {words.exceptions(findings)}\n\n"
        "Drawn is the layer of each model with the median distance. Behind BatchNorm and ReLU a gradient may have two "
        "modes: where ReLU masked a position, the backward of BatchNorm leaves a small value."
    )
    figures = [draw(finding) for draw in (_histogram, _quantiles) for finding in findings]
    return Section(words.laws(findings), text, figures=figures, tables=[layer_table(findings)])


def _fitted(finding: Finding) -> dict[str, Law]:
    law = finding.typical.profile.law
    assert law is not None
    return {name: found for name, family in LAWS.items() if (found := try_binned(family, law).law) is not None}


def _histogram(finding: Finding) -> Figure:
    law = finding.typical.profile.law
    assert law is not None
    return histogram(law, _fitted(finding), f"{finding.task.name}: gradient of {finding.typical.name}")


def _quantiles(finding: Finding) -> Figure:
    law = finding.typical.profile.law
    assert law is not None
    observed = law.quantile(QUANTILES)
    series = {"equal": (observed[[0, -1]], observed[[0, -1]])}
    series |= {name: (one.quantile(QUANTILES), observed) for name, one in _fitted(finding).items()}
    style = dict.fromkeys(LAWS, ".") | {"equal": "--"}
    title = f"{finding.task.name}: quantiles of {finding.typical.name}"
    return lines(series, title, "|g| of the law", "|g| observed", log="xy", style=style)


def _plan(findings: Sequence[Finding]) -> Section:
    text = (
        f"`profile.plan(bits={BITS})` takes for each layer the split of {BITS} bits with the least relative error, by "
        f"its own histogram: {words.format_counts(findings)}, written 1-exponent-mantissa. "
        f'`profile.plan(sparsity={TARGET}, allocation="cosine", everywhere=True)` asks to skip {PERCENT} of their '
        "work, and splits it so that the layers keep the same cosine between a gradient and its pruned copy: "
        f"{words.cosines(findings)}. The last layer is kept as it is. No format or share is tuned by training; "
        "learning rates were chosen by hand."
    )
    return Section(words.formats(findings), text, figures=[_errors(finding) for finding in findings])


def _errors(finding: Finding) -> Figure:
    layers = [(layer.name, layer.rounding) for layer in finding.layers if layer.rounding is not None]
    series = {
        "predicted": [one.predicted_error for _, one in layers],
        "measured": [one.measured_error for _, one in layers],
    }
    names = [f"{name}, {one.format}" for name, one in layers]
    return bars(names, series, f"{finding.task.name}: relative error of {LOW_BITS}, to nearest", "mean |error| / |g|")


def _training(findings: Sequence[Finding]) -> Section:
    parts = [
        f"{task.name}: a {task.model_name} of {finding.parameters:,} parameters; {task.data_name}; {task.steps} steps "
        f"of batch {task.batch}, {plural(task.seeds, 'seed')}; score: {task.score_name}."
        for finding in findings
        if (task := finding.task)
    ]
    text = (
        "Dense, with few bits, with many zeros: the same weights at the start, the same batches, the same schedule. "
        f"{' '.join(map(words.seeds, findings))} These are short runs; they show that training works, not where a long "
        f"one ends.\n\n{words.REAL}\n\n" + "\n\n".join(parts)
    )
    figures = [_losses(finding) for finding in findings]
    return Section(words.training(findings), text, figures=figures, tables=[result_table(findings)])


def _losses(finding: Finding) -> Figure:
    """Draw the loss of each way, the mean over the seeds and their range."""
    window = max(1, min(WINDOW, finding.task.steps // 4))
    series, ranges = {}, {}
    for way in WAYS:
        found = np.array([_smooth(run.losses, window) for run in finding.of(way)])
        steps = np.arange(window, window + found.shape[1])
        series[way] = (steps, found.mean(0))
        if len(found) > 1:
            ranges[way] = (found.min(0), found.max(0))
    title = f"{finding.task.name}: training loss"
    return lines(series, title, "step", "cross-entropy, nats", bands=ranges)


def _zeros(findings: Sequence[Finding]) -> Section:
    text = (
        "The plan's thresholds come from the histogram of each layer's gradient and follow it while training. "
        f"{words.law_misses(findings)} The normal law is what earlier methods assume, the lognormal law is the paper's."
    )
    figures = [draw(finding) for draw in (_allocation, _misses) for finding in findings]
    return Section(words.zeros(findings), text, figures=figures, tables=[sparsity_table(findings)])


def _allocation(finding: Finding) -> Figure:
    zeros = [(layer.name, layer.zeros) for layer in finding.layers if layer.zeros is not None]
    series = {"asked": [one.asked for _, one in zeros], "got": [one.trained for _, one in zeros]}
    title = f"{finding.task.name}: zeros by layer, {SPARSE}"
    return bars([name for name, _ in zeros], series, title, "share of zeros", rule=TARGET, percent=True)


def _misses(finding: Finding) -> Figure:
    series = {f"{law} law": [100 * (layer.by_law[law] - TARGET) for layer in finding.treated] for law in PRUNING_LAWS}
    title = f"{finding.task.name}: what a threshold misses, by law"
    return bars([layer.name for layer in finding.treated], series, title, f"zeros got, in points above {PERCENT}")
