"""`LightningCallback`, for the Trainer of Lightning (`lightning` or `pytorch-lightning`)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, final

from .attaching import Attaching

if TYPE_CHECKING:
    from pytorch_lightning import Callback
elif importlib.util.find_spec("lightning"):
    from lightning.pytorch import Callback
elif importlib.util.find_spec("pytorch_lightning"):
    from pytorch_lightning import Callback
else:
    raise ImportError("LightningCallback needs Lightning; install it: pip install lightning")


@final
class LightningCallback(Attaching, Callback):
    """Train with lograd in Lightning's Trainer: `Trainer(..., callbacks=[LightningCallback("auto")])`.

    The model is plain before and after the training.  What is attached is counted and explained by `handle`, and the
    logger has `handle.metrics()`.  A run that resumes from a checkpoint goes on with the state that was saved in it.

    Args:
        plan: "auto" for `lograd.accelerate`; a `Plan` or a recipe such as "int8-full" for `lograd.attach`.
        options: for `lograd.accelerate` or `lograd.attach`, such as seed=1.
    """

    _loaded: dict[str, Any] | None = None
    """The state in the checkpoint, which Lightning reads before the training begins."""
    _counted = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the model."""
        self._attach(pl_module)
        self._counted = trainer.global_step
        if self._loaded is not None:
            state, self._loaded = self._loaded, None
            self._resume("the state in the checkpoint", lambda: state)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a step, if the optimizer made one."""
        if self.handle is not None and trainer.global_step > self._counted:
            self._counted = trainer.global_step
            self.handle.step()
            if self.handle.steps % trainer.log_every_n_steps == 0:
                pl_module.log_dict({name: float(value) for name, value in self.handle.metrics().items()})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the model back as it was; `handle` still explains."""
        self._remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the model back as it was."""
        self._remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of what is attached, for a checkpoint."""
        return {} if self.handle is None else self.handle.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the training begins."""
        self._loaded = state_dict
