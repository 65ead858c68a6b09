"""A user's `module:function`, called; whatever goes wrong in it is told in one sentence with its place."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from lograd import InvalidValue, LogradError
from lograd.errors import nearest_name

from .config import check_target

PACKAGE = Path(__file__).parent.parent
WANTED = "(model, batches, loss function), or (model, batches) where the model returns its loss"
PARTS = ("model", "batches", "loss", "optimizer", "metric")
"""The parts that a function may return: a tuple of the first two to five, or a mapping with these names."""


@final
@dataclass(frozen=True)
class Made:
    """The parts that a user's function returned, as a tuple of two to five or a mapping with these names.

    Args:
        target: MODULE:FUNCTION.
        model: any torch.nn.Module.
        batches: of one epoch, as often as one asks: a list, a DataLoader, or any other object that can be iterated
            again and again; or a function of the number of the epoch, counted from 0, that returns an iterable.
        loss: as for `lograd.profile`.
        optimizer: one of torch.optim over the model's parameters, or a function that makes it from them.
        metric: a function of the model, called in evaluation mode and without gradients.  It returns a number or a
            mapping of numbers, of which the first is the one that runs are compared by.  Higher is better, unless the
            function has an attribute `higher_is_better = False`, or the name says loss, error or perplexity.
    """

    target: str
    model: nn.Module
    batches: Iterable[Any] | Callable[[int], Iterable[Any]]
    loss: Callable[..., Any] | None
    optimizer: Optimizer | Callable[..., Any] | None = None
    metric: Callable[..., Any] | None = None

    def epoch(self, number: int) -> Iterable[Any]:
        """The batches of an epoch."""
        if isinstance(self.batches, Iterable):
            return self.batches
        batches = self.batches(number)
        if not isinstance(batches, Iterable) or isinstance(batches, Tensor | str):
            raise InvalidValue(
                f"the function batches of {self.target} must return an iterable of batches; it returned an object of "
                f"type {type(batches).__name__}."
            )
        return batches


def call_make(target: str, folder: str | None = None) -> Made:
    """Import the module, with the folder (by default the current one) on the path, call the function, and check it."""
    module_name, function_name = check_target(target)
    function = _function(import_module(module_name, folder), function_name, target)
    _check_signature(function, (), f"{target} must be callable without arguments")
    with own_words(target):
        return _checked(target, function())


def source_of(target: str) -> bytes:
    """The source file of an imported module, or of the function where there is none, as in a notebook; or nothing."""
    module_name, function_name = check_target(target)
    module = sys.modules[module_name]
    try:
        if file := inspect.getsourcefile(module):
            return Path(file).read_bytes()
        return inspect.getsource(getattr(module, function_name)).encode()
    except (OSError, TypeError):
        return b""


@contextmanager
def own_words(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a sentence: what was run, what was raised, and where."""
    try:
        yield
    except LogradError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidValue(f"{what} raised {_raised(error)}.") from error


def import_module(name: str, folder: str | None = None) -> Any:
    """Import a module of the user's; the folder, by default the current one, is searched first."""
    if (here := folder or str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidValue(f"there is no module {error.name!r} in {here} or on Python's path.") from None
        raise InvalidValue(f"importing {name} raised {_raised(error)}.") from error
    except LogradError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidValue(f"importing {name} raised {_raised(error)}.") from error


def _function(module: Any, name: str, target: str) -> Callable[[], Any]:
    if not hasattr(module, name):
        names = [each for each in dir(module) if not each.startswith("_") and callable(getattr(module, each))]
        raise InvalidValue(f"{module.__name__} has no function {name!r}.{nearest_name(name, names)}")
    function = getattr(module, name)
    if not callable(function):
        raise InvalidValue(
            f"{target} must be a function that returns {WANTED}; it is of type {type(function).__name__}."
        )
    checked: Callable[[], Any] = function
    return checked


def _checked(target: str, made: Any) -> Made:
    parts = _named(target, made)
    model: Any
    batches: Any
    model, batches, loss, optimizer, metric = (parts.get(name) for name in PARTS)
    valid = {
        "model, a torch.nn.Module": (model, isinstance(model, nn.Module)),
        "batches, an iterable": (batches, _can_be_iterated(batches)),
        "loss function": (loss, loss is None or callable(loss)),
        "optimizer, of torch.optim or a function of the parameters": (
            optimizer,
            optimizer is None or _makes(optimizer),
        ),
        "metric, a function of the model": (metric, metric is None or _makes(metric)),
    }
    for wanted, (value, right) in valid.items():
        if not right:
            raise InvalidValue(
                f"{target} must return {WANTED}; in place of the {wanted}, it returned an object of type "
                f"{type(value).__name__}."
            )
    if not isinstance(batches, Iterable):
        _check_signature(batches, (0,), f"the function batches of {target} must take the number of the epoch")
    if metric is not None:
        _check_signature(metric, (model,), f"the metric of {target} must take the model")
    return Made(target, model, batches, loss, optimizer, metric)


def _named(target: str, made: Any) -> Mapping[str, Any]:
    """The parts by name."""
    if isinstance(made, Mapping):
        for name in made:
            if name not in PARTS:
                raise InvalidValue(
                    f"{target} must return a mapping with {', '.join(PARTS)}; it has {name!r}."
                    f"{nearest_name(str(name), PARTS)}"
                )
        if missing := [name for name in PARTS[:2] if name not in made]:
            raise InvalidValue(f"{target} must return a mapping with {', '.join(PARTS)}; {missing[0]} is missing.")
        return made
    if not isinstance(made, tuple | list) or not 2 <= len(made) <= len(PARTS):
        got = f"{len(made)} of them" if isinstance(made, tuple | list) else f"an object of type {type(made).__name__}"
        raise InvalidValue(
            f"{target} must return {WANTED}; it returned {got}. An optimizer and a metric may follow, or all may stand "
            f"in a mapping by the names {', '.join(PARTS)}."
        )
    return dict(zip(PARTS, made, strict=False))


def _can_be_iterated(batches: Any) -> bool:
    return (isinstance(batches, Iterable) or _makes(batches)) and not isinstance(batches, Tensor | str)


def _makes(value: Any) -> bool:
    """A function or an optimizer; a class or module in a wrong place of the tuple is none."""
    return isinstance(value, Optimizer) or (callable(value) and not isinstance(value, nn.Module))


def _check_signature(function: Any, arguments: tuple[Any, ...], words: str) -> None:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise InvalidValue(f"{words}; {error}.") from None
    except ValueError:  # a function without a signature: calling it will show
        pass


def _raised(error: BaseException) -> str:
    """The exception and the innermost line of it that is not inside an installed package."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and "importlib" not in frame.filename
    ]
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE)] or frames
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    text = str(error).split("\n")[0].rstrip(".")
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"
