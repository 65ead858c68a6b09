"""The state of a handle: what a resumed run needs, checked against the handle that takes it before any of it is loaded.

Layers that are missing in a state start with a warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import InvalidValue, nearest_name, sentence

VERSION = 5


def check_state(state: Any, like: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit a handle, in one sentence.

    Args:
        like: the state that this handle has now.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise InvalidValue(f"this is not a handle's state of version {VERSION}; got version {str(version)[:60]}.")
    if state.get("plan") != like["plan"]:
        raise InvalidValue(
            f"the state belongs to another plan ({str(state.get('plan'))[:60]}, this is {like['plan']}); attach the "
            "plan with which it was saved."
        )
    for part in ("layers", "statistics"):
        for name in state.get(part) or ():
            if name not in like[part]:
                raise InvalidValue(
                    f"the state has a layer {str(name)[:60]!r}, and the model has none of that name that is treated."
                    f"{nearest_name(str(name)[:60], like[part])}"
                )
    check_values("a handle's state", state, like)


def check_values(what: str, found: Any, like: Any) -> None:
    """Refuse a value of another kind than the one in its place; None is a value that is not known."""
    if isinstance(like, dict) and isinstance(found, dict):
        for name in found.keys() & like.keys():
            check_values(f"{name!r} in {what}", found[name], like[name])
    elif isinstance(like, Tensor) and isinstance(found, Tensor):
        if (found.dtype, found.shape) != (like.dtype, like.shape) or found.is_meta or not bool(found.isfinite().all()):
            raise InvalidValue(
                sentence(what, found, f"finite, {like.dtype}, of shape {tuple(like.shape)}".replace("torch.", ""))
            )
    elif isinstance(like, list) and isinstance(found, list):
        if like and found and not isinstance(like[0], list) and len(found) != len(like):
            raise InvalidValue(sentence(what, found, f"given {len(like)} values"))
    elif found is not None and like is not None and type(found) is not type(like):
        raise InvalidValue(sentence(what, found, f"of type {type(like).__name__}"))
