"""When neural gradients are near-lognormal: the law of |g| over architectures, at the beginning and after some steps.

    lograd reproduce laws --data cifar100_20k.npz

Sixteen small networks with and without normalisation: their gradients before training and after a hundred steps, how
far |g| of each layer is from a fitted lognormal and a fitted half-normal law, and how many zeros each law's threshold
gives when 85 % are asked, solved from one step and applied to the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import profile
from ..laws import Empirical, HalfNormal, Law, LogNormal
from ..laws.binned import try_binned
from ..models import CharTransformer, CifarResNet, Vgg
from ..profiles import LayerProfile
from ..theory import sparsity, threshold
from ..training import InMemory, Session
from .cells import Cell, CellFolder, Found, Measured
from .experiment import Experiment
from .networks import (
    Bert,
    Recurrent,
    UNet,
    grouped_resnet,
    perceptron,
    timm_model,
    torchvision_model,
    with_activation,
    without_norm,
)
from .result import Result
from .streams import Batch, images, noisy, text

TARGET = 0.85
LAWS: dict[str, type[Law]] = {"lognormal": LogNormal, "normal": HalfNormal}
OBSERVED = 4
"""Steps that a profile looks at."""
CONTEXT = 64
CLIP = 5.0
"""The largest norm of a gradient."""
BEGINNING = "at the beginning"
Loss = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True)
class Case:
    """One architecture with what matters for the law of its gradients."""

    name: str
    norm: str
    activation: str
    kind: str
    """Its data: "image", "denoise" or "text"."""
    build: Callable[..., nn.Module]
    """The network; for text it is given the number of characters."""
    optimizer: str = "sgd"

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.norm} {self.activation}".lower()).strip("-")


def _character_model(tokens: int) -> nn.Module:
    return CharTransformer(tokens, 96, 3, 4, CONTEXT)


VIT = {"img_size": 32, "patch_size": 4, "depth": 4, "embed_dim": 96}
CASES = (
    Case("MLP", "none", "ReLU", "image", partial(perceptron, nn.ReLU, False)),
    Case("MLP", "BatchNorm", "ReLU", "image", partial(perceptron, nn.ReLU, True)),
    Case("VGG-16, 16 channels", "none", "ReLU", "image", lambda: without_norm(Vgg(100, 16))),
    Case("VGG-16, 16 channels", "BatchNorm", "ReLU", "image", lambda: Vgg(100, 16)),
    Case("VGG-16, 16 channels", "BatchNorm", "GELU", "image", lambda: with_activation(Vgg(100, 16), nn.GELU)),
    Case("ResNet-20", "BatchNorm", "ReLU", "image", lambda: CifarResNet(20, 100, 16)),
    Case("ResNet-18, torchvision", "BatchNorm", "ReLU", "image", partial(torchvision_model, "resnet18")),
    Case("ResNet-18, torchvision", "GroupNorm", "ReLU", "image", grouped_resnet),
    Case("MobileNetV3 small", "BatchNorm", "Hardswish", "image", partial(torchvision_model, "mobilenet_v3_small")),
    Case("U-Net", "none", "ReLU", "denoise", partial(UNet, norm=False), "adam"),
    Case("U-Net", "BatchNorm", "ReLU", "denoise", partial(UNet, norm=True), "adam"),
    Case("ConvNeXt atto, timm", "LayerNorm", "GELU", "image", partial(timm_model, "convnext_atto"), "adam"),
    Case("ViT, timm", "LayerNorm", "GELU", "image", partial(timm_model, "vit_tiny_patch16_224", **VIT), "adam"),
    Case("BERT, transformers", "LayerNorm", "GELU", "text", partial(Bert, context=CONTEXT), "adam"),
    Case("character transformer", "LayerNorm", "GELU", "text", _character_model, "adam"),
    Case("linear layers behind an LSTM", "none", "ReLU", "text", Recurrent, "adam"),
)  # fmt: skip


@final
@dataclass(frozen=True)
class Laws(Experiment):
    """The law of |g| in sixteen networks.

    Args:
        data: an .npz with images; without one, the digits inside the package, enlarged.
        only: networks whose name holds this text.
        steps: training steps between the two looks.
        batch: examples of a step.
    """

    words: ClassVar[str] = "how far gradients are from lognormal and normal, by architecture, before and after training"
    presets: ClassVar = {"smoke": {"steps": 2, "batch": 8, "only": "MLP"}, "cpu": {}}

    steps: int = 100
    batch: int = 32

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        source = None if self.data is None else self.data.name
        for case in self._cases():
            given = {"network": case.cell, "data": source, "steps": self.steps, "batch": self.batch}
            yield Measured(case.cell, given, partial(self._look_twice, case))

    def draw(self, folder: CellFolder) -> list[Result]:
        rows = []
        records = [(case, record) for case in self._cases() if (record := folder.record(case.cell)) is not None]
        for case, record in records:
            for when, layers in record["found"]["looks"].items():
                rows.append(_row(case, when, layers))
        sources = sorted({record["settings"]["data"] or "the digits inside the package" for _, record in records})
        claim = (
            f"The law of |g| in the layers of small networks, batch {self.batch}; images are {', '.join(sources)}, "
            "text is the play in the package. Sigma (natural log; a normal law has 1.11) and the KS distances to a "
            "fitted lognormal and a fitted half-normal law are medians over the layers. Miss: "
            f"{TARGET:.0%} zeros asked of each layer with the threshold that a law gives from one step, counted on the "
            "gradient of the next step; the median and the largest difference in points over the layers. "
            f"`lograd reproduce laws{' --data FILE' if self.data else ''}` makes this table."
        )
        names = ["sigma", "KS lognormal", "KS normal", "nearer to lognormal"]
        columns = ["network", "normalisation", "activation", "when", *names]
        columns += [f"miss, {name}" for name in ("empirical", *LAWS)]
        return [Result("laws", "The law of |g| by architecture", claim, columns, rows)]

    def _cases(self) -> list[Case]:
        return [case for case in CASES if self.only in case.name]

    def _look_twice(self, case: Case) -> Found:
        """Look at the gradients, train, and look again."""
        model, batches, loss = _prepared(case, self.data, self.batch)
        looks = {BEGINNING: _look(model, batches, loss)}
        work = InMemory(model, batches, loss, _OPTIMIZERS[case.optimizer], self.steps, clip=CLIP)
        session = Session(work, None)
        losses = [session.step() for _ in range(self.steps)]
        looks[f"after {self.steps} steps"] = _look(model, batches, loss)
        return {"looks": looks, "loss": float(np.mean(losses[-max(self.steps // 10, 1) :]))}


_OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4),
    "adam": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
}


def _prepared(case: Case, data: Path | None, batch: int) -> tuple[nn.Module, Iterator[Batch], Loss]:
    if case.kind == "text":
        windows, tokens = text(batch, CONTEXT)
        return case.build(tokens), windows, _character_loss
    if case.kind == "denoise":
        return case.build(), noisy(images(data, batch)), F.mse_loss
    return case.build(), images(data, batch), F.cross_entropy


def _character_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def _look(model: nn.Module, batches: Iterator[Batch], loss: Loss) -> list[dict[str, Any]]:
    found = profile(model, batches, loss, steps=OBSERVED, weight_gradients=False)
    return [one for layer in found.layers.values() if (one := _measured(layer)) is not None]


def _measured(layer: LayerProfile) -> dict[str, Any] | None:
    """Distances of one layer, and the zeros that each law's threshold gives one step later; None without a law."""
    laws = [record.law for record in layer.records if record.law is not None]
    if len(laws) < 2:
        return None
    misses = {name: max(_miss(one, other, name) for one, other in pairwise(laws)) for name in ("empirical", *LAWS)}
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "elements": layer.elements,
        "zeros": layer.zero_share,
        "sigma": layer.sigma,
        "ks": {name: layer.ks(family) for name, family in LAWS.items()},
        "nearest": layer.nearest_law,
        "miss": misses,
    }


