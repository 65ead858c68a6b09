"""A model of the user's in training: `MODULE:FUNCTION` makes it, with its batches, loss, optimizer and metric."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from lograd import InvalidType, InvalidValue
from lograd.errors import LogradWarning
from lograd.measure.loss import loss_of as loss_of_batch

from .config import USUAL, Config, check_target
from .feeding import Feed, digest
from .loading import Made, call_make, import_module, own_words, source_of
from .measuring import COMMON, LOSS, Metric, evaluating, own_metric
from .randomness import RandomState, preserved, seed_all
from .ranks import ALONE, Ranks
from .sharing import share_of
from .work import Configured, Forward, usual_optimizer

LOWER_IS_BETTER = re.compile(r"(^|_)(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|bpc)(_|$)")


@final
class Own(Configured):
    """The work of a user's function.

    Args:
        config: the settings; `Own.config` has those that follow from what the function returned.
        folder: where the run was started, if it is resumed; the module is looked for there.
        metric: as the run noted it, if it is resumed; else the metric is called once, to learn its name.
        ranks: the place of this process among those of the run, each of which takes a part of each batch.
    """

    def __init__(
        self, config: Config, folder: str | None = None, metric: Metric | None = None, ranks: Ranks = ALONE
    ) -> None:
        self.ranks, self._weight, self._compared = ranks, 1.0, False
        self.folder = folder or os.getcwd()
        self.made = _made(config.model, self.folder, config.seed)
        self.config = _settled(config, self.made)
        self.feed = Feed(self.made, config.seed)
        self.steps_per_epoch = self.feed.length()
        self.total = self.config.total_steps(self.steps_per_epoch)
        if not self.made.model.training:
            self.made.model.train()  # a model in training mode may have parts that are not, on purpose
        self.metric = metric or self._named_metric()
        if self.metric.tested != (self.made.metric is not None):
            raise InvalidValue(f"the run was started {'with' if self.metric.tested else 'without'} a metric.")

    def build(self) -> nn.Module:
        return self.made.model

    def optimizer(self, model: nn.Module) -> Optimizer:
        given = self.made.optimizer
        with own_words(f"the optimizer of {self.made.target}"):
            if given is None:
                return usual_optimizer(self.config, model)
            optimizer = given if isinstance(given, Optimizer) else given(model.parameters())
            _check_optimizer(self.made.target, optimizer, model)
            return cast(Optimizer, optimizer)

    def take(self, step: int) -> Any:
        batch = self.feed.take()
        if self.ranks.size == 1 or self.feed.apart:
            return batch
        if not self._compared:
            self._compare(batch)
        if self.config.pipeline is not None:  # all ranks work on the same batch
            return batch
        batch, self._weight = share_of(batch, self.ranks, self.made.target)
        return batch

    def peek(self) -> Any:
        batch = self.feed.peek()
        if self.feed.apart and self.config.pipeline is not None:
            raise InvalidValue(
                f"the batches of {self.made.target} have a DistributedSampler, and the stages of a pipeline work on "
                "the same batch; leave the sampler out."
            )
        return batch

    def forward(self, model: nn.Module, batch: Any) -> Forward:
        loss = loss_of_batch(model, batch, self.made.loss)
        return Forward(loss if self._weight == 1 else loss * self._weight, 0, 1)

    def _compare(self, batch: Any) -> None:
        """Refuse batches that are not those of the other ranks: a part of each would be lost."""
        if len(set(self.ranks.gathered(digest(batch)))) > 1:
            raise InvalidValue(
                f"the batches of {self.made.target} differ between ranks, and each rank takes its part of the same "
                "batch; return the same batches on each rank"
                + (", or a DataLoader with a DistributedSampler." if self.config.pipeline is None else ".")
            )
        self._compared = True

    def ends_epoch(self, step: int) -> bool:
        return self.feed.ends_epoch()

    def epochs_at(self, step: int) -> float:
        return super().epochs_at(step) if self.steps_per_epoch else float(self.feed.epoch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert self.made.metric is not None
        with preserved(), evaluating(model), own_words(f"the metric of {self.made.target}"):
            found = self.made.metric(model)
        if not isinstance(found, Mapping):
            found = {_name_of(self.made.metric): found}
        return {_checked_name(self.made.target, name): _number(self.made.target, found[name]) for name in found}

    def _named_metric(self) -> Metric:
        """The metric by its name, which a mapping tells only when it is there: an error in it shows before any step."""
        if self.made.metric is None:
            return LOSS
        if not (found := self.evaluate(self.made.model)):
            raise InvalidValue(f"the metric of {self.made.target} must return a number or several by name; got none.")
        name = next(iter(found))
        higher = getattr(self.made.metric, "higher_is_better", None)
        return own_metric(name, not LOWER_IS_BETTER.search(name.lower()) if higher is None else bool(higher))

    def record(self) -> dict[str, Any]:
        return {"fingerprint": self._fingerprint(), "folder": self.folder}

    def _fingerprint(self) -> str:
        return hashlib.sha256(source_of(self.made.target)).hexdigest()[:16]

    def check_unchanged(self, record: dict[str, Any], folder: object) -> None:
        if self._fingerprint() != record["fingerprint"]:
            warnings.warn(
                f"the source of {self.made.target} was changed after the run {folder} was started, so it may go on "
                "otherwise than it began.",
                LogradWarning,
                stacklevel=3,
            )

    def words(self) -> AbstractContextManager[None]:
        return own_words(f"a step of {self.made.target}")

    def state_dict(self) -> dict[str, Any]:
        return self.feed.state_dict() | RandomState.now().to_plain()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is None:
            raise InvalidValue("the checkpoint was written by a run of a built-in model.")
        self.feed.load_state_dict(state)
        RandomState.from_plain(state).restore()


def _made(target: str, folder: str, seed: int) -> Made:
    """Call the function.  What its module draws follows from the seed, and what the function draws from it alone."""
    try:
        seed_all(seed)
        import_module(check_target(target)[0], folder)  # runs the module, unless this process has it already
        seed_all(seed)
        return call_make(target, folder)
    except InvalidValue as error:
        if os.path.realpath(folder) == os.path.realpath(os.getcwd()):
            raise
        raise InvalidValue(f"{error} The run was started in {folder}; resume it from there.") from error


def _settled(config: Config, made: Made) -> Config:
    """The settings with those of the optimizer: named ones where lograd makes it, none where the user brings it."""
    if made.optimizer is None:
        name = config.optimizer or "sgd"
        lr, decay = USUAL[name]
        return replace(
            config,
            optimizer=name,
            lr=lr if config.lr is None else config.lr,
            weight_decay=decay if config.weight_decay is None else config.weight_decay,
            schedule=config.schedule or "cosine",
        )
    for setting in ("optimizer", "weight_decay"):
        if getattr(config, setting) is not None:
            raise InvalidValue(f"{made.target} brings its own optimizer; leave out {setting}, or return no optimizer.")
    return config


def _check_optimizer(target: str, optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise InvalidType(
            f"the optimizer of {target} must be one of torch.optim; got an object of type {type(optimizer).__name__}."
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidValue(
            f"{type(optimizer).__name__} calls the model several times in a step, which is not supported."
        )
    own = {id(parameter) for parameter in model.parameters()}
    others = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in own]
    if others:
        raise InvalidValue(
            f"the optimizer of {target} has {len(others)} tensors that are not parameters of the model, so no "
            "checkpoint would keep them; make them part of the model."
        )


def _name_of(metric: Callable[..., Any]) -> str:
    name = getattr(metric, "__name__", "metric")
    return "metric" if name == "<lambda>" else name


def _checked_name(target: str, name: Any) -> str:
    if not isinstance(name, str) or not name or name in COMMON:
        raise InvalidValue(
            f"the metric of {target} must name its numbers, by other names than {', '.join(COMMON)}; got {name!r}."
        )
    return name


def _number(target: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    raise InvalidType(f"the metric of {target} must be a number; got an object of type {type(value).__name__}.")
