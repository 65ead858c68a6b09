"""What must hold of a handle's state before any of it is loaded: it is of this plan, and its tensors fit the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..engine.backends.choice import SLOTS
from ..engine.layer import LayerEngine
from ..engine.site import CPU, zeros
from ..errors import InvalidValue, nearest_name, sentence
from ..files.checks import check_number, check_object, check_whole
from ..ops.histogram import SLOTS as HISTOGRAM_SLOTS
from ..plan import Plan
from .guard import check_state
from .refresh import OperandStatistics

VERSION = 4
LONGEST = 2**62
"""More steps than anybody makes, and below it whole numbers may still be added."""
PARTS = ("layers", "statistics")
PLAIN = ("version", "plan", "seed", "steps", "start", "last_collected", "loss_scale", "growth", "cost")

Statistics = Mapping[str, Mapping[str, OperandStatistics]]
"""Statistics by layer and operand."""


def check(state: Any, plan: Plan, layers: Mapping[str, LayerEngine], statistics: Statistics) -> None:
    """Refuse a state that is not whole or does not fit, in one sentence; nothing is changed here.

    Args:
        plan: the plan that is attached.
        layers, statistics: those that the state is for.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise InvalidValue(f"this is not a handle's state of version {VERSION}; got version {str(version)[:60]}.")
    check_object("a handle's state", state, (*PLAIN, *PARTS), ("guard",))
    if plan.hash() != state["plan"]:
        raise InvalidValue(
            f"the state belongs to another plan ({str(state['plan'])[:60]}, this is {plan.hash()}); attach the plan "
            "with which it was saved."
        )
    for part, known in zip(PARTS, (layers, statistics), strict=True):
        if not isinstance(state[part], dict):
            raise InvalidValue(sentence(f"{part!r} of a handle's state", state[part], "an object with layer names"))
        for name in state[part]:
            if name not in known:
                raise InvalidValue(
                    f"the state has a layer {str(name)[:60]!r}, and the model has none of that name that is treated."
                    f"{nearest_name(str(name)[:60], known)}"
                )
    steps = check_whole("steps of a handle's state", state["steps"], 0, LONGEST)
    check_whole("last_collected of a handle's state", state["last_collected"], 0, steps)
    check_whole("start of a handle's state", state["start"], 0, LONGEST)
    check_number("loss_scale of a handle's state", state["loss_scale"], 0)
    for name, tensors in state["layers"].items():
        _check_layer(name, tensors, layers[name])
    for name, operands in state["statistics"].items():
        if not isinstance(operands, dict) or not operands.keys() <= statistics[name].keys():
            raise InvalidValue(sentence(f"the statistics of layer {name!r}", operands, "given by operand"))
        for operand, values in operands.items():
            _check_statistics(f"the statistics of layer {name!r}", values, statistics[name][operand])
    if "guard" in state:
        check_state(state["guard"], layers)


def _check_layer(name: str, tensors: Any, layer: LayerEngine) -> None:
    known = layer.tensors()
    if not isinstance(tensors, dict):
        raise InvalidValue(sentence(f"the state of layer {name!r}", tensors, "an object with tensors"))
    # What was timed is optional: another handle may have had no choice, or this one has none.
    if missing := {key for key in known if not key.endswith(".choice")} - tensors.keys():
        raise InvalidValue(f"the state of layer {name!r} is not whole; it lacks {', '.join(sorted(missing))}.")
    for key, tensor in tensors.items():
        like = zeros(SLOTS, torch.int64, CPU) if str(key).endswith(".choice") else known.get(key)
        if like is None:
            raise InvalidValue(f"the state of layer {name!r} has {str(key)[:60]!r}, which the layer does not.")
        _check_tensor(f"{key} of layer {name!r}", tensor, like)


def _check_tensor(what: str, tensor: Any, like: Tensor) -> None:
    kind = f"{str(like.dtype).removeprefix('torch.')} of shape {tuple(like.shape)}"
    if not isinstance(tensor, Tensor) or tensor.is_meta or (tensor.dtype, tensor.shape) != (like.dtype, like.shape):
        raise InvalidValue(sentence(what, tensor, f"a tensor, {kind}"))
    if not bool(tensor.isfinite().all()):
        raise InvalidValue(f"{what} has a value that is not finite.")


def _check_statistics(what: str, values: Any, statistics: OperandStatistics) -> None:
    check_object(what, values, ("table", "step", "loss_scale", "passed_over", "allotted", "energies"))
    table, allotted = values["table"], values["allotted"]
    size = 0 if isinstance(table, Tensor) and not table.numel() else HISTOGRAM_SLOTS
    _check_tensor(f"the histogram in {what}", table, zeros(size, torch.int64, CPU))
    check_whole(f"the step of {what}", values["step"], -1, LONGEST)
    if check_number(f"the loss scale of {what}", values["loss_scale"], 0) == 0:
        raise InvalidValue(f"the loss scale of {what} must be positive; got 0.")
    if not isinstance(allotted, list | tuple) or len(allotted) != len(statistics.joint):
        raise InvalidValue(sentence(what, allotted, f"given {len(statistics.joint)} numbers there"))
