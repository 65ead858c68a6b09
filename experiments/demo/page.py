"""The page of the demo: the result first, then the way to it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Literal

import torch

from lograd import __version__
from lograd.errors import plural
from lograd.report import Page, Tile

from . import drawing, words
from . import sooner as opening
from .findings import BITS, LAWS, LOW_BITS, PERCENT, PRUNING_LAWS, SPARSE, TARGET, Finding
from .racing import DENSE
from .sooner import Sooner
from .tables import RESULT_COLUMNS, result_rows

LAW_COLUMNS = ("layer", "elements", "σ of ln|g|", *(f"KS {law}" for law in LAWS), "nearest")
FORMAT_COLUMNS = (
    "layer", "format", "relative error predicted", "measured", "cosine predicted", "measured", "zeros asked",
    "cosine predicted",
)  # fmt: skip
SPARSITY_COLUMNS = (
    "layer",
    *(f"{PERCENT}, {law} law" for law in PRUNING_LAWS),
    "asked by the plan",
    "got while training",
)


CREDITS = (
    "Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998, UCI Machine Learning "
    "Repository, doi:10.24432/C50P49, CC BY 4.0. Text: Romeo and Juliet by William Shakespeare, public domain."
)


def build(sooner: Sooner, findings: Sequence[Finding], seconds: float) -> Page:
    """The page of the demo."""
    names = " and ".join(f"a {finding.task.model_name} on {finding.task.name}" for finding in findings)
    page = Page(
        "Training sooner: few bits, many zeros, and the law of gradients",
        f"A wide network with one call of lograd.accelerate; then two small ones on real data, {names}: the law of "
        f"their gradients, what follows, and how they train with {BITS}-bit gradients and with {PERCENT} zeros.",
        f"lograd {__version__}, torch {torch.__version__}, one thread, {platform.machine()}; "
        f"{seconds:.0f} s. Made by `./dev demo`. {CREDITS}",
    )
    _sooner(page, sooner)
    page.text("Behind it is the law of gradients. What follows from it is shown on two small networks.")
    page.metrics(_tiles(findings))
    page.charts(*(drawing.loss_chart(finding) for finding in findings))
    page.note(f"{words.speeds(findings)}. {words.REAL}")
    _laws(page, findings)
    _plan(page, findings)
    _training(page, findings)
    _sparsity(page, findings)
    _costs(page, findings)
    return page


def _sooner(page: Page, sooner: Sooner) -> None:
    page.heading(f"1. {words.sooner(sooner)}")
    if sooner.gained:
        page.metrics(_sooner_tiles(sooner))
    page.charts(opening.score_chart(sooner), opening.loss_chart(sooner))
    page.note(f"lograd.accelerate: {sooner.found} Dense: float32, {sooner.layout}, the faster of two memory layouts.")
    page.code("handle = lograd.accelerate(model)  # then train as before, with handle.step() after each step")


def _sooner_tiles(sooner: Sooner) -> list[Tile]:
    """Return the tiles of the opening: how much sooner, and how good at the end."""
    task, ratio = sooner.task, sooner.ratio
    dense, fast = (sooner.seconds(way) for way in (DENSE, opening.FAST))
    judged = words.speed(ratio).split()[-1] if words.speed(ratio) != "as fast" else "as fast"
    tiles = [
        Tile(f"{ratio:.2f}×", f"{judged} training, the same steps", f"{fast:.1f} s, dense {dense:.1f} s", TONES[judged])
    ]
    found = words.verdict(task, sooner.difference)
    size = "level" if found == "level" else f"{words.signed(sooner.difference, task.score_digits)} points"
    label = f"{task.score_name} at the end{'' if found == 'level' else f', {found} than dense'}"
    # A difference that another seed could make is neither good nor bad.
    tone = "" if abs(sooner.difference) < sooner.spread else TONES[found]
    tiles.append(Tile(size, label, f"dense seeds differ by {sooner.spread:.{task.score_digits}f}", tone))
    return tiles


def _tiles(findings: Sequence[Finding]) -> list[Tile]:
    """Return the tiles: how well it trains with zeros, and how fast; then bits, zeros and the law."""
    tiles = []
    for finding in findings:
        step, backward = words.faster(finding, SPARSE)
        times = {"step": (step, "milliseconds"), "backward": (backward, "backward")}
        tiles.append(_score_tile(finding, SPARSE))
        tiles += [_speed_tile(finding, part, ratio, name) for part, (ratio, name) in times.items()]
    tiles += [_score_tile(finding, LOW_BITS) for finding in findings]
    shares = [finding.result(SPARSE).skippable for finding in findings]
    names = ", ".join(f"{finding.task.name} {share:.1%}" for finding, share in zip(findings, shares, strict=True))
    tiles.append(Tile(f"{min(shares):.0%}", f"of the backward's multiply-adds skippable with {SPARSE}", names))
    bits = [value for finding in findings if (value := finding.result(LOW_BITS).bits) is not None]
    tiles.append(
        Tile(
            f"{max(bits):.1f}", f"bits per gradient element with {LOW_BITS}, simulated", "dense 32; kept layers counted"
        )
    )
    middle = words.median_distances(findings)
    hint = f"median; normal {middle['normal']:.2f}"
    tiles.append(Tile(f"{middle['lognormal']:.2f}", "KS distance to lognormal", hint))
    return tiles


TONES: dict[str, Literal["", "good", "bad"]] = {
    "better": "good", "faster": "good", "worse": "bad", "slower": "bad", "level": "", "as fast": "",
}  # fmt: skip


def _score_tile(finding: Finding, way: str) -> Tile:
    task, dense, result = finding.task, finding.result(DENSE), finding.result(way)
    judged = words.verdict(task, result.difference)
    size = f"{words.signed(result.difference, task.score_digits)} {task.difference_unit}"
    label = f"{task.score_name}{'' if judged == 'level' else f', {judged} than dense'} with {way}"
    hint = f"{task.name}: {words.score(task, result.score)}, dense {words.score(task, dense.score)}"
    spread = max(dense.scores) - min(dense.scores)
    if len(dense.scores) > 1:
        hint += f"; dense seeds differ by {spread:.{task.score_digits}f}"
    # A difference that another seed could make is neither good nor bad.
    tone = "" if abs(result.difference) < spread else TONES[judged]
    return Tile("level" if judged == "level" else size, label, hint, tone)


def _speed_tile(finding: Finding, part: str, ratio: float, name: str) -> Tile:
    judged = "as fast" if words.speed(ratio) == "as fast" else "faster" if ratio > 1 else "slower"
    dense, result = (getattr(finding.result(way), name) for way in (DENSE, SPARSE))
    label = f"{part} {judged} {'as' if judged == 'as fast' else 'than'} dense with {SPARSE}"
    hint = f"{finding.task.name}: {result:.1f} ms, dense {dense:.1f} ms, as measured"
    return Tile(f"{ratio:.2f}×", label, hint, TONES[judged])


def _laws(page: Page, findings: Sequence[Finding]) -> None:
    page.heading(f"2. {words.laws(findings)}")
    page.text(
        "A neural gradient is the gradient of the loss with respect to a layer's output; g is one element of it. The "
        "KS distance is the largest gap between the distribution of |g| and that of a fitted law. "
        f"{words.exceptions(findings)}"
    )
    page.text(
        "Drawn is the layer of each model with the median distance. Behind BatchNorm and ReLU a gradient may have two "
        "modes: where ReLU masked a position, the backward of BatchNorm leaves a small value."
    )
    for draw in (drawing.histogram, drawing.qq, drawing.distances):
        page.charts(*(draw(finding) for finding in findings))
    for finding in findings:
        rows = [
            [layer.name, f"{layer.profile.elements:,}", f"{layer.profile.sigma:.2f}"]
            + [f"{layer.distances[law]:.3f}" for law in LAWS]
            + [layer.nearest]
            for layer in finding.layers
        ]
        nearest = [(row, 3 + list(LAWS).index(layer.nearest)) for row, layer in enumerate(finding.layers)]
        part = Page("").table(LAW_COLUMNS, rows, "", "lrrrrrl", nearest)
        page.fold(f"{finding.task.name}: all {len(rows)} layers in numbers", part)


def _plan(page: Page, findings: Sequence[Finding]) -> None:
    page.heading(f"3. {words.formats(findings)}")
    page.text(
        f"`profile.plan(bits={BITS})` takes for each layer the split of {BITS} bits with the least relative error, by "
        f"its own histogram: {words.format_counts(findings)}, written 1-exponent-mantissa. "
        f'`profile.plan(sparsity={TARGET}, allocation="cosine", everywhere=True)` asks to skip {PERCENT} of '
        "their work, and splits it "
        "so that the layers keep the same cosine between a gradient and its pruned copy: "
        f"{words.cosines(findings)}. The last layer is kept as it is. No format or share is tuned by "
        "training; learning rates were chosen by hand."
    )
    page.charts(*(drawing.splits(finding) for finding in findings))
    for finding in findings:
        rows: list[list[object]] = []
        for layer in finding.layers:
            rounding, zeros = layer.rounding, layer.zeros
            if rounding is None or zeros is None:
                rows.append([layer.name, "kept", None, None, None, None, None, None])
                continue
            errors = (
                rounding.predicted_error,
                rounding.measured_error,
                rounding.predicted_cosine,
                rounding.measured_cosine,
            )
            asked = [f"{zeros.asked:.1%}", f"{zeros.cosine:.3f}"]
            rows.append([layer.name, str(rounding.format), *(f"{error:.4f}" for error in errors), *asked])
        caption = (
            f"{finding.task.name}: {LOW_BITS} with the largest magnitude at the top of the range, relative error of "
            "rounding to nearest, cosine of stochastic rounding as in training; and the zeros of each layer"
        )
        page.table(FORMAT_COLUMNS, rows, caption, "ll" + "r" * 6)


def _training(page: Page, findings: Sequence[Finding]) -> None:
    page.heading(f"4. {words.training(findings)}")
    page.text(
        "Dense, with few bits, with many zeros: the same weights at the start, the same batches, the same schedule. "
        f"{' '.join(map(words.seeds, findings))} These are short runs; they show that training works, not where a long "
        "one ends."
    )
    page.charts(*(drawing.score_chart(finding) for finding in findings))
    _part(page, findings, RESULT_COLUMNS[2:5], "At the end; differences are to the dense run of the same seed")
    for finding in findings:
        task = finding.task
        page.text(
            f"{task.name}: a {task.model_name} of {finding.parameters:,} parameters; {task.data_name}; {task.steps} "
            f"steps of batch {task.batch}, {plural(task.seeds, 'seed')}; score: {task.score_name}."
        )


def _part(page: Page, findings: Sequence[Finding], columns: Sequence[str], caption: str) -> None:
    """Some columns of the results."""
    places = [0, 1, *(RESULT_COLUMNS.index(column) for column in columns)]
    rows = [[row[place] for place in places] for row in result_rows(findings)]
    page.table([RESULT_COLUMNS[place] for place in places], rows, caption, "ll" + "r" * len(columns))


def _sparsity(page: Page, findings: Sequence[Finding]) -> None:
    page.heading(f"5. {words.zeros(findings)}")
    page.text(
        "The plan's thresholds come from the histogram of each layer's gradient and follow it while training. "
        f"{words.law_misses(findings)} The normal law is what earlier methods assume, the lognormal law is the paper's."
    )
    page.charts(*(drawing.allocation(finding) for finding in findings))
    page.charts(*(drawing.zeros_by_law(finding) for finding in findings))
    for finding in findings:
        rows = [
            [layer.name, *(f"{layer.by_law[law]:.1%}" for law in PRUNING_LAWS)]
            + [f"{layer.zeros.asked:.1%}", f"{layer.zeros.trained:.1%}"]
            for layer in finding.layers
            if layer.zeros is not None
        ]
        part = Page("").table(SPARSITY_COLUMNS, rows, "", "lrrrrr")
        page.fold(f"{finding.task.name}: asked and got in numbers", part)


def _costs(page: Page, findings: Sequence[Finding]) -> None:
    page.heading(f"6. {words.costs(findings)}")
    shares = " and ".join(f"{finding.result(SPARSE).zeros:.1%} on {finding.task.name}" for finding in findings)
    page.text(
        f"{words.REAL} Bits per element are those of the formats, with kept layers at 32. Of all gradient elements, "
        f"kept layers included, {shares} are exact zeros in the run with {SPARSE}."
    )
    page.charts(drawing.times(findings), drawing.skippable(findings))
    _part(page, findings, RESULT_COLUMNS[5:], "While training: zeros and bits of the gradients, time of a step")
    page.code(
        "profile = lograd.profile(model, batches, loss)\n"
        f'plan = profile.plan(bits={BITS})  # or sparsity={TARGET}, allocation="cosine", everywhere=True\n'
        "handle = lograd.attach(model, plan)  # then train as before, and call handle.step() after optimizer.step()"
    )