def _miss(now: Empirical, later: Empirical, name: str) -> float:
    """How far the zeros of the later gradient are from TARGET if the threshold is solved from the earlier one."""
    law: Law | None = now if name == "empirical" else try_binned(LAWS[name], now).law
    return float("nan") if law is None else abs(float(sparsity(later, threshold(law, TARGET))) - TARGET)


def _row(case: Case, when: str, layers: list[dict[str, Any]]) -> Sequence[object]:
    """Medians over the layers of a look, and what each law misses in points: the median and the largest."""

    def middle(values: list[float | None]) -> float:
        return float(np.nanmedian(np.array(values, dtype=float)))

    nearer = sum(layer["ks"]["lognormal"] < layer["ks"]["normal"] for layer in layers)
    misses = [np.array([layer["miss"][name] for layer in layers], dtype=float) for name in ("empirical", *LAWS)]
    return [
        case.name, case.norm, case.activation, when,
        f"{middle([layer['sigma'] for layer in layers]):.2f}",
        *(f"{middle([layer['ks'][name] for layer in layers]):.3f}" for name in LAWS),
        f"{nearer} of {len(layers)}",
        *(f"{100 * np.nanmedian(one):.1f} / {100 * np.nanmax(one):.1f}" for one in misses),
    ]  # fmt: skip
