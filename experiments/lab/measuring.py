"""Numbers that a run reports of itself: means over an interval, an evaluation, zeros and bits of treated gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lograd import Handle
from lograd.treatments import Sentence

from .data import Dataset
from .tasks import Kind

FULL_BITS = 32
"""Bits of a gradient element that is not rounded: float32."""


INTERVALS = "intervals"
"""The field of a line with the errors of clipped gradients, by layer."""
EDGE_BYTES, EDGE_RATIO = "edge_bytes", "edge_ratio"
"""The fields of a line with what has crossed the compressed edges of a pipeline."""
COMMON = (
    "kind", "step", "epoch", "lr", "seconds", "sparsity", "bits", "skipped", INTERVALS, EDGE_BYTES, EDGE_RATIO,
)  # fmt: skip
"""Fields that every line of metrics may have, whatever the metric."""


class Metric(NamedTuple):
    """The number that a task is judged by."""

    name: str
    words: str
    higher_is_better: bool
    percent: bool = False
    """A share, shown in percent."""
    tested: bool = True
    """Measured by evaluations; else the numbers of the training steps are all there is."""

    @property
    def kind(self) -> str:
        """The kind of the lines of metrics that have it."""
        return "test" if self.tested else "train"


ACCURACY = Metric("accuracy", "accuracy", True, percent=True)
BITS_PER_CHARACTER = Metric("bits_per_character", "bits per character", False)
BUILT_IN = (ACCURACY, BITS_PER_CHARACTER)
LOSS = Metric("loss", "training loss", False, tested=False)
"""The metric by which runs of a user's model without one of its own are compared."""


def own_metric(name: str, higher_is_better: bool) -> Metric:
    """A metric of the user's."""
    words = name.replace("_", " ")
    return Metric(name, words if higher_is_better else f"{words} (lower is better)", higher_is_better)


def metric_of(kind: Kind) -> Metric:
    """The metric of built-in models, by the kind of their data."""
    return BITS_PER_CHARACTER if kind == "text" else ACCURACY


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy over all targets, in nats."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def correct_in(logits: Tensor, targets: Tensor) -> int:
    """How many targets have the largest logit."""
    return int((logits.argmax(-1) == targets).sum())


@final
@dataclass
class Interval:
    """Sums since the last line of metrics.  Plain numbers, since a checkpoint may fall inside an interval."""

    loss: float = 0.0
    correct: int = 0
    targets: int = 0
    elements: int = 0
    zeros: int = 0
    bits: float = 0.0
    """Like elements and zeros, what `treated` said when the interval began: the counters are never reset."""

    def add(self, loss: float, correct: int, targets: int) -> None:
        """Add a step."""
        self.loss += loss * targets
        self.correct += correct
        self.targets += targets

    def judged(self, metric: Metric) -> dict[str, float]:
        """Means of the interval: the loss, and the metric of a built-in model."""
        loss = self.loss / max(self.targets, 1)
        if metric not in BUILT_IN:
            return {"loss": loss}
        value = self.correct / max(self.targets, 1) if metric is ACCURACY else loss / math.log(2)
        return {"loss": loss, metric.name: value}

    def restart(self, treated: TreatedSums) -> None:
        """Begin the next interval, with what was treated by now."""
        self.loss, self.correct, self.targets = 0.0, 0, 0
        self.elements, self.zeros, self.bits = treated

    def to_json(self) -> dict[str, Any]:
        """The sums as plain values."""
        return asdict(self)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module has its own mode again afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, metric: Metric) -> dict[str, float]:
    """Loss and metric over the test part; the model is in training mode again afterwards."""
    sums = Interval()
    model.eval()
    for inputs, targets in data.test_batches():
        logits = model(inputs)
        sums.add(float(loss_of(logits, targets)), correct_in(logits, targets), targets.numel())
    model.train()
    return sums.judged(metric)


class TreatedSums(NamedTuple):
    """Sums over the gradients that were treated since the start."""

    elements: int = 0
    zeros: int = 0
    bits: float = 0.0

    def since(self, earlier: Interval | TreatedSums) -> dict[str, float | None]:
        """The share of zeros and the mean width, of what was treated in between."""
        elements = self.elements - earlier.elements
        if not elements:
            return {"sparsity": None, "bits": float(FULL_BITS)}
        return {
            "sparsity": (self.zeros - earlier.zeros) / elements,
            "bits": (self.bits - earlier.bits) / elements,
        }


def treated(handle: Handle | None) -> TreatedSums:
    """Sums over all gradients that a handle has treated; zeros without a handle."""
    if handle is None:
        return TreatedSums()
    elements, zeros, bits = 0, 0, 0.0
    counters = handle.counters()
    for name, layer in handle.layers.items():
        for site, count in counters.gradients(name).items():
            elements, zeros = elements + count.elements, zeros + count.zeros_after
            bits += count.elements * width_of(layer.gradient.sites[site].treatments)
    return TreatedSums(elements, zeros, bits)


def width_of(treatments: Sentence) -> float:
    """Bits of an element after the treatments: those of the narrowest format in the sentence."""
    widths = [one.element_bits for one in treatments]
    return float(min((width for width in widths if width is not None), default=FULL_BITS))
