"""Whole training steps in integers against FP32 in both layouts, and against bfloat16 by autocast."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import lograd
from experiments.models import CifarResNet, ResNet18

from ..models import Case as Model
from ..models import Encoder, session_of
from .cases import FP32, Call, Case, Make

WARM_UP = 24
"""Steps before the clock starts: backends are timed in the first ones, and statistics are taken in the first twenty."""


@dataclass(frozen=True)
class Step:
    """A model with the ways in which its step is timed."""

    model: Model
    bits: tuple[int, ...] = (4, 6, 8)
    attention: bool = False
    """True if its attention is tried in integers, too."""
    normalization: bool = False
    """True if BatchNorm and ReLU are tried in one pass, too."""


STEPS = (
    Step(Model("ResNet18, 32x32, batch 32", ResNet18, (32, 3, 32, 32)), normalization=True),
    Step(Model("BERT-base layer, 16 x 128", Encoder, (16, 128, 768), last=""), attention=True),
    Step(Model("ResNet-8, 16 channels, batch 128", lambda: CifarResNet(8), (128, 3, 32, 32))),
    Step(Model("ResNet-8, 16 channels, batch 8", lambda: CifarResNet(8), (8, 3, 32, 32))),
)
QUICK = (
    Step(
        Model("ResNet-8, 16 channels, batch 4", lambda: CifarResNet(8), (4, 3, 32, 32)), bits=(4,), normalization=True
    ),
)


class Autocast(nn.Module):
    """A model whose forward runs in bfloat16 where autocast says so."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the output as float32."""
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = self.model(x)
        return result.float()


def in_integers(model: Model, bits: int, attention: int | None = None, saved: int | None = None) -> lograd.Plan:
    """All products in integers; the first convolution and the last linear layer of a classifier are kept."""
    plan = lograd.Plan.uniform(f"int{bits}-full", keep=("first", "last") if model.last else ())
    return replace(plan, attention=attention, saved=saved)


def stepping(model: Model, bits: int = 32, *, last: bool = True, how: str = "") -> Make:
    """One training step of a copy of the model, after a warm-up.

    Args:
        model: what is trained, with the shape of its batch.
        bits: of all products; 32 trains as PyTorch does.
        last: images have their channels last in memory.
        how: "bfloat16" runs the forward under autocast, "attention" runs attention in 8-bit integers, "fused" computes
            BatchNorm and ReLU in one pass.
    """

    def make() -> Call:
        torch.manual_seed(0)
        plain = model.build().train()
        plan = None
        if bits != 32:
            plan = in_integers(model, bits, 8 if how == "attention" else None)
            plan = replace(plan, normalization=how == "fused")
        session = session_of(model, Autocast(plain) if how == "bfloat16" else plain, plan, last)
        for _ in range(2 if plan is None else WARM_UP):
            session.step()
        return session.step

    return make


def ways(step: Step) -> tuple[dict[str, Make], dict[str, Make]]:
    """Ours and torch's."""
    model = step.model
    others = {FP32: stepping(model), "bfloat16": stepping(model, how="bfloat16")}
    if model.last:
        others[f"{FP32}, NCHW"] = stepping(model, last=False)
    ours = {f"int{bits}-full, auto": stepping(model, bits) for bits in step.bits}
    if step.attention:
        ours |= {f"int{bits}-full, attention": stepping(model, bits, how="attention") for bits in step.bits}
    if step.normalization:
        ours |= {f"int{bits}-full, BatchNorm and ReLU fused": stepping(model, bits, how="fused") for bits in step.bits}
    return ours, others


def cases(quick: bool) -> list[Case]:
    """All models."""
    return [Case("steps", step.model.name, *ways(step)) for step in (QUICK if quick else STEPS)]
