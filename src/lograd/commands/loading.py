"""A user's `module:function`, called; whatever goes wrong in it is told in one sentence with its place."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import InvalidValue, LogradError
from ..errors import nearest_name

PACKAGE = Path(__file__).parent.parent
WANTED = "(model, batches, loss function), or (model, batches) where the model returns its loss"


Made = tuple[nn.Module, Iterable[Any], Callable[..., Any] | None]


def call_make(target: str) -> Made:
    """Import the module, with the current folder on the path, call the function and check what it returns."""
    module_name, colon, function_name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise InvalidValue(f"{target!r} is not MODULE:FUNCTION, such as mypkg.train:make.")
    function = _function(_module(module_name), function_name, target)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidValue(f"{target} must be callable without arguments; {error}.") from None
    except ValueError:  # a function without a signature: calling it will show
        pass
    with own_words(target):
        return _checked(target, function())


@contextmanager
def own_words(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a sentence: what was run, what was raised, and where."""
    try:
        yield
    except LogradError:
        raise
    except Exception as error:
        raise InvalidValue(f"{what} raised {_raised(error)}.") from error


def _module(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
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
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        got = f"{len(made)} of them" if isinstance(made, tuple | list) else f"an object of type {type(made).__name__}"
        raise InvalidValue(f"{target} must return {WANTED}; it returned {got}.")
    model, batches, loss = (*made, None)[:3]
    valid = {
        "model, a torch.nn.Module": isinstance(model, nn.Module),
        "batches, an iterable": isinstance(batches, Iterable) and not isinstance(batches, Tensor | str),
        "loss function": loss is None or callable(loss),
    }
    for place, (wanted, right) in enumerate(valid.items()):
        if not right:
            kind = type(made[place]).__name__
            raise InvalidValue(
                f"{target} must return {WANTED}; in place of the {wanted}, it returned an object of type {kind}."
            )
    return model, batches, loss


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
