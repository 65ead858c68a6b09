"""The theory at work: real gradients of a small network, and what their law says about bits and zeros.

The network learns synthetic images (bars at eight angles, in noise), so that the demo needs no data.  Nothing is
attached to its training: the gradients are looked at, and formats and thresholds are applied to copies of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .laws import Empirical, HalfNormal, Law, LogNormal, ks_distance, qq
from .laws.law import Values
from .report import Bars, Chart, Histogram, Line, Page, Points
from .simulate import Estimate, prune, quantize
from .theory import allocate, best_format, cosine, float_formats, relative_error, scale, sparsity, threshold
from .theory.allocation import Method

STEPS = 40
CLASSES = 8
TARGET = 0.85
METHODS: tuple[Method, Method] = ("uniform", "cosine")
PRUNING_LAWS: dict[str, type[Law]] = {"half-normal": HalfNormal, "lognormal": LogNormal, "empirical": Empirical}


@dataclass(frozen=True, eq=False)
class LayerGradient:
    """The neural gradient of one layer, at one step: its nonzero magnitudes and its share of exact zeros."""

    name: str
    magnitudes: Values
    zero_share: float

    @property
    def count(self) -> int:
        return round(self.magnitudes.size / (1 - self.zero_share))


def train_and_capture(steps: int = STEPS, progress: Callable[[int], None] = lambda step: None) -> list[LayerGradient]:
    """Train a small convolutional network and return the gradient of every layer's output at the last step."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, CLASSES),
        )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    captured: dict[str, Any] = {}

    def watch(name: str, output: Any) -> None:
        output.register_hook(lambda gradient: captured.__setitem__(name, gradient.detach()))

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            label = f"{type(module).__name__.lower()} {name}"
            module.register_forward_hook(lambda _m, _i, output, label=label: watch(label, output))
    for step in range(steps):
        images, labels = _bars(generator)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        progress(step + 1)
    layers = []
    for name in sorted(captured, key=lambda label: int(label.split()[1])):
        flat = captured[name].double().abs().flatten().numpy()
        layers.append(LayerGradient(name, flat[flat > 0], float(np.mean(flat == 0))))
    return layers


def _bars(generator: Any, batch: int = 64, size: int = 16) -> tuple[Any, Any]:
    """Bars at one of several angles, shifted at random, in noise twice as strong as the bar."""
    import torch

    labels = torch.randint(0, CLASSES, (batch,), generator=generator)
    angle = labels[:, None, None] * (torch.pi / CLASSES)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    shift = torch.rand(batch, 1, 1, generator=generator) * 6 - 3
    distance = (row - size / 2) * torch.cos(angle) + (column - size / 2) * torch.sin(angle) - shift
    images = (distance.abs() < 1.5).float() + 2 * torch.randn(batch, size, size, generator=generator)
    return images[:, None], labels


@dataclass(frozen=True, eq=False)
class Finding:
    """What the laws say about one layer, beside what was measured on its gradient."""

    layer: LayerGradient
    lognormal: LogNormal
    empirical: Empirical
    ks: dict[str, float]
    format: str
    predicted_error: float
    measured_error: float
    got: dict[str, float]
    """Sparsity reached when each law is asked for TARGET, by its name."""
    predicted_cosine: float
    measured_cosine: float


def examine(layer: LayerGradient, bits: int = 6) -> Finding:
    x = layer.magnitudes
    lognormal, empirical = LogNormal.fit(x), Empirical.fit(x)
    format = best_format(empirical, bits)
    factor = float(scale(empirical, format))
    rounded = quantize(x, format, factor)
    asked = max((TARGET - layer.zero_share) / (1 - layer.zero_share), 1e-6)
    got = {}
    for name, family in PRUNING_LAWS.items():
        a = float(threshold(family.fit(x), asked))
        got[name] = layer.zero_share + (1 - layer.zero_share) * float(np.mean(prune(x, a) == 0))
    a = float(threshold(empirical, asked))
    pruned = prune(x, a)
    return Finding(
        layer,
        lognormal,
        empirical,
        {name: ks_distance(family.fit(x), x) for name, family in PRUNING_LAWS.items() if name != "empirical"},
        str(format),
        float(relative_error(empirical, format, factor)),
        float(np.mean(np.abs(rounded - x) / x)),
        got,
        float(cosine(empirical, a)),
        float(x @ pruned / np.linalg.norm(x) / np.linalg.norm(pruned)),
    )


def simulated_table(sigmas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0), samples: int = 200_000) -> list[list[str]]:
    """For each sigma of log2|g|: the formats chosen, and predicted against simulated error and sparsity."""
    rows = []
    for sigma in sigmas:
        law = LogNormal.from_log2(0.0, sigma)
        chosen = [best_format(law, bits) for bits in (4, 6, 8)]
        x = law.sample(samples, seed=int(10 * sigma))
        six = chosen[1]
        error = Estimate.of(np.abs(quantize(x, six, float(scale(law, six))) - x) / x)
        a = float(threshold(law, TARGET))
        zeros = Estimate.of(prune(x, a) == 0)
        rows.append(
            [f"{sigma:g}", *map(str, chosen), f"{relative_error(law, six, scale(law, six)):.4f}"]
            + [f"{error.mean:.4f} ± {error.band:.4f}", f"{a:.4g}", f"{zeros.mean:.4f} ± {zeros.band:.4f}"]
            + [f"{cosine(law, a):.3f}"]
        )
    return rows


