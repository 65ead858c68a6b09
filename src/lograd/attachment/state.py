"""The state of a handle: checksums over what is saved, and all that must hold of it before any of it is loaded.

A state is a dict that users put into checkpoints of their own, so its checksums are over contents and not over a file.
Each layer has its own: a state may be loaded without some of its layers, which then start with a warm-up.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engine.backends.choice import FORMER_SLOTS, INTEGER, MODE, RAGGED, SLOTS, SPARSE, TOO_SMALL, ZEROS
from ..engine.layer import LayerEngine
from ..engine.slots import COUNTERS, CPU, READY, all_counters, zeros
from ..errors import InvalidValue, nearest_name, sentence
from ..files.checks import MANY, check_number, check_object, check_text, check_whole
from ..ops.histogram import SLOTS as HISTOGRAM_SLOTS
from ..plan import Plan
from .guard import check_state
from .refresh import OperandStatistics

VERSION, FORMER = 3, 2
"""The version that is written, and the one before it, which is read."""
LONGEST = 2**62
"""More steps than anybody makes, and below it whole numbers may still be added."""
DAMAGED = "was changed or damaged after it was saved: its checksum does not match."
PARTS = ("layers", "statistics")
PLAIN = ("version", "plan", "seed", "steps", "last_collected", "loss_scale", "cost")
LATER = ("start", "growth", "guard", "checksums")
"""Fields that the first states of this version did not have."""


# -- checksums --


def checksums(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksums of a state: one of the plain values together, and one of each layer's part."""
    plain = {name: value for name, value in state.items() if name not in (*PARTS, "checksums")}
    return {"plain": digest(plain)} | {
        part: {name: digest(values) for name, values in state[part].items()} for part in PARTS
    }


def digest(value: Any) -> str:
    """Return hexadecimal digits that change with any bit of nested dicts, lists, plain values and tensors."""
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()


def _add(found: hashlib._Hash, value: Any) -> None:
    """Add a value to a hash, with types and lengths in front, so that different values never give the same bytes."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        _add_bytes(found, f"tensor {data.dtype} {tuple(data.shape)}", data.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, dict):
        _add_bytes(found, f"dict {len(value)}", b"")
        for name in sorted(value, key=str):  # whoever saves a state may sort it
            _add(found, name)
            _add(found, value[name])
    elif isinstance(value, list | tuple):
        _add_bytes(found, f"list {len(value)}", b"")
        for item in value:
            _add(found, item)
    elif isinstance(value, float):
        _add_bytes(found, "float", struct.pack("<d", value))
    else:
        _add_bytes(found, type(value).__name__, str(value).encode("utf-8", "surrogatepass"))


def _add_bytes(found: hashlib._Hash, kind: str, content: Any) -> None:
    found.update(f"{kind} {len(content)} ".encode())
    found.update(content)


# -- what must hold --


class Range(NamedTuple):
    """The smallest and largest element of a tensor, or of each of its slots."""

    low: float | tuple[float, ...] = 0
    high: float | tuple[float, ...] = LONGEST


RANGES = {
    "control": Range(high=(1, LONGEST)),
    "seen": Range(),
    "histogram": Range(high=MANY),
    "numbers": Range(high=torch.finfo(torch.float32).max),
    "key": Range(low=(-(2**63), 0), high=(2**63 - 1, 2**63 - 1)),
    "memory": Range(torch.finfo(torch.float64).min, torch.finfo(torch.float64).max),
    "learned": Range(-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max),
    "counters": Range(),
    "choice": Range(low=(0, 0, 0, RAGGED, 0), high=(INTEGER, LONGEST, LONGEST, 10**6, LONGEST)),
}
"""By the last part of a tensor's name.  Thresholds and scales are not negative; memories are finite."""
FORMER_CHOICE = Range(low=(0, 0, 0, TOO_SMALL), high=(SPARSE, LONGEST, LONGEST, 10**6))
"""The range of a choice in states from before there were integer products."""
assert (READY, MODE, ZEROS) == (0, 0, 3), "the slots that the ranges above are of"


Statistics = Mapping[str, Mapping[str, OperandStatistics]]
"""Statistics by layer and operand."""


