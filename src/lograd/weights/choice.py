"""Which parameters of a model are stored in low precision, and why others are not."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..ops.contracts import FLOATS, type_name
from ..ops.layouts import is_dense
from .tensor import LowPrecisionTensor


def chosen(model: nn.Module, keep: str | Iterable[str]) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
    """Return the parameters to store, and the reason for each that is left alone, by name."""
    parameters = dict(model.named_parameters())
    if any(isinstance(parameter, LowPrecisionTensor) for parameter in parameters.values()):
        raise InvalidValue("the model has weights in low precision already; call remove() of that handle first.")
    asked = _asked(model, parameters, keep)
    found, kept = {}, {}
    for name, parameter in parameters.items():
        reason = asked.get(name) or _reason(name, parameter)
        if reason is None:
            found[name] = parameter
        else:
            kept[name] = reason
    if not found:
        first = next((f"; {name!r} is {reason}" for name, reason in kept.items()), "")
        raise InvalidValue(f"the model has no parameter that could be stored in low precision{first}.")
    return found, kept


def _asked(model: nn.Module, parameters: dict[str, nn.Parameter], keep: str | Iterable[str]) -> dict[str, str]:
    """The parameters that are kept by name."""
    if not isinstance(keep, Iterable):
        raise InvalidType(sentence("keep", keep, "names of parameters or modules"))
    patterns = [keep] if isinstance(keep, str) else list(keep)
    names = [*parameters, *(name for name, _ in model.named_modules() if name)]
    found: dict[str, str] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidType(sentence("keep", pattern, "names of parameters or modules"))
        hits = [name for name in parameters if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not hits:
            raise InvalidValue(
                f"keep names {pattern!r}, and the model has no parameter or module of that name."
                f"{nearest_name(pattern, names)}"
            )
        found |= dict.fromkeys(hits, "kept: asked for")
    return found


def _reason(name: str, parameter: nn.Parameter) -> str | None:
    """Return the reason to leave a parameter alone; None if there is none."""
    if type(parameter) is not nn.Parameter:
        return f"left alone: a {type(parameter).__name__} of its own"
    if parameter.dtype not in FLOATS:
        return f"left alone: {type_name(parameter.dtype)}"
    if parameter.dim() < 2:
        return "left alone: a vector"
    if weakref.getweakrefcount(parameter):
        return "left alone: a recurrent layer or compiled code has a weak reference to it"
    if not parameter.numel() or not is_dense(parameter.detach()):
        return "left alone: empty, or a view with gaps or overlaps"
    if not bool(parameter.detach().isfinite().all()):
        raise InvalidValue(f"{name!r} holds NaN or infinity, which has no code; keep={name!r} leaves it as it is.")
    return None