SIMULATED_COLUMNS = [
    "sigma_log2", "FP4", "FP6", "FP8", "FP6 error", "simulated (± 4 s.e.)",
    f"threshold, {TARGET:.0%}", "zeros simulated", "cosine",
]  # fmt: skip

LAYER_COLUMNS = [
    "layer", "elements", "zeros already", "sigma (ln)", "KS lognormal", "KS half-normal", "best FP6",
    "error predicted", "error measured",
]  # fmt: skip

SPARSITY_COLUMNS = ["layer", *(f"got, {name} law" for name in PRUNING_LAWS), "cosine predicted", "cosine measured"]


def layer_rows(findings: list[Finding]) -> list[list[str]]:
    return [
        [f.layer.name, f"{f.layer.count:,}", f"{f.layer.zero_share:.1%}", f"{f.lognormal.sigma:.2f}"]
        + [f"{f.ks['lognormal']:.3f}", f"{f.ks['half-normal']:.3f}", f.format]
        + [f"{f.predicted_error:.4f}", f"{f.measured_error:.4f}"]
        for f in findings
    ]


def sparsity_rows(findings: list[Finding]) -> list[list[str]]:
    return [
        [f.layer.name, *(f"{share:.1%}" for share in f.got.values())]
        + [f"{f.predicted_cosine:.3f}", f"{f.measured_cosine:.3f}"]
        for f in findings
    ]


def build_page(findings: list[Finding], simulated: list[list[str]], footer: str) -> Page:
    """The report: gradients, formats, zeros, and how far prediction and measurement agree."""
    conv = findings[1]
    error_gap = max(abs(f.predicted_error / f.measured_error - 1) for f in findings)
    sparsity_gap = max(abs(f.got["empirical"] - TARGET) for f in findings if f.layer.zero_share < TARGET)
    page = Page(
        "lograd: fewer bits and more zeros, from the law of the gradient",
        "Real gradients of a small network on synthetic images; formats and thresholds by theory; nothing is tuned.",
        footer,
    )
    page.metrics(
        [
            (f"{np.median([f.ks['lognormal'] for f in findings]):.2f}", "KS distance to lognormal",
             f"median over layers; half-normal {np.median([f.ks['half-normal'] for f in findings]):.2f}"),
            (f"{100 * error_gap:.1f} %", "largest gap, predicted to measured error", "FP6, all layers, empirical law"),
            (f"{100 * sparsity_gap:.2f} points", "largest miss of the sparsity asked",
             f"{TARGET:.0%} asked, empirical law"),
        ]
    )  # fmt: skip
    page.heading("1. Neural gradients are near-lognormal")
    page.text(
        f"The gradient of the loss with respect to each layer's output, at step {STEPS}. Its magnitudes span many "
        "octaves: on a linear axis a spike at zero with a long tail, which no normal law describes. Behind BatchNorm "
        "and "
        "ReLU there are two modes: where ReLU masked a position, the backward pass of BatchNorm leaves a small value. "
        "A lognormal is near, and one histogram is exact."
    )
    page.charts(_histogram(conv), _linear_histogram(conv), _qq(conv), _ks(findings))
    page.table(LAYER_COLUMNS, layer_rows(findings), "Laws and the best 6-bit format of each layer", "l" + 8 * "r")
    page.heading("2. How few bits: the error of every split, before any training run")
    page.text(
        "The mean relative error of rounding to 1-E-M, computed from the layer's histogram, and measured by rounding "
        "the gradient itself. Each format is at the scale that puts the mean of log2|g| in the middle of its range."
    )
    page.charts(*(_error_chart(finding) for finding in (findings[0], conv)))
    page.heading("3. How many zeros: the sparsity that was asked for")
    page.text(
        f"Stochastic pruning to {TARGET:.0%} zeros. A threshold from the half-normal law (what earlier methods assume) "
        "or from a fitted lognormal misses; one from the histogram does not."
    )
    page.charts(_sparsity_chart(conv), _allocation_chart(findings))
    page.table(
        SPARSITY_COLUMNS, sparsity_rows(findings), f"{TARGET:.0%} asked; zeros that were there included", "l" + 5 * "r"
    )
    page.heading("4. The same theory on exact lognormal gradients")
    page.table(SIMULATED_COLUMNS, simulated, "Predicted beside simulated, 200,000 draws each", "l" + 8 * "r")
    page.note(
        "Simulated versus real: rounding a float32 tensor to 6 bits saves nothing by itself, and zeros save time only "
        "where a product skips them. This page shows what the numbers would be, not a speed-up."
    )
    return page