def checked(state: Any, plan: Plan, layers: Mapping[str, LayerEngine], statistics: Statistics) -> dict[str, Any]:
    """Return a state in the present form; one that is not whole or does not fit is refused, in one sentence.

    Nothing is changed here.

    Args:
        plan: the plan that is attached.
        layers, statistics: those that the state is for.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if type(version) is not int or version not in (FORMER, VERSION):
        raise InvalidValue(f"this is not a handle's state of version {VERSION}; got version {str(version)[:60]}.")
    check_object("a handle's state", state, (*PLAIN, *PARTS), LATER)
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
    saved = state
    if version == FORMER:
        state = _upgraded(state, layers)
    _check_plain(state)
    for name, tensors in state["layers"].items():
        _check_tensors(name, tensors, layers[name])
    for name, operands in state["statistics"].items():
        if not isinstance(operands, dict) or not operands.keys() <= statistics[name].keys():
            raise InvalidValue(sentence(f"the statistics of layer {name!r}", operands, "given by operand"))
        for operand, values in operands.items():
            _check_statistics(name, values, statistics[name][operand])
    if "guard" in state:
        check_state(state["guard"], layers)
    _check_sums(saved)
    found: dict[str, Any] = state
    return found


_FORMER_NAMES = {
    "both": "gradient",
    "input": "input_gradient.gradient",
    "weight": "weight_gradient.gradient",
    "weights": "input_gradient.weights",
    "activations": "weight_gradient.activations",
}
"""The names of sites now, by their names in states of the former version."""


def _upgraded(state: dict[str, Any], layers: Mapping[str, LayerEngine]) -> dict[str, Any]:
    """Return a state of the former version in the present form; what is wrong with it stays wrong."""
    by_layer = {}
    for name, tensors in state["layers"].items():
        if not isinstance(tensors, dict):
            raise InvalidValue(sentence(f"the state of layer {name!r}", tensors, "an object with tensors"))
        found = {_present_name(str(key)): tensor for key, tensor in tensors.items()}
        # Operands other than the gradient had nothing of their own.
        own = {
            key: tensor
            for key, tensor in layers[name].tensors().items()
            if key.startswith(("weights.", "activations.")) and key.endswith((".control", ".seen"))
        }
        by_layer[name] = own | found
    statistics = {name: {"gradient": values} for name, values in state["statistics"].items()}
    return state | {"layers": by_layer, "statistics": statistics}


def _present_name(key: str) -> str:
    site, _, kind = key.rpartition(".")
    if not site:
        return f"gradient.{kind}"
    return f"{_FORMER_NAMES.get(site, site)}.{'memory' if kind == 'state' else kind}"


def _check_sums(state: dict[str, Any]) -> None:
    if "checksums" not in state:
        return  # saved before there were any
    saved, found = state["checksums"], checksums(state)
    check_object("the checksums of a handle's state", saved, ("plain", *PARTS))
    if saved["plain"] != found["plain"]:
        raise InvalidValue(f"the state {DAMAGED}")
    for part in PARTS:
        for name, digits in found[part].items():
            if not isinstance(saved[part], dict) or saved[part].get(name) != digits:
                raise InvalidValue(f"the state of layer {name!r} {DAMAGED}")


def _check_plain(state: dict[str, Any]) -> None:
    if type(state["seed"]) is not int:
        raise InvalidValue(sentence("seed of a handle's state", state["seed"], "a whole number"))
    steps = check_whole("steps of a handle's state", state["steps"], 0, LONGEST)
    check_whole("last_collected of a handle's state", state["last_collected"], 0, steps)
    check_whole("start of a handle's state", state.get("start", 0), 0, LONGEST)
    check_number("loss_scale of a handle's state", state["loss_scale"], 0)
    cost, growth = state["cost"], state.get("growth", [])
    if not isinstance(cost, list | tuple) or len(cost) != 3:
        raise InvalidValue(sentence("cost of a handle's state", cost, "steps, refreshes and milliseconds"))
    for value in cost:
        check_number("cost of a handle's state", value, 0)
    if not isinstance(growth, list | tuple) or len(growth) not in (0, 4):
        raise InvalidValue(sentence("growth of a handle's state", growth, "empty, or layer, factor, step and layers"))
    if growth:
        check_text("the layer of the growth", growth[0])
        for value in growth[1:]:
            check_number("growth of a handle's state", value, 0)


def _check_tensors(name: str, tensors: Any, layer: LayerEngine) -> None:
    known = layer.tensors()
    if not isinstance(tensors, dict):
        raise InvalidValue(sentence(f"the state of layer {name!r}", tensors, "an object with tensors"))
    # What was timed is optional: another handle may have had no choice, or this one has none.
    if missing := {key for key in known if not key.endswith(".choice")} - tensors.keys():
        raise InvalidValue(f"the state of layer {name!r} is not whole; it lacks {', '.join(sorted(missing))}.")
    for key, tensor in tensors.items():
        like = known.get(key)
        if like is None and not str(key).endswith(".choice"):
            raise InvalidValue(f"the state of layer {name!r} has {str(key)[:60]!r}, which the layer does not.")
        kind = str(key).rpartition(".")[2]
        if kind == "counters" and isinstance(tensor, Tensor) and tensor.dim() == 1:
            tensor = all_counters(tensor)
        bounds = RANGES.get(kind)
        if kind == "choice":
            former = isinstance(tensor, Tensor) and tensor.numel() == FORMER_SLOTS
            like = zeros(FORMER_SLOTS if former else SLOTS, torch.int64, CPU)
            bounds = FORMER_CHOICE if former else bounds
        assert like is not None
        _check_tensor(f"{key} of layer {name!r}", tensor, like, bounds)
        if kind == "counters":
            counted = dict(zip(COUNTERS, tensor.tolist(), strict=True))
            if max(counted[part] for part in ("zeros_after", "zeros_before", "nan")) > counted["elements"]:
                raise InvalidValue(f"{key} of layer {name!r} counts more zeros or NaN than elements.")


def _check_tensor(what: str, tensor: Any, like: Tensor, bounds: Range | None) -> None:
    kind = f"{str(like.dtype).removeprefix('torch.')} of shape {tuple(like.shape)}"
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        raise InvalidValue(sentence(what, tensor, f"a tensor, {kind}"))
    if tensor.dtype != like.dtype or tensor.shape != like.shape:
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise InvalidValue(f"{what} must be {kind}; got {found}.")
    if bounds is None:
        return
    values = tensor.detach().to(CPU)
    low, high = (torch.tensor(bound, dtype=like.dtype, device=CPU) for bound in bounds)
    outside = ~((values >= low) & (values <= high))  # NaN lies nowhere
    if bool(outside.any()):
        raise InvalidValue(f"{what} has a value that cannot be: {values[outside][0].item()}.")


def _check_statistics(name: str, values: Any, statistics: OperandStatistics) -> None:
    what = f"the statistics of layer {name!r}"
    check_object(what, values, ("table", "step", "loss_scale", "passed_over", "allotted"), ("energies",))
    table = values["table"]
    size = 0 if isinstance(table, Tensor) and not table.numel() else HISTOGRAM_SLOTS
    _check_tensor(f"the histogram in {what}", table, zeros(size, torch.int64, CPU), RANGES["histogram"])
    if size and not int(table.sum()):
        raise InvalidValue(f"the histogram in {what} is empty.")
    check_whole(f"the step of {what}", values["step"], -1, LONGEST)
    check_whole(f"passed_over of {what}", values["passed_over"], 0, 1)
    if check_number(f"the loss scale of {what}", values["loss_scale"], 0) == 0:
        raise InvalidValue(f"the loss scale of {what} must be positive; got 0.")
    energies, allotted = values.get("energies", (0.0, 0.0)), values["allotted"]
    for part, count in ((energies, 2), (allotted, len(statistics.joint))):
        if not isinstance(part, list | tuple) or len(part) != count:
            raise InvalidValue(sentence(what, part, f"given {count} numbers there"))
    for energy in energies:
        check_number(f"an energy in {what}", energy, 0)
    for share in allotted:
        if not 0 < check_number(f"the allotted sparsity in {what}", share, 0, 1) < 1:
            raise InvalidValue(sentence(f"the allotted sparsity in {what}", share, "above 0 and below 1"))
