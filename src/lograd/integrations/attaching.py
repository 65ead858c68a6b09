"""The part that callbacks of all training loops share: attach at the beginning, resume, remove at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from ..acceleration import Acceleration, accelerate
from ..attachment import Handle, attach
from ..errors import InvalidType, LogradError, LogradWarning, sentence
from ..plan import Plan


class Attaching:
    """A callback without its loop.

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
        """The handle of the model; None before the training."""

    def _attach(self, model: nn.Module) -> None:
        self._remove()  # what a training left that an exception ended
        make: Any = accelerate if self._automatic else attach
        self.handle = make(model, **self._options) if self._automatic else make(model, self._plan, **self._options)

    def _resume(self, source: object, read: Callable[[], dict[str, Any]]) -> None:
        assert self.handle is not None
        try:
            self.handle.load_state_dict(read())
        except (OSError, LogradError) as reason:
            warnings.warn(f"{source} was not read, so lograd begins anew: {reason}", LogradWarning, stacklevel=2)

    def _remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
