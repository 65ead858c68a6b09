"""Work at hand: a model and batches in memory, for the demo, for measurements and for benchmarks.

It is trained by the same `Session` as a run in a folder, but nothing of it can be made again in another process, so
there is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from lograd import Handle, InvalidValue, Plan, attach
from lograd.measure.loss import LossFunction
from lograd.measure.loss import loss_of as loss_of_batch

from .measuring import LOSS, evaluating, own_metric
from .randomness import preserved
from .schedules import Rate, Rates
from .work import Forward, Work

Score = Callable[[nn.Module], float]


@final
class InMemory(Work):
    """A model at hand with its batches.

        work = InMemory(model, batches, F.cross_entropy, lambda model: SGD(model.parameters(), 0.1), steps=100)
        with Session(work, plan) as session:
            losses = [session.step() for _ in range(100)]

    Args:
        model: it is trained in place.
        batches: at least as many as steps; they are asked for one by one, so they may be made on the way.
        loss: as for `lograd.profile`.
        make_optimizer: a function of the model that makes its optimizer.
        steps: how many steps the whole run has.
        rate: the learning rate from the optimizer's own and the number of the step; None keeps the optimizer's own.
        clip: the largest norm of the gradient of all parameters; None leaves gradients as they are.
        score: a number by which the model is judged, called in evaluation mode and without gradients.
        higher_is_better: True if a higher score is a better one.
        attaching: arguments of `lograd.attach` beside model and plan, such as seed and backend.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        loss: LossFunction | None,
        make_optimizer: Callable[[nn.Module], Optimizer],
        steps: int,
        *,
        rate: Rate | None = None,
        clip: float | None = None,
        score: Score | None = None,
        higher_is_better: bool = True,
        **attaching: Any,
    ) -> None:
        self.model, self.loss, self.total, self.clip = model, loss, steps, clip
        self.steps_per_epoch = None
        self.metric = LOSS if score is None else own_metric("score", higher_is_better)
        self._batches, self._make_optimizer, self._rate = iter(batches), make_optimizer, rate
        self._score, self._attaching = score, attaching

    def build(self) -> nn.Module:
        if not self.model.training:
            self.model.train()  # a model in training mode may have parts that are not, on purpose
        return self.model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self._make_optimizer(model)

    def rates(self, optimizer: Optimizer) -> Rates:
        return Rates(optimizer, self._rate)

    def attach(self, model: nn.Module, plan: Plan, loss_scale: float | None) -> Handle:
        return attach(model, plan, loss_scale=loss_scale, **self._attaching)

    def take(self, step: int) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise InvalidValue(f"there is no batch for step {step + 1} of {self.total}.") from None

    def forward(self, model: nn.Module, batch: Any) -> Forward:
        return Forward(loss_of_batch(model, batch, self.loss), 0, 1)

    def ends_epoch(self, step: int) -> bool:
        return False

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self._score is None:
            raise InvalidValue("this work was made without a score, so its model cannot be evaluated.")
        with preserved(), evaluating(model):
            return {self.metric.name: self._score(model)}

    @property
    def settings(self) -> dict[str, Any]:
        raise InvalidValue("a model in memory has no checkpoint; train it in a folder, by a Config, to resume it.")