def _histogram(finding: Finding) -> Chart:
    edges = finding.empirical.edges[::4]
    density = np.diff(finding.empirical.cdf(edges)) / np.diff(np.log2(edges))
    centres = np.sqrt(edges[1:] * edges[:-1])
    marks: list[Histogram | Line] = [Histogram(edges, density, "gradient")]
    for name, law in (("lognormal", finding.lognormal), ("half-normal", HalfNormal.fit(finding.layer.magnitudes))):
        marks.append(Line(centres, np.diff(law.cdf(edges)) / np.diff(np.log2(edges)), name))
    return Chart(f"{finding.layer.name}: magnitudes, log axis", "|g|", "share per octave", marks, x_scale="log2")


def _linear_histogram(finding: Finding) -> Chart:
    x = finding.layer.magnitudes
    edges = np.linspace(0.0, float(np.quantile(x, 0.99)), 61)
    heights = np.histogram(x, edges)[0] / x.size / np.diff(edges)
    centres = (edges[1:] + edges[:-1]) / 2
    marks: list[Histogram | Line] = [Histogram(edges, heights, "gradient")]
    for name, law in (("lognormal", finding.lognormal), ("half-normal", HalfNormal.fit(x))):
        marks.append(Line(centres, np.diff(law.cdf(edges)) / np.diff(edges), name))
    return Chart(
        f"{finding.layer.name}: magnitudes, linear axis", "|g|", "density", marks,
        y_range=(0.0, float(heights[1] * 2.5)), note="Up to the 99th percentile; the first bin is cut off.",
    )  # fmt: skip


def _qq(finding: Finding) -> Chart:
    x = finding.layer.magnitudes
    marks: list[Line | Points] = []
    for name, law in (("lognormal", finding.lognormal), ("half-normal", HalfNormal.fit(x))):
        data = qq(law, x, 60)
        marks.append(Points(data.law, data.data, name))
    low, high = float(np.quantile(x, 0.01)), float(np.quantile(x, 0.99))
    return Chart(
        f"{finding.layer.name}: Q-Q", "quantile of the fitted law", "quantile of |g|",
        [*marks, Line([low, high], [low, high], "equal", dashed=True)], x_scale="log10", y_scale="log10",
    )  # fmt: skip


def _ks(findings: list[Finding]) -> Chart:
    names = [f.layer.name for f in findings]
    bars = [Bars(names, [f.ks[law] for f in findings], law) for law in ("lognormal", "half-normal")]
    return Chart("Distance from each law", "layer", "KS distance (0 is perfect)", bars)


def _error_chart(finding: Finding) -> Chart:
    x = finding.layer.magnitudes
    marks: list[Line | Points] = []
    for index, bits in enumerate((4, 6, 8)):
        formats = float_formats(bits)
        factors = [float(scale(finding.empirical, format)) for format in formats]
        exponents = [format.exponent for format in formats]
        predicted = [relative_error(finding.empirical, f, s) for f, s in zip(formats, factors, strict=True)]
        measured = [np.mean(np.abs(quantize(x, f, s) - x) / x) for f, s in zip(formats, factors, strict=True)]
        marks += [Line(exponents, predicted, f"FP{bits}", color=index), Points(exponents, measured, color=index)]
    return Chart(
        f"{finding.layer.name}: error of each split", "exponent bits", "mean relative error", marks, y_scale="log10",
        note="Lines: predicted. Points: measured on the gradient.",
    )  # fmt: skip


def _sparsity_chart(finding: Finding) -> Chart:
    x = finding.layer.magnitudes
    thresholds = np.geomspace(float(np.quantile(x, 0.02)), 30 * float(x.max()), 60)
    measured = [float(np.mean(prune(x, float(a)) == 0)) for a in thresholds[::5]]
    laws: dict[str, Law] = {name: family.fit(x) for name, family in PRUNING_LAWS.items()}
    lines = [
        Line(thresholds, sparsity(law, thresholds), name, dashed=name != "empirical") for name, law in laws.items()
    ]
    return Chart(
        f"{finding.layer.name}: zeros over threshold", "threshold", "share of nonzero elements pruned",
        [*lines, Points(thresholds[::5], measured, "measured")], x_scale="log2", y_percent=True,
    )  # fmt: skip


def _allocation_chart(findings: list[Finding]) -> Chart:
    laws, counts = [f.empirical for f in findings], [f.layer.count for f in findings]
    zeros = [f.layer.zero_share for f in findings]
    names = [f.layer.name for f in findings]
    uniform, common = (allocate(laws, counts, TARGET, method, zero_share=zeros) for method in METHODS)
    bars = [Bars(names, uniform, "uniform"), Bars(names, common, "largest common cosine")]
    return Chart(f"{TARGET:.0%} over all elements, split over layers", "layer", "share of zeros", bars, y_percent=True)
