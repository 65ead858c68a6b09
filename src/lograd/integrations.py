"""Callbacks for training loops of other libraries: `LogradCallback("auto")` for Hugging Face's Trainer.

A callback attaches when the training begins, counts its steps, keeps the handle's state beside each checkpoint, and
gives the model back at the end.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, final

import torch

from .acceleration import Acceleration, accelerate
from .attachment import Handle, attach
from .errors import InvalidType, LogradError, LogradWarning, sentence
from .files import replace_file
from .plan import Plan

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise ImportError("lograd.integrations needs transformers; install it: pip install transformers") from missing

STATE = "lograd.pt"
"""The name of the handle's state in the folder of a checkpoint."""


@final
class LogradCallback(TrainerCallback):
    """Train with lograd in Hugging Face's Trainer: `Trainer(..., callbacks=[LogradCallback("auto")])`.

    The model is plain before and after the training.  What is attached is counted and explained by `handle`, and
    Trainer's log has `handle.metrics()`.  A run that resumes from a checkpoint goes on with the state that was saved in
    it; without one it begins anew, with a warning.

    Args:
        plan: "auto" for `lograd.accelerate`; a `Plan` or a recipe such as "int8-full" for `lograd.attach`.
        options: for `lograd.accelerate` or `lograd.attach`, such as seed=1.
    """

    def __init__(self, plan: str | Plan = "auto", **options: Any) -> None:
        if not isinstance(plan, (str, Plan)):
            raise InvalidType(sentence("plan", plan, '"auto", a lograd.Plan, or the name of a recipe'))
        self._automatic = plan == "auto"
        self._plan = Plan.uniform(plan) if isinstance(plan, str) and not self._automatic else plan
        self._options = options
        self.handle: Handle | Acceleration | None = None
        """What is attached; None before the training."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Attach to the model."""
        if self.handle is not None:  # a training that an exception ended
            self.handle.remove()
        make: Any = accelerate if self._automatic else attach
        self.handle = make(model, **self._options) if self._automatic else make(model, self._plan, **self._options)
        if state.global_step:
            self._resume(Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE)

    def _resume(self, file: Path) -> None:
        assert self.handle is not None
        try:
            self.handle.load_state_dict(torch.load(file, weights_only=True))
        except (OSError, LogradError) as reason:
            warnings.warn(f"{file} was not read, so lograd begins anew: {reason}", LogradWarning, stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Count a step, after the optimizer's."""
        if self.handle is not None:
            self.handle.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Add what was counted to Trainer's log of the training."""
        if self.handle is not None and logs is not None and "loss" in logs:
            found = self.handle.metrics()
            logs.update(found)
            state.log_history[-1].update(found)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Keep the state of what is attached in the folder of the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.handle is not None and folder.is_dir():
            buffer = io.BytesIO()
            torch.save(self.handle.state_dict(), buffer)
            replace_file(folder / STATE, buffer.getvalue())

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Give the model back as it was; `handle` still explains."""
        if self.handle is not None:
            self.handle.remove()
