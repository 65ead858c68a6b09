"""`LogradCallback`, for Hugging Face's Trainer."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from ..files import replace_file
from .attaching import Attaching

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise ImportError("LogradCallback needs transformers; install it: pip install transformers") from missing

STATE = "lograd.pt"
"""The name of the handle's state in the folder of a checkpoint."""


@final
class LogradCallback(Attaching, TrainerCallback):
    """Train with lograd in Hugging Face's Trainer: `Trainer(..., callbacks=[LogradCallback("auto")])`.

    The model is plain before and after the training.  What is attached is counted and explained by `handle`, and
    Trainer's log has `handle.metrics()`.  A run that resumes from a checkpoint goes on with the state that was saved in
    it; without one it begins anew, with a warning.

    Args:
        plan: "auto" for `lograd.accelerate`; a `Plan` or a recipe such as "int8-full" for `lograd.attach`.
        options: for `lograd.accelerate` or `lograd.attach`, such as seed=1.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Attach to the model."""
        self._attach(model)
        if state.global_step:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            self._resume(file, partial(torch.load, file, weights_only=True))

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
        self._remove()
