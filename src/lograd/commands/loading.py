"""What the commands take from the user: a `MODULE:FUNCTION` that makes the model, and a folder for results."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValue, LogradError, nearest_name
from ..files import CannotWrite

if TYPE_CHECKING:
    from .. import Plan

PACKAGE = Path(__file__).parent.parent
PARTS = ("model", "batches", "loss")
WANTED = "(model, batches, loss function), or (model, batches) where the model returns its loss"


def load_model(target: str) -> tuple[Any, Iterable[Any], Callable[..., Any] | None]:
    """Return the model, the batches and the loss that a user's function makes; the current folder is searched first.

    The function takes no arguments.  It returns a tuple of two or three, or a mapping with the names in `PARTS`;
    further entries, such as an optimizer, are ignored.
    """
    module_name, colon, function_name = target.partition(":")
    if not (colon and module_name and function_name):
        raise InvalidValue(f"{target!r} is not MODULE:FUNCTION, such as mypkg.train:make.")
    module = _import(module_name)
    if not callable(function := getattr(module, function_name, None)):
        names = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        raise InvalidValue(f"{module_name} has no function {function_name!r}.{nearest_name(function_name, names)}")
    with own_words(target):
        made = function()
    return _parts(target, made)


def _import(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with own_words(f"importing {name}"):
            return importlib.import_module(name)
    except InvalidValue as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise InvalidValue(f"there is no module {cause.name!r} in {here} or on Python's path.") from None
        raise


def _parts(target: str, made: Any) -> tuple[Any, Iterable[Any], Callable[..., Any] | None]:
    from torch import Tensor, nn

    if isinstance(made, Mapping):
        parts = [made.get(name) for name in PARTS]
    elif isinstance(made, tuple | list) and len(made) >= 2:
        parts = [*made, None][:3]
    else:
        raise InvalidValue(f"{target} must return {WANTED}; it returned an object of type {type(made).__name__}.")
    model, batches, loss = parts
    if callable(batches) and not isinstance(batches, Iterable):
        with own_words(f"the function batches of {target}"):
            batches = batches(0)  # the batches of the first epoch
    valid = {
        "model, a torch.nn.Module": (model, isinstance(model, nn.Module)),
        "batches, an iterable": (batches, isinstance(batches, Iterable) and not isinstance(batches, Tensor | str)),
        "loss function": (loss, loss is None or callable(loss)),
    }
    for wanted, (value, right) in valid.items():
        if not right:
            raise InvalidValue(
                f"{target} must return {WANTED}; in place of the {wanted}, it returned an object of type "
                f"{type(value).__name__}."
            )
    return model, batches, loss  # type: ignore[return-value]


@contextmanager
def own_words(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a sentence: what was run, what was raised, and where."""
    try:
        yield
    except LogradError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidValue(f"{what} raised {_raised(error)}.") from error


def _raised(error: BaseException) -> str:
    """Return the exception and the innermost line of it that is not inside an installed package."""
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


@contextmanager
def folder_for_results(path: Path) -> Iterator[Path]:
    """Make a folder with its parents; if the work fails, those that were made and are still empty are removed."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"Cannot make the folder {path}: {error.strerror}.") from error
    try:
        yield path
    except BaseException:
        for each in made:
            with suppress(OSError):  # it is not empty
                each.rmdir()
        raise


def check_same(path: Path, plan: Plan, *, overwrite: bool) -> None:
    """Refuse to replace a plan by another one, unless that is asked for; an equal one is no loss."""
    from .. import Plan

    if overwrite or not path.exists():
        return
    try:
        found = Plan.load(path).hash()
    except LogradError:
        found = "not a plan"
    if found != plan.hash():
        raise InvalidValue(
            f"{path} exists and is another plan ({found}, the new one is {plan.hash()}); replace it by --overwrite, or "
            "give another place by -o."
        )
