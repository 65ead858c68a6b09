"""Findings as sentences: every number is computed, and every sentence stays true whatever the numbers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from lograd.errors import plural

from .findings import LAWS, LOW_BITS, PERCENT, PRUNING_LAWS, SPARSE, Finding, Layer
from .racing import DENSE
from .sooner import FAST, Sooner
from .tasks import Task

REAL = (
    "What is simulated: rounding gives values of few bits in float32, so the time of FP6 shows what rounding costs, "
    "not what fewer bits gain. What is real: products of pruned gradients skip the zeros, on the CPU. These models are "
    "small; the gain grows with the layers."
)


def signed(value: float, digits: int) -> str:
    """A number with its sign, and 0 without one."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if float(f"{value:.{digits}f}") else f"{0:.{digits}f}"


def score(task: Task, value: float) -> str:
    """A score with its unit."""
    return f"{value:.{task.score_digits}f}" + (f" {task.score_unit}" if task.score_unit else "")


def verdict(task: Task, difference: float) -> Literal["better", "worse", "level"]:
    """How a way ended against dense, by what is good for the score."""
    if not float(f"{difference:.{task.score_digits}f}"):
        return "level"
    return "better" if (difference > 0) == task.higher_is_better else "worse"


def compared(task: Task, difference: float) -> str:
    """How a way ended against dense, with the size of the difference."""
    size, judged = f"{abs(difference):.{task.score_digits}f}", verdict(task, difference)
    return judged if judged == "level" else f"{size} {task.difference_unit} {judged}"


def sooner(found: Sooner) -> str:
    """A sentence on the seconds of the wide network, dense and accelerated."""
    task = found.task
    name = f"the {task.model_name}"
    if not found.gained:
        return f"lograd.accelerate left {name} alone: {found.found}"
    dense, fast = (f"{score(task, found.score(way))} after {found.seconds(way):.1f} s" for way in (DENSE, FAST))
    return (
        f"{task.steps} steps of {name} are {speed(found.ratio)} with lograd.accelerate: {fast}, against {dense} dense"
    )


def speed(ratio: float) -> str:
    """A ratio of dense time to time: `1.32 times faster`, `1.08 times slower`, `as fast`."""
    size = max(ratio, 1 / ratio)
    if f"{size:.2f}" == "1.00":
        return "as fast"
    return f"{size:.2f} times {'faster' if ratio > 1 else 'slower'}"


def faster(finding: Finding, way: str) -> tuple[float, float]:
    """Dense time over time, of the step and of its backward."""
    dense, result = finding.result(DENSE), finding.result(way)
    return dense.milliseconds / result.milliseconds, dense.backward / result.backward


def speeds(findings: Sequence[Finding]) -> str:
    """A sentence on the time that pruning saves, as measured here."""
    parts = []
    for finding in findings:
        step, backward = (speed(ratio) for ratio in faster(finding, SPARSE))
        parts.append(f"on {finding.task.name} the backward is {backward} and the step {step}")
    return f"With {SPARSE}, {'; '.join(parts)}, as measured"


def spread(task: Task, values: Sequence[float]) -> str:
    """The least and the largest of some differences."""
    return f"{signed(min(values), task.score_digits)} to {signed(max(values), task.score_digits)}"


def training(findings: Sequence[Finding]) -> str:
    """A sentence on how the ways to train ended."""
    parts = []
    for way in (LOW_BITS, SPARSE):
        ends = " and ".join(
            f"{compared(finding.task, finding.result(way).difference)} on {finding.task.name}" for finding in findings
        )
        parts.append(f"with {way} {ends}")
    return f"Against dense, training ends {'; '.join(parts)}"


def seeds(finding: Finding) -> str:
    """A sentence on how far seeds differ."""
    task, dense = finding.task, finding.result(DENSE)
    text = f"On {task.name} the dense {task.model_name} ends at {score(task, dense.score)} {task.score_name}"
    if len(dense.scores) > 1:
        text += (
            f"; its {len(dense.scores)} runs alone differ by up to "
            f"{max(dense.scores) - min(dense.scores):.{task.score_digits}f} {task.difference_unit} from seed to seed"
        )
    return text + "."


def median_distances(findings: Sequence[Finding]) -> dict[str, float]:
    """The median KS distance over all layers to each law."""
    return {law: median(layer.distances[law] for layer in _layers(findings)) for law in LAWS}


def laws(findings: Sequence[Finding]) -> str:
    """A sentence on the nearest law."""
    middle = median_distances(findings)
    best = min(middle, key=lambda law: middle[law])
    others = " and ".join(f"{value:.2f} to {law}" for law, value in middle.items() if law != best)
    near = "are near-lognormal" if best == "lognormal" else f"are nearest to the {best} law here"
    return f"The gradients of these networks {near}: a median KS distance of {middle[best]:.2f}, against {others}"


def exceptions(findings: Sequence[Finding]) -> str:
    """Which layers are nearer to another law than to lognormal."""
    layers = list(_layers(findings))
    others = [layer for layer in layers if layer.nearest != "lognormal"]
    text = f"Of the three, lognormal is the nearest in {len(layers) - len(others)} of {len(layers)} layers."
    if others:
        sigmas = [layer.profile.sigma for layer in others]
        names = ", ".join(f"`{layer.name}` ({layer.nearest})" for layer in others)
        text += (
            f" Nearer to another law are {names}, with σ, the standard deviation of ln|g|, from {min(sigmas):.2f} to "
            f"{max(sigmas):.2f}; a normal law has 1.11."
        )
    return text


def formats(findings: Sequence[Finding]) -> str:
    """A sentence on formats and their predicted errors."""
    gap = max(layer.rounding.gap for layer in _layers(findings) if layer.rounding)
    return (
        f"Each layer gets its own {LOW_BITS}, and the error predicted for rounding to nearest is {gap:.1%} off at most"
    )


def format_counts(findings: Sequence[Finding]) -> str:
    """How many layers have each format."""
    counts = Counter(str(layer.rounding.format) for layer in _layers(findings) if layer.rounding)
    return ", ".join(f"{name} in {plural(count, 'layer')}" for name, count in counts.most_common())


def cosines(findings: Sequence[Finding]) -> str:
    """A sentence on the least cosines."""
    found = []
    for finding in findings:
        least = min(layer.zeros.cosine for layer in finding.layers if layer.zeros)
        found.append(f"{least:.2f} on {finding.task.name}")
    return " and ".join(found)


def zeros(findings: Sequence[Finding]) -> str:
    """A sentence on the zeros got while training."""
    miss = max(finding.trained_miss() for finding in findings)
    return f"While training, every layer has its share of zeros to within {100 * miss:.1f} points"


def law_misses(findings: Sequence[Finding]) -> str:
    """A sentence on how far each law's threshold misses."""
    misses = {law: 100 * max(finding.law_miss(law) for finding in findings) for law in PRUNING_LAWS}
    parts = ", ".join(f"{miss:.1f} from the {law} law" for law, miss in misses.items())
    return f"With {PERCENT} asked of each layer, thresholds miss by up to so many points: {parts}."


def costs(findings: Sequence[Finding]) -> str:
    """A sentence on time and bits."""
    bits = [value for finding in findings if (value := finding.result(LOW_BITS).bits) is not None]
    return f"{speeds(findings)}; {LOW_BITS} would fit in {_range(bits, 1)} bits per element"


def _range(values: Sequence[float], digits: int = 2) -> str:
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _layers(findings: Sequence[Finding]) -> Iterable[Layer]:
    return (layer for finding in findings for layer in finding.layers)
