"""A model in training: everything that changes from step to step, and its state for a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lograd import Handle, InvalidValue, LogradError, Plan
from lograd.attachment.counters import Count
from lograd.files.atomic import CannotRead
from lograd.files.checks import check_whole
from lograd.files.seals import checksum_of_json
from lograd.treatments import BACKWARD, Treatment
from lograd.weights import WeightsHandle

from . import checkpoint
from .measuring import EDGE_BYTES, EDGE_RATIO, INTERVALS, Interval, TreatedSums, treated
from .ranks import ALONE, Ranks
from .schedules import Rates
from .work import Forward, Work

if TYPE_CHECKING:
    from .pipeline import Pipeline  # slow to import, and for pipelines alone

OPTIONAL = ("pipeline", "learned")
"""Parts that only the checkpoints of runs with them have; of others a checkpoint says that there is none."""
GUARD_FIELDS = ("layer", "before", "after", "cause", "noise")
INITIAL_LOSS_SCALE = 2.0**16
LEARNED_RATE = 1e-5
"""The largest learning rate of what a plan learns, by Adam and with the schedule of the weights, as in [kim2024]."""


@final
class Diverged(LogradError):
    """The loss is not a number any more."""


def needs_loss_scaling(plan: Plan | None) -> bool:
    """Return True if a format of the plan overflows to infinity, which a dynamic loss scale has to react to."""
    return any(one.overflows for one in treatments_of(plan))


def prunes(plan: Plan | None) -> bool:
    """Return True if the plan makes zeros that sparse products skip."""
    return any(one.makes_zeros for one in treatments_of(plan))


def has_levels(plan: Plan | None) -> bool:
    """Return True if the plan has layers whose operands are levels, so that their products may be integer ones."""
    layers = [] if plan is None else [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    return any(layer.has_levels("output") for layer in layers)


def treatments_of(plan: Plan | None) -> list[Treatment]:
    """All treatments of gradients."""
    layers = [] if plan is None else [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    return [one for layer in layers for name in BACKWARD for one in layer.site(name, "gradient")]


class StepTimes(NamedTuple):
    """Seconds of the parts of one step."""

    batch: float = 0.0
    """Making the batch."""
    forward: float = 0.0
    backward: float = 0.0
    """With the treatment of the gradients."""
    update: float = 0.0
    """The optimizer, and what the handle does between steps."""

    @property
    def step(self) -> float:
        """The whole step without making its batch."""
        return self.forward + self.backward + self.update


class Counted(NamedTuple):
    """Counts since the start of a run: of each treated layer, and of each compressed edge; None without any."""

    layers: dict[str, Count] | None
    edges: dict[str, dict[str, float]] | None


@final
class Session:
    """One run in memory.

    `step()` makes one step; `state_dict()` is all that the next one depends on.  As a context it takes its plan off the
    model at the end, and weights in low precision become plain parameters again.

    Args:
        work: what is trained.
        plan: what is done to its gradients; None trains dense.
        cut: a function of the model that makes the pipeline of a run whose ranks have a stage each.
    """

    def __init__(self, work: Work, plan: Plan | None, cut: Callable[[nn.Module], Pipeline] | None = None) -> None:
        self.work, self.metric, self.total = work, work.metric, work.total
        self.model = work.build()
        self.pipeline: Pipeline | None = None if cut is None else cut(self.model)
        """The stage of this rank; None where each rank has the whole model."""
        self.optimizer = work.optimizer(self.model)
        self.weights: WeightsHandle | None = work.store_weights(self.model, self.optimizer)
        """The handle of weights in low precision; None where weights are stored as the model has them."""
        self.rates = work.rates(self.optimizer)
        scale = INITIAL_LOSS_SCALE if needs_loss_scaling(plan) else None
        self.scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        self.handle: Handle | None = None if plan is None else work.attach(self.model, plan, scale)
        learned = [] if self.handle is None else list(self.handle.parameters())
        self.learned = torch.optim.Adam(learned, LEARNED_RATE) if learned else None
        """The optimizer of what the plan learns, such as clips; None if it learns nothing."""
        self.learned_rates = None if self.learned is None else Rates(self.learned, self.rates.rate)
        self.ranks = ALONE
        self.parallel: DistributedDataParallel | None = None
        """The model as it is called in a run of several processes; its gradients are means over ranks."""
        self.common_statistics = False
        self.interval = Interval()
        self.steps, self.seconds, self.lr = 0, 0.0, 0.0
        self.times = StepTimes()
        """Times of the last step."""
        self.ends_epoch = False
        """True if the last step was the last of its epoch."""
        self.skipped = 0
        """Steps that the loss scale left out."""
        self._told = 0
        """Changes of the guard that were handed out as lines."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self.handle is not None:
            self.handle.remove()
        if self.weights is not None:
            self.weights.__exit__(kind, *error)

    def close(self) -> None:
        """Take the plan off the model, and make weights in low precision plain parameters again."""
        self.__exit__(None)

    def join(self, ranks: Ranks, *, common_statistics: bool = False) -> None:
        """Train together with the other ranks of a run from now on; each of them must call this at the same time.

        The weights are those of rank 0, and the gradients of all ranks are averaged.  In a pipeline each rank has the
        weights of its stage.

        Args:
            common_statistics: let thresholds and scales follow from the gradients of all ranks.
        """
        self.common_statistics = common_statistics
        if ranks.size > 1 and self.pipeline is None:
            with self.work.words(), ranks.watched():
                self.parallel = DistributedDataParallel(self.model)
        self.ranks = ranks

    @property
    def epoch(self) -> float:
        """Epochs so far."""
        return self.work.epochs_at(self.steps)

    def step(self) -> float:
        """Make one optimizer step, and return the loss of its batch."""
        start = time.perf_counter()
        self.lr = self.rates.set(self.steps)
        with self.work.words(), self.ranks.watched():
            batch = self.work.take(self.steps)
            taken = time.perf_counter()
            self.optimizer.zero_grad()
            if self.learned is not None:
                self.learned.zero_grad()
            if self.pipeline is not None:
                value, correct, targets = self.pipeline.step(batch, self.scaler)
                self._check_finite(value)
                judged = taken  # forward and backward take turns, so both are times of the backward
            else:
                forward = self.work.forward(self.parallel or self.model, batch)
                value, correct, targets = self._judged(forward)
                self._check_finite(value)
                judged = time.perf_counter()
                (forward.loss if self.scaler is None else self.scaler.scale(forward.loss)).backward()  # type: ignore[no-untyped-call]
            differentiated = time.perf_counter()
            self._update()
        end = time.perf_counter()
        self.times = StepTimes(taken - start, judged - taken, differentiated - judged, end - differentiated)
        self.ends_epoch = self.work.ends_epoch(self.steps)
        if self.ends_epoch and self.handle is not None:
            self.handle.epoch()
        self.steps += 1
        self.interval.add(value, correct, targets)
        self.seconds += time.perf_counter() - start
        return value

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {self.steps + 1} of {self.total}")

    def _judged(self, forward: Forward) -> tuple[float, int, int]:
        """Return loss, right answers and targets of the whole batch, of which each rank has its part."""
        value = forward.loss.item()
        if self.parallel is None:
            return value, forward.correct, forward.targets
        total, correct, targets = self.ranks.summed(value, forward.correct, forward.targets)
        return total / self.ranks.size, int(correct), int(targets)

    def _update(self) -> None:
        """Change the weights, and tell the handle that the step is made."""
        if self.work.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.work.clip)
        optimizers: list[torch.optim.Optimizer] = [self.optimizer]
        if self.learned is not None and self.learned_rates is not None:
            self.learned_rates.set(self.steps)
            together = self.parallel is not None or isinstance(self.model, DistributedDataParallel)
            if together and self.handle is not None:
                self.handle.average_gradients()
            if any(one.grad is not None for one in self.learned.param_groups[0]["params"]):  # none before `start`
                optimizers.append(self.learned)
        for one in optimizers:
            one.step() if self.scaler is None else self.scaler.step(one)
        if self.scaler is not None:
            before = self.scaler.get_scale()
            self.scaler.update()
            self.skipped += self.scaler.get_scale() < before  # only a step with gradients out of range lowers it
        if self.handle is not None:
            if self.common_statistics:
                self.handle.sum_statistics()
            self.handle.step(loss_scale=None if self.scaler is None else self.scaler.get_scale())

    def evaluate(self) -> dict[str, float]:
        """The numbers that the model is judged by, as it is now; of several ranks the first measures them."""
        if self.pipeline is not None:
            self.pipeline.collect()
        return self.ranks.from_main(lambda: self.work.evaluate(self.model))

    def _treated(self) -> TreatedSums:
        """Return sums over the gradients that all ranks have treated since the start."""
        own = treated(self.handle)
        if self.ranks.size == 1:
            return own
        elements, zeros, bits = self.ranks.summed(*own)
        return TreatedSums(int(elements), int(zeros), bits)

    def line(self) -> dict[str, Any]:
        """The metrics of the interval that ends here; the next one begins."""
        now = self._treated()
        line = self._line("train", self.interval.judged(self.metric), now.since(self.interval)) | self._intervals()
        self.interval.restart(now)
        return line | self._edges()

    def _edges(self) -> dict[str, float]:
        """Bytes over the compressed edges of a pipeline since the start, and how many times more float32 has."""
        edges = [] if self.pipeline is None else list(self.pipeline.edges().values())
        total, plain = sum(one["bytes"] for one in edges), sum(one["bytes"] * one["ratio"] for one in edges)
        return {EDGE_BYTES: total, EDGE_RATIO: plain / total} if total else {}

    def counted(self) -> Counted:
        """Return the counts since the start, for a summary; those of a pipeline's stages together, on rank 0."""
        counters = None if self.handle is None else self.handle.counters()
        layers = None if counters is None else counters.layers
        if self.pipeline is None or layers is None:
            return Counted(layers, None if self.pipeline is None else self.pipeline.edges())
        stages = self.ranks.at_main(layers)
        together = {name: sum((stage[name] for stage in stages), Count()) for name in layers}
        return Counted(together, self.pipeline.edges())

    def guard_lines(self) -> list[dict[str, Any]]:
        """A line for each change that the guard has made since this was last called."""
        guard = None if self.handle is None else self.handle.guard
        if guard is None or len(guard.changes) == self._told:
            return []
        new, self._told = guard.changes[self._told :], len(guard.changes)
        place = {"kind": "guard", "step": self.steps, "epoch": self.epoch, "seconds": round(self.seconds, 4)}
        return [place | {name: getattr(one, name) for name in GUARD_FIELDS} for one in new]

    def _intervals(self) -> dict[str, Any]:
        """Errors of clipped gradients, by layer, from the statistics that were taken last; empty without any."""
        taken = {} if self.handle is None else self.handle.intervals()
        found = {name: one.to_json() for name, one in taken.items()}
        if self.pipeline is not None:
            found = {name: one for stage in self.ranks.at_main(found) for name, one in stage.items()}
        return {INTERVALS: found} if found else {}

    def test_line(self, judged: Mapping[str, float]) -> dict[str, Any]:
        """An evaluation, with zeros and bits since the start; JSON has no word for a number that is not finite."""
        known = {name: value if math.isfinite(value) else None for name, value in judged.items()}
        return self._line("test", known, self._treated().since(Interval()))

    def _line(self, kind: str, judged: Mapping[str, float | None], zeros: dict[str, float | None]) -> dict[str, Any]:
        place = {"kind": kind, "step": self.steps, "epoch": self.epoch}
        skipped = {} if self.scaler is None else {"skipped": self.skipped}
        return place | dict(judged) | {"lr": self.lr, "seconds": round(self.seconds, 4)} | zeros | skipped

    # -- the checkpoint --

    def save(self, path: Path, journal_bytes: int) -> None:
        """Replace the checkpoint; until the new one is whole and on the disk, the old one is the checkpoint.

        In a run of several processes each rank calls this, and rank 0 writes what all of them have.
        """
        if self.pipeline is not None:
            self.pipeline.collect()
        state = self.state_dict() | {"journal_bytes": journal_bytes}
        names = checkpoint.OF_EACH_RANK if self.pipeline is None else checkpoint.OF_EACH_STAGE
        others = self.ranks.at_main({name: state[name] for name in names})[1:]
        if self.ranks.main:
            if self.pipeline is not None:
                state["optimizer"] = checkpoint.joined([state["optimizer"], *(one.pop("optimizer") for one in others)])
            checkpoint.write(path, state | ({"ranks": others} if others else {}))

    def load(self, path: Path, ranks: Ranks = ALONE) -> int:
        """Go on from a checkpoint; the bytes of metrics that belong to it.

        Args:
            ranks: the place of this process; the checkpoint has a state for each.
        """
        state = checkpoint.read(path)
        try:
            state = checkpoint.state_of_rank(state, ranks)
            length = check_whole("journal_bytes", state.get("journal_bytes") if isinstance(state, dict) else None)
            self.load_state_dict(state)
        except InvalidValue as error:
            raise CannotRead(f"Cannot go on from the checkpoint {path}: {error}") from None
        return length

    @property
    def _settings(self) -> str:
        return checksum_of_json(self.work.settings)

    @property
    def _parts(self) -> dict[str, Any]:
        # The pipeline comes first, as it checks its state when it is loaded.
        names = ("pipeline", "model", "optimizer", "handle", "scaler", "weights", "learned")
        parts = {name: getattr(self, name) for name in names}
        return {name: part for name, part in parts.items() if part is not None or name not in OPTIONAL}

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on.

        The model's state is plain tensors, also of weights in low precision, for any program to read; the codes of
        these are beside it.
        """
        state: dict[str, Any] = {
            "version": checkpoint.VERSION,
            "settings": self._settings,
            "steps": self.steps,
            "seconds": self.seconds,
            "lr": self.lr,
            "skipped": self.skipped,
            "work": self.work.state_dict(),
            "interval": self.interval.to_json(),
            "random": torch.get_rng_state(),
        } | {name: None if part is None else part.state_dict() for name, part in self._parts.items()}
        if self.pipeline is not None:
            state["optimizer"] = self.pipeline.own_state(self.optimizer, state["optimizer"])
        return state if self.weights is None else state | {"model": self.weights.plain_state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it, or nothing: what does not fit is refused before anything is changed."""
        checkpoint.check(state, self.total, self._parts, self._settings)
        skipped = check_whole("skipped steps of the checkpoint", state.get("skipped", 0), 0, self.total)
        if self.pipeline is not None:
            state = state | {"optimizer": self.pipeline.own_state(self.optimizer, state["optimizer"])}
        self.work.load_state_dict(state.get("work"))
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.interval = Interval(**{field.name: state["interval"][field.name] for field in fields(Interval)})
        self.steps, self.seconds, self.lr = state["steps"], state["seconds"], state["lr"]
        self.skipped = skipped
        if self.handle is not None and self.handle.guard is not None:
            self._told = len(self.handle.guard.changes)  # the journal has their lines
        torch.set_rng_state(state["random"])
