"""Something that is in force while modules of a model run: hooks enter it with the outermost one and leave it again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from threading import local
from typing import Any, final

from torch import nn

from ..errors import InvalidType, plural, sentence


class RunningHandle(ABC):
    """The handle of something that is in force while a model runs; as a context it is removed at the end."""

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
        self.left_alone: Counter[str] = Counter()
        """Calls that PyTorch computed, by the reason."""

    @abstractmethod
    def remove(self) -> None:
        """Make the model what it was."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Hooks of a copied model are those of the first; `remove` does not reach the copy, `take_off` does."""
        return self

    def _shown(self, done: str) -> str:
        left = f", {plural(sum(self.left_alone.values()), 'call')} left alone" if self.left_alone else ""
        return f"{type(self).__name__}({done}{left})"

    def _words(self, done: str) -> str:
        left = "".join(f"; {plural(count, 'call')} left to PyTorch: {why}" for why, count in self.left_alone.items())
        return f"{done}{left.rstrip('.')}"


@final
class WhileRunning:
    """A context that is entered whenever one of some modules runs, once for modules inside of each other.

    Modules are hooked one by one, as activation checkpointing runs them again without the model around.

    Args:
        model: the modules are its parts and itself.
        context: makes the context, which `with` could enter.  If it has a `finish`, that gets the output of the
            outermost module before the context is left.
        where: True for modules that are hooked.
    """

    def __init__(
        self, model: nn.Module, context: Callable[[], Any], where: Callable[[nn.Module], bool] = lambda module: True
    ) -> None:
        self._context, self._running = context, local()
        self._hooks: list[Any] = []
        for module in filter(where, model.modules()):
            self._hooks += [
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave, always_call=True),
            ]

    def __deepcopy__(self, memo: dict[int, Any]) -> WhileRunning:
        return self

    def remove(self) -> None:
        """Take the hooks off; the modules are what they were."""
        while self._hooks:
            self._hooks.pop().remove()

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        running = self._running
        depth = running.depth = getattr(running, "depth", 0) + 1
        if depth == 1:
            running.context = self._context()
            running.context.__enter__()

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        running = self._running
        running.depth -= 1
        if not running.depth:
            context, running.context = running.context, None
            try:
                if hasattr(context, "finish"):
                    context.finish(output)
            finally:
                context.__exit__(None, None, None)


def take_off(model: nn.Module) -> None:
    """Remove from a model, such as a copy of another, the hooks of all that is in force while its modules run.

    Other hooks stay.
    """
    for module in model.modules():
        tables: tuple[dict[int, Any], ...] = (
            module._forward_pre_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks,
            module._forward_hooks_with_kwargs,
            module._forward_hooks_always_called,
        )
        for number in [number for table in tables for number, hook in table.items() if _is_ours(hook)]:
            for table in tables:  # numbers are those of one hook
                table.pop(number, None)


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), WhileRunning | RunningHandle)
