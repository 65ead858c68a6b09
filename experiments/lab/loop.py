"""Training in a folder: log.jsonl has a line for each evaluation, checkpoint.pt all that a restart needs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW

from lograd import Plan
from lograd.files import replace_file
from lograd.progress import progress

from .config import Config, metric_of
from .datasets import Dataset, load_data
from .session import Diverged, Session, loss_of, preserved

CHECKPOINT_SECONDS = 60.0
"""Seconds of training between checkpoints."""


def build_model(config: Config, data: Dataset) -> nn.Module:
    """Return the model with its initial weights, which follow from the seed."""
    torch.manual_seed(config.seed)
    model = config.task.build(**data.sizes, width=config.width).train()
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def session_of(config: Config, data: Dataset, plan: Plan | None = None) -> Session:
    """Return the training that a config asks for, at its first step."""
    model = build_model(config, data)
    lr, decay = config.lr or 0.0, config.weight_decay or 0.0
    optimizer: torch.optim.Optimizer
    if config.optimizer == "sgd":
        optimizer = SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    else:
        optimizer = AdamW(model.parameters(), lr=lr, weight_decay=decay)
    total = config.total_steps(data.steps_per_epoch)
    attaching: dict[str, Any] = (
        {"seed": config.seed, "backend": config.backend, "start": config.start} if plan is not None else {}
    )
    return Session(
        model, data.batches(), loss_of, optimizer, plan, rate=lambda step: config.rate(step, total),
        weights=config.weights, **attaching,
    )  # fmt: skip


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, kind: Any) -> dict[str, float]:
    """Return loss and metric over the test part; the model is in training mode again afterwards."""
    loss, correct, targets = 0.0, 0, 0
    model.eval()
    for inputs, wanted in data.test_batches():
        logits = model(inputs)
        loss += float(loss_of(logits, wanted)) * wanted.numel()
        correct, targets = correct + int((logits.argmax(-1) == wanted).sum()), targets + wanted.numel()
    model.train()
    loss /= targets
    return {"loss": loss, metric_of(kind).name: loss / math.log(2) if kind == "text" else correct / targets}


def train(config: Config, folder: Path, stop: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Train by a config, or go on with the training in the folder, and return its result as plain values.

    A loss that is not finite is a result too, with the status "diverged".

    Args:
        stop: called after each step with its number; an exception that it raises ends the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, checkpoint = folder / "log.jsonl", folder / "checkpoint.pt"
    with preserved(config.threads):
        data = load_data(config)
        session = session_of(config, data, config.load_plan())
        total, every = config.total_steps(data.steps_per_epoch), config.evaluate_every or data.steps_per_epoch
        seconds, lines = list[float](), list[dict[str, Any]]()
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            session.load_state_dict(state["session"])
            session.batches, seconds = data.batches(session.steps), state["seconds"]
            lines = [one for line in log.read_text().splitlines() if (one := json.loads(line))["step"] <= session.steps]
        replace_file(log, "".join(json.dumps(line) + "\n" for line in lines).encode())
        saved, status, reason = time.perf_counter(), "finished", ""
        with progress(folder.name, total - session.steps) as advance:
            while session.steps < total:
                try:
                    session.step()
                except Diverged as error:
                    status, reason = "diverged", str(error)
                    break
                seconds.append(session.times.batch + session.times.step)
                if session.steps == total or session.steps % every == 0:
                    lines.append(_line(session, data, config, sum(seconds)))
                    with log.open("a") as file:
                        file.write(json.dumps(lines[-1]) + "\n")
                if session.steps == total or time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    _save(checkpoint, session, seconds)
                    saved = time.perf_counter()
                advance(1)
                if stop is not None:
                    stop(session.steps)
        counters = None if session.handle is None else session.handle.counters()
        session.close()
    return {
        "status": status, "reason": reason, "steps": session.steps, "final": lines[-1] if lines else None,
        "tests": lines, "skipped_steps": session.skipped, "seconds": sum(seconds),
        "seconds_per_step": median(seconds) if seconds else None,
        "sparsity": None if counters is None else {name: one.sparsity for name, one in counters.layers.items()},
    }  # fmt: skip


def _line(session: Session, data: Dataset, config: Config, seconds: float) -> dict[str, Any]:
    """Return an evaluation, with the zeros of treated gradients since the start."""
    total = None if session.handle is None else session.handle.counters().total
    zeros = None if total is None or not total.elements else total.zeros_after / total.elements
    judged = evaluate(session.model, data, config.task.kind)
    return {"step": session.steps, **judged, "sparsity": zeros, "seconds": round(seconds, 4)}


def _save(path: Path, session: Session, seconds: list[float]) -> None:
    whole = path.with_suffix(".new")
    torch.save({"session": session.state_dict(), "seconds": seconds}, whole)
    whole.replace(path)
