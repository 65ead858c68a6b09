"""The tables of the demo for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from lograd.text import TextTable, text_table

from . import words
from .findings import LAWS, LOW_BITS, PRUNING_LAWS, TARGET, Finding
from .racing import DENSE
from .sooner import FAST, Sooner

LAYER_COLUMNS = (
    "<model", "layer", "elements", "sigma (ln)", *(f"KS {law}" for law in LAWS), f"<{LOW_BITS}", "error predicted",
    "measured",
)  # fmt: skip
SPARSITY_COLUMNS = ("<model", "<threshold from", "asked", "least got", "most got", "largest miss")
RESULT_COLUMNS = (
    "model", "way", "score", "difference", "by seed", "zeros", "bits/element", "ms/step", "step", "ms/backward",
    "backward",
)  # fmt: skip


SOONER_COLUMNS = ("<way", "seed", "score", "difference", "seconds", "times sooner")


def tables(sooner: Sooner, findings: Sequence[Finding]) -> list[TextTable]:
    """The four tables of the demo: dense and accelerated, layers, sparsities, results."""
    return [
        text_table(words.sooner(sooner), SOONER_COLUMNS, sooner_rows(sooner), sooner.found),
        layer_table(findings),
        sparsity_table(findings),
        result_table(findings),
    ]


def layer_table(findings: Sequence[Finding]) -> TextTable:
    """Return the table of laws and formats by layer."""
    return text_table(words.laws(findings), LAYER_COLUMNS, layer_rows(findings))


def sparsity_table(findings: Sequence[Finding]) -> TextTable:
    """Return the table of zeros asked and got."""
    return text_table(words.zeros(findings), SPARSITY_COLUMNS, sparsity_rows(findings))


def result_table(findings: Sequence[Finding]) -> TextTable:
    """Return the table of the ways to train."""
    scores = "; ".join(f"{finding.task.name}: {finding.task.score_name}" for finding in findings)
    return text_table(
        words.training(findings),
        ("model", "<way", *RESULT_COLUMNS[2:]),
        result_rows(findings),
        f"Score: {scores}.\n{words.speeds(findings)}.\n{words.REAL}",
        droppable=("by seed", "bits/element", "ms/backward", "ms/step"),
    )


def sooner_rows(sooner: Sooner) -> list[list[str]]:
    """A row for each run of the wide network."""
    dense = {run.seed: run for run in sooner.of(DENSE)}
    rows = []
    for run in sooner.runs:
        base, seconds = dense[run.seed], sum(run.milliseconds) / 1e3
        against = ["–", f"{seconds:.1f}", "–"]
        if run.way == FAST:
            ratio = sum(base.milliseconds) / sum(run.milliseconds)
            against = [words.compared(sooner.task, run.final - base.final), f"{seconds:.1f}", f"{ratio:.2f}"]
        rows.append([run.way, str(run.seed), words.score(sooner.task, run.final), *against])
    return rows


def layer_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """A row for each layer: its law and its format."""
    rows = []
    for finding in findings:
        for layer in finding.layers:
            rounding = layer.rounding
            chosen = ["kept", "", ""]
            if rounding is not None:
                errors = (rounding.predicted_error, rounding.measured_error)
                chosen = [str(rounding.format), *(f"{error:.4f}" for error in errors)]
            distances = [f"{layer.distances[law]:.3f}" for law in LAWS]
            numbers = [f"{layer.profile.elements:,}", f"{layer.profile.sigma:.2f}"]
            rows.append([finding.task.name, layer.name, *numbers, *distances, *chosen])
    return rows


def sparsity_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """The laws on one step's gradient, and the empirical law while training."""
    rows = []
    for finding in findings:
        for law in PRUNING_LAWS:
            got = [layer.by_law[law] for layer in finding.treated]
            row = [f"{law} law, one gradient", f"{TARGET:.1%}", f"{min(got):.1%}", f"{max(got):.1%}"]
            rows.append([finding.task.name, *row, f"{100 * finding.law_miss(law):.1f} points"])
        zeros = [layer.zeros for layer in finding.layers if layer.zeros is not None]
        asked, trained = [one.asked for one in zeros], [one.trained for one in zeros]
        row = [
            "empirical law, training",
            f"{min(asked):.1%} to {max(asked):.1%}",
            f"{min(trained):.1%}",
            f"{max(trained):.1%}",
        ]
        rows.append([finding.task.name, *row, f"{100 * finding.trained_miss():.1f} points"])
    return rows


def result_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """A row for each way to train each model."""
    rows = []
    for finding in findings:
        task, dense = finding.task, finding.results[0]
        for result in finding.results:
            same = result is dense
            rows.append([
                task.name,
                result.way,
                words.score(task, result.score),
                "–" if same else words.compared(task, result.difference),
                "–" if same else words.spread(task, result.differences),
                f"{result.zeros:.1%}",
                "–" if result.bits is None else f"{result.bits:.1f}",
                f"{result.milliseconds:.1f}",
                "–" if same else words.speed(dense.milliseconds / result.milliseconds),
                f"{result.backward:.1f}",
                "–" if same else words.speed(dense.backward / result.backward),
            ])  # fmt: skip
    return rows
