"""The state of a handle as plain tensors by name, which safetensors and torch.load(weights_only=True) take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, nearest_name, sentence, shown
from .tensor import LEDGER, LowPrecisionTensor

PARTS = ("codes", "spacing", "ledger")
ABOUT = "lograd.weights"
"""The name of the tensor that says what the state is: version and steps."""
VERSION = 1


def state_of(weights: dict[str, LowPrecisionTensor], steps: int) -> dict[str, Tensor]:
    """Return copies of all parts, by name."""
    state = {ABOUT: torch.tensor([VERSION, steps])}
    for name, weight in weights.items():
        for part in PARTS:
            state[f"{name}.{part}"] = getattr(weight, part).detach().clone(memory_format=torch.contiguous_format)
        state[f"{name}.format"] = torch.tensor(list(_text(weight).encode()), dtype=torch.uint8)
    return state


def load_state(weights: dict[str, LowPrecisionTensor], state: Any) -> int:
    """Copy a state into the weights, and return its steps; all of it is checked first."""
    if not isinstance(state, dict):
        raise InvalidType(sentence("the state", state, "a dict of tensors, as state_dict() gives it"))
    expected = {ABOUT, *(f"{name}.{part}" for name in weights for part in (*PARTS, "format"))}
    for name in expected - set(state):
        raise InvalidValue(f"the state has no {name!r}; it is not that of these weights.")
    for name in set(state) - expected:
        raise InvalidValue(f"the state has {name!r}, and the weights do not.{nearest_name(name, expected)}")
    for name, part in state.items():
        if not isinstance(part, Tensor):
            raise InvalidType(sentence(f"{name!r} of the state", part, "a tensor"))
    about = state[ABOUT]
    if about.dtype != torch.int64 or about.shape != (2,) or int(about[0]) != VERSION or int(about[1]) < 0:
        raise InvalidValue(f"the state has another version than {VERSION}, or is damaged: {shown(about.tolist())}.")
    for name, weight in weights.items():
        _check(name, weight, state)
    with torch.no_grad():
        for name, weight in weights.items():
            for part in PARTS:
                getattr(weight, part).copy_(state[f"{name}.{part}"])
            torch.autograd.graph.increment_version(weight)
    return int(about[1])


def _check(name: str, weight: LowPrecisionTensor, state: dict[str, Tensor]) -> None:
    found = bytes(state[f"{name}.format"].to(torch.uint8).flatten().tolist()).decode(errors="replace")
    if found != _text(weight):
        raise InvalidValue(f"{name!r} is stored as {_text(weight)}; the state has it as {shown(found)}.")
    for part in PARTS:
        own, other = getattr(weight, part), state[f"{name}.{part}"]
        if own.shape != other.shape or own.dtype != other.dtype:
            raise InvalidValue(
                f"{part} of {name!r} must be {own.dtype} of shape {tuple(own.shape)}; the state has {other.dtype} of "
                f"shape {tuple(other.shape)}."
            )
    if bool((state[f"{name}.ledger"][len(LEDGER) - 5 :] < 0).any()) or bool((state[f"{name}.spacing"] <= 0).any()):
        raise InvalidValue(f"the state of {name!r} is damaged: spacings are positive, and counts are not negative.")


def _text(weight: LowPrecisionTensor) -> str:
    return f"{weight.coding.format} per {weight.coding.per}"
