"""A run over the stages of a pipeline: each rank trains one part of the model, by a schedule of torch's own.

Every rank makes the whole model and attaches the whole plan, and runs only the layers of its stage.  So names,
optimizer and states are those of a run of one process; evaluations and checkpoints bring all weights to rank 0.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from lograd import InvalidValue, Plan
from lograd.files.checks import check_number, check_object, check_whole
from lograd.treatments import BACKWARD
from lograd.wire import CompressedStage, EdgeCount, LinkError, fail_together

from ..models import Part, cut, names_of
from .config import PLAIN
from .measuring import evaluating
from .randomness import preserved
from .ranks import Ranks
from .work import Configured, Forward

CPU = torch.device("cpu")
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
UNCHANGED = nn.Identity()
"""In the place of the model, where its outputs are at hand."""
SECONDS = ("encoding", "decoding")
"""The counts of an edge that are not whole numbers."""


@final
class Pipeline:
    """The stage of this rank, and the steps that all stages take together.

    All methods that bring something to rank 0 wait for all ranks, so each rank must call them.

    Args:
        model: the whole model, before a plan is attached.
        work: its batches and loss; the config has the settings of the pipeline.
        ranks: one for each stage.
    """

    def __init__(self, model: nn.Module, work: Configured, ranks: Ranks) -> None:
        config = work.config
        self.model, self.work, self.ranks = model, work, ranks
        self.microbatches: int = config.settled("microbatches")
        parts = cut(model, ranks.size)
        self.part = parts[ranks.rank]
        self.names = [names_of(model, part) for part in parts]
        """The names of each stage's tensors in the state_dict of the model."""
        inputs, targets = self._pair(work.peek())
        self._shapes = inputs.shape, targets.shape
        with work.words():
            passed = edge_tensors(model, parts, inputs[: len(inputs) // self.microbatches])
        edges, activations = (None if plan == PLAIN else plan for plan in (config.edges, config.activations))
        self.stage = CompressedStage(
            self.part, ranks.rank, ranks.size, CPU, *passed[ranks.rank : ranks.rank + 2],
            backward=edges, forward=activations, seed=config.seed,
        )  # fmt: skip
        self.schedule = SCHEDULES[config.settled("pipeline")](self.stage, self.microbatches, self._loss)
        self._judged: list[Forward] = []
        """The microbatches of this step, on the last rank."""
        self._scaler: torch.amp.GradScaler | None = None

    # -- a step --

    def step(self, batch: Any, scaler: torch.amp.GradScaler | None) -> tuple[float, int, int]:
        """Add the gradients of a batch to the parameters of this stage; return loss, right answers and targets.

        Args:
            scaler: of the loss; a gradient that is not finite on one rank is then seen by the scalers of all.
        """
        inputs, targets = self._pair(batch)
        if (inputs.shape, targets.shape) != self._shapes:
            found = f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
            raise InvalidValue(
                f"a batch of {self._target} has inputs and targets of shape {found}, and the first one had other "
                "shapes; a pipeline needs batches that are all alike, as drop_last=True of a DataLoader gives."
            )
        self._judged, self._scaler = [], scaler
        if scaler is not None:
            scaler.scale(torch.zeros(()))  # each rank has a scale from the first step on
        first_inputs = (inputs,) if self.stage.is_first else ()
        try:
            with fail_together(self.schedule):
                self.schedule.step(*first_inputs, target=targets if self.stage.is_last else None, return_outputs=False)
        except LinkError as error:
            raise self.ranks.lost(
                str(error.__cause__), f"stage {self.ranks.rank} was {self.stage.waiting.words()}"
            ) from error
        if scaler is not None:
            self._share_overflow()
        losses = [one.loss.item() for one in self._judged]
        loss, correct, targets_seen = self.ranks.summed(
            sum(losses) / max(len(losses), 1),
            sum(one.correct for one in self._judged),
            sum(one.targets for one in self._judged),
        )
        return loss, int(correct), int(targets_seen)

    def _loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of a microbatch, as the schedule asks for it on the last rank."""
        found = self.work.forward(UNCHANGED, (output, target))
        self._judged.append(found._replace(loss=found.loss.detach()))
        return found.loss if self._scaler is None else self._scaler.scale(found.loss)

    def _share_overflow(self) -> None:
        """Let all scalers leave out the step that one of them must: they see only the gradients of their own stage."""
        gradients = [one.grad for one in self.part.parameters() if one.grad is not None]
        finite = all(bool(one.isfinite().all()) for one in gradients)
        if self.ranks.largest(int(not finite)) and finite:
            gradients[0].fill_(torch.inf)

    @property
    def _target(self) -> str:
        return self.work.config.model

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and targets; a batch that cannot be cut into microbatches is refused in one sentence."""
        pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (None, None)
        inputs, targets = pair
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor) or not inputs.dim() or not targets.dim():
            raise InvalidValue(
                f"the batches of {self._target} must be pairs of tensors, inputs and targets, for a pipeline: the "
                "first stage takes the inputs, and the last one the targets."
            )
        if len(inputs) != len(targets) or len(inputs) % self.microbatches:
            raise InvalidValue(
                f"a batch of {self._target} has {len(inputs)} inputs and {len(targets)} targets, which are not "
                f"{self.microbatches} microbatches of one size; give batches of a multiple, or other microbatches."
            )
        return inputs, targets

    # -- what rank 0 is told --

    def collect(self) -> None:
        """Bring the weights and buffers of all stages to the model of rank 0."""
        own = self.model.state_dict()
        parts = self.ranks.at_main({name: own[name] for name in self.names[self.ranks.rank]})
        if parts:
            self.model.load_state_dict({name: value for part in parts for name, value in part.items()})

    def edges(self) -> dict[str, dict[str, float]]:
        """Return on rank 0 what has crossed each compressed edge since the start of the run, by the edge's name.

        Bytes are those of whole messages, and the ratio is that of float32 to them; seconds are those of both ends.
        """
        found: dict[str, dict[str, float]] = {}
        for stage, counts in enumerate(self.ranks.at_main(self.stage.counters())):
            for name, count in counts.items():
                edge = found.setdefault(name, {"bytes": 0, "ratio": 0.0, "overflows": 0, "seconds": 0.0})
                edge["seconds"] += count.encoding + count.decoding
                if name.startswith(f"{stage}->"):  # both ends count; the one that sends is heard
                    edge |= {"bytes": count.sent, "ratio": count.ratio, "overflows": count.overflows}
        return dict(sorted(found.items()))

    def own_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of an optimizer without what belongs to the parameters of other stages."""
        own = {id(parameter) for parameter in self.part.parameters()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept = {index: kept for index, kept in state["state"].items() if id(parameters[index]) in own}
        return state | {"state": kept}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's edges, and what has crossed them."""
        counts = {name: asdict(count) for name, count in self.stage.counters().items()}
        return {"stage": self.stage.state_dict(), "counts": counts}

    def load_state_dict(self, state: Any) -> None:
        """Go on from such a state, all of it or nothing; the model and the optimizer have their own."""
        check_object("the pipeline of the checkpoint", state, ("stage", "counts"))
        names = tuple(field.name for field in fields(EdgeCount))
        check_object("the counts of the edges", state["counts"], (), None)
        for edge, counts in state["counts"].items():
            check_object(f"the counts of edge {edge}", counts, names)
            for name, value in counts.items():
                (check_number if name in SECONDS else check_whole)(f"{name} of edge {edge}", value, 0)
        self.stage.load_state_dict(state["stage"])
        for edge, count in self.stage.counters().items():
            for name, value in state["counts"].get(edge, {}).items():
                setattr(count, name, value)


def edge_tensors(model: nn.Module, parts: list[Part], inputs: Tensor) -> list[Tensor]:
    """Return tensors without content, like those that enter the first part, pass from each to the next, and come out.

    With these the stages need no first pass of torch's own, whose numbers would be in BatchNorm and statistics.
    """
    found, x = [torch.empty_like(inputs, device="meta")], inputs
    with preserved(), evaluating(model):
        for index, part in enumerate(parts):
            x = part(x)
            if not isinstance(x, Tensor) or not x.is_floating_point():
                kind = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"an object of type {type(x).__name__}"
                raise InvalidValue(
                    f"stage {index} of {type(model).__name__} returns {kind}, and one tensor of floating-point numbers "
                    "must pass from each stage to the next."
                )
            found.append(torch.empty(x.shape, dtype=x.dtype, device="meta", requires_grad=True))
    return found


def check_plan(plan: Plan | None) -> None:
    """Refuse a plan that needs more of the model than the layers of one stage."""
    if plan is None:
        return
    layers = [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    treatments = [one for layer in layers for name in BACKWARD for one in layer.site(name, "gradient")]
    if any(layer.output.treats for layer in layers) or plan.attention or plan.normalization or plan.saved:
        raise InvalidValue(
            "a pipeline takes plans that treat gradients alone, since rank 0 evaluates the model without the "
            "statistics of other stages; this one treats the forward. Give another, such as prune85 or fp6."
        )
    if any(one.shared_sparsity is not None for one in treatments):
        raise InvalidValue(
            "a pipeline cannot share a sparsity out among the layers of all stages; give each layer its own, as "
            "prune85 does."
        )
