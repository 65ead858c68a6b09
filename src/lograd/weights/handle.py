"""`low_precision_weights` stores the weights of a model as codes, and returns the handle that counts, saves and undoes.

Parameters stay the objects that they were, under the same names; only what is inside changes.  So optimizers that have
them, tied weights and state_dict go on as before.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..attachment.explain import Explanation
from ..attachment.refresh import mix
from ..errors import InvalidType, InvalidValue, nearest_name, plural, sentence
from ..formats import Format
from ..ops.contracts import FLOATS, type_name
from ..ops.layouts import is_dense
from .coding import check_weight_format
from .stepping import AT_ONCE, Stepping, check_optimizer
from .tensor import GROWN, LOST, SHRUNK, LowPrecisionTensor

PARTS = ("codes", "spacing", "ledger")
"""The tensors of a weight in low precision that a state holds."""
STEPS = "lograd.steps"
"""The name of the tensor in a state that holds the steps."""


def low_precision_weights(
    model: nn.Module,
    format: Format | str,
    *,
    optimizer: Optimizer | None = None,
    keep: str | Iterable[str] = (),
    seed: int = 0,
) -> WeightsHandle:
    """Store the weights of a model in low precision only, in place.

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
        ...                                                     # train as before
        torch.save(handle.plain_state_dict(), "weights.pt")     # plain, for anyone

    A forward or backward decodes a weight where it needs it and frees the numbers again.  A step of the optimizer is
    computed in float32, a few weights at a time, and rounded once, stochastically, so that the mean of what is stored
    is the exact result.

    Args:
        model: any module.  Wrap it in DistributedDataParallel and compile it afterwards, not before.
        format: "int8", "e4m3fn", "e5m2" or another format of at most 8 bits, one byte for each weight; or "bfloat16".
        optimizer: the one that trains the model; `handle.bind` takes one that is made later, or a second one.
        keep: names of parameters or modules that stay as they are; * stands for anything.  Vectors, such as biases and
            the parameters of normalisation, stay in any case.
        seed: of the rounding.  Random numbers depend on it, the weight, the step and the element; not on the rank of a
            process group, so that ranks keep equal weights.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InvalidType(sentence("seed", seed, "a whole number"))
    stored_as = check_weight_format(format)
    parameters, kept = _chosen(model, keep)
    if optimizer is not None:
        check_optimizer(optimizer, parameters.values())
    seed = operator.index(seed)
    stored = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        stream = int(mix(mix(np.uint64(seed % 2**64)) + np.uint64(number)).astype(np.int64))
        stored[name] = nn.Parameter(LowPrecisionTensor.of(parameter, stored_as, stream), parameter.requires_grad)
    _swap_all(parameters, stored)
    handle = WeightsHandle(model, parameters, kept)
    if optimizer is not None:
        handle.bind(optimizer)
    return handle


class WeightCounters(NamedTuple):
    """Exact counts of what a handle has done, and bytes in memory now."""

    steps: int
    """Steps of the optimizers that are bound."""
    weights: int
    """Weights in low precision, element by element."""
    elements: int
    """Elements that were rounded stochastically."""
    grown: int
    """Rows that got a wider spacing, since a weight left the range."""
    shrunk: int
    """Rows that got a finer spacing, since their weights had become small."""
    lost: int
    """Rows that were written with NaN or infinity among them, and decode to NaN; for bfloat16, such elements."""
    bytes: int
    """Bytes of the weights in low precision, spacings included."""
    float_bytes: int
    """Bytes that they had before."""


@final
class WeightsHandle:
    """Weights in low precision; `remove` makes them plain parameters again, with their present values."""

    def __init__(self, model: nn.Module, weights: dict[str, Any], kept: dict[str, str]) -> None:
        self.model, self.weights, self.kept = model, weights, kept
        """The model; its weights in low precision by name, none after `remove`; parameters left alone, and why."""
        self._steppings: list[Stepping] = []
        self._steps_before = 0
        self._float_bytes = sum(weight.numel() * weight.element_size() for weight in weights.values())

    def __enter__(self) -> WeightsHandle:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self.remove()
        except InvalidValue:
            if kind is None:  # else the error of the block, whose graph holds the weights, is the one to see
                raise

    def __repr__(self) -> str:
        format = next((weight.format for weight in self.weights.values()), "removed")
        what = f"{plural(len(self.weights), 'weight')} of {type(self.model).__name__}"
        return f"WeightsHandle({what}, {format}, {plural(self.steps, 'step')})"

    @property
    def steps(self) -> int:
        """Steps of the optimizers that are bound."""
        return self._steps_before + sum(stepping.steps for stepping in self._steppings)

    def bind(self, optimizer: Optimizer) -> None:
        """Make the steps of an optimizer round once; one that is bound already stays so."""
        if all(stepping.optimizer is not optimizer for stepping in self._steppings):
            check_optimizer(optimizer, self.weights.values())
            self._steppings.append(Stepping(optimizer, self.weights.values()))

    # -- what happened --

    def counters(self) -> WeightCounters:
        """Return exact counts since the weights were stored, and the bytes that they have."""
        stored = self.weights.values()
        grown, shrunk, lost = (sum(int(weight.ledger[place]) for weight in stored) for place in (GROWN, SHRUNK, LOST))
        return WeightCounters(
            self.steps,
            sum(weight.numel() for weight in stored),
            sum(weight.rounded for weight in stored),
            grown,
            shrunk,
            lost,
            sum(weight.bytes for weight in stored),
            self._float_bytes,
        )

    def explain(self) -> Explanation:
        """Return a text to print: how each parameter is stored, or why it was left alone, and a summary."""
        lines = {name: _line(weight) for name, weight in self.weights.items()}
        counts = self.counters()
        summary = [
            f"{counts.weights:,} weights in {counts.bytes:,} bytes, {counts.bytes / max(counts.weights, 1):.2f} each "
            f"({counts.bytes / max(counts.float_bytes, 1):.0%} of before)",
            f"{plural(counts.steps, 'step')}; rows: {counts.grown:,} grown, {counts.shrunk:,} shrunk, "
            f"{counts.lost:,} lost to NaN or infinity",
        ]
        for stepping in self._steppings:
            how = f"at most {AT_ONCE:,} weights" if stepping.one_by_one else "all weights"
            summary.append(f"{type(stepping.optimizer).__name__}: {how} in float32 at a time, rounded once a step")
        if not self._steppings:
            summary.append("no optimizer is bound: each operator that changes a weight in place rounds it")
        return Explanation(lines | self.kept, ".\n".join(summary) + ".")

    # -- saving and undoing --

    def plain_state_dict(self) -> dict[str, Any]:
        """Return the model's state_dict with plain float tensors of the same values, for any program to load."""
        state = self.model.state_dict()
        return {name: part.decode() if isinstance(part, LowPrecisionTensor) else part for name, part in state.items()}

    def export(self) -> nn.Module:
        """Return a copy of the model with plain float parameters of the same values."""
        plain = copy.deepcopy(self.model)
        _make_plain({name: each for name, each in plain.named_parameters() if isinstance(each, LowPrecisionTensor)})
        return plain

    def state_dict(self) -> dict[str, Tensor]:
        """Return all weights in low precision, with their random numbers and counts: plain tensors by name.

        safetensors takes it as it is.  Together with the rest of the model's state and the optimizer's, a run goes on
        with the same bits.
        """
        state = {STEPS: torch.tensor(self.steps)}
        for name, weight in self.weights.items():
            for part in PARTS:
                state[f"{name}.{part}"] = getattr(weight, part).detach().clone(memory_format=torch.contiguous_format)
            state[f"{name}.format"] = torch.tensor(list(str(weight.format).encode()), dtype=torch.uint8)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the weights of another handle on the same model; a state that does not fit is refused whole."""
        _check_state(state, self.state_dict())
        for name, weight in self.weights.items():
            with torch.no_grad():
                for part in PARTS:
                    getattr(weight, part).copy_(state[f"{name}.{part}"])
                torch.autograd.graph.increment_version(weight)
        self._steps_before = int(state[STEPS])
        for stepping in self._steppings:
            stepping.steps = 0

    def remove(self) -> None:
        """Make the weights plain parameters again, with their present values; the optimizer's state, too."""
        _make_plain(self.weights)
        for stepping in self._steppings:
            stepping.remove()
        self._steps_before, self._steppings, self.weights = self.steps, [], {}


def _line(weight: LowPrecisionTensor) -> str:
    shape = " x ".join(map(str, weight.shape))
    return f"bfloat16, {shape}" if weight.bare else f"{weight.format}, {shape}, {plural(len(weight), 'spacing')}"


def _check_state(state: Any, own: dict[str, Tensor]) -> None:
    """Refuse a state whose names, types, shapes or formats are not those of a handle's own."""
    if not isinstance(state, dict):
        raise InvalidType(sentence("the state", state, "a dict of tensors, as state_dict() gives it"))
    for name in own.keys() ^ state.keys():
        whose = "state" if name in state else "weights"
        raise InvalidValue(f"{name!r} is a part of the {whose} alone.{nearest_name(str(name), own)}")
    for name, part in own.items():
        found = state[name]
        if not isinstance(found, Tensor) or (found.dtype, found.shape) != (part.dtype, part.shape):
            raise InvalidValue(sentence(f"{name!r} of the state", found, f"{part.dtype} of shape {tuple(part.shape)}"))
        if name.endswith(".format") and not torch.equal(found, part):
            text = bytes(found.tolist()).decode(errors="replace")
            raise InvalidValue(sentence(f"{name!r} of the state", text, bytes(part.tolist()).decode()))


# -- which parameters --


def _chosen(model: nn.Module, keep: str | Iterable[str]) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
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


# -- parameters that get another inside: the objects stay, and so does all that holds them or hangs on them --

_swap: Any = torch.utils.swap_tensors  # untyped
_INSIDE = {"codes", "spacing", "ledger", "format", "part", "_is_param"}
"""Attributes that belong to what is inside; any other was put there by the user."""


def _make_plain(weights: dict[str, Any]) -> None:
    _swap_all(weights, {name: nn.Parameter(each.decode(), each.requires_grad) for name, each in weights.items()})


def _swap_all(parameters: dict[str, Any], others: dict[str, Any]) -> None:
    """Swap each parameter with the other of its name; all of them, or none.

    Gradient, hooks and the user's attributes stay with the parameter.
    """
    done: list[str] = []
    for name, parameter in parameters.items():
        others[name].grad = parameter.grad
        try:
            _swap_inside(parameter, others[name])
        except RuntimeError as error:
            for other in done:
                _swap_inside(parameters[other], others[other])
            raise InvalidValue(
                f"{name!r} is held by a graph, by DistributedDataParallel or by compiled code, which would go on with "
                "the old numbers; change how weights are stored before these are made, or after they are gone. "
                f"PyTorch says: {str(error).splitlines()[0].rstrip(chr(46))}."
            ) from None
        done.append(name)


def _swap_inside(parameter: Any, other: Any) -> None:
    _swap(parameter, other)
    parameter.__dict__.update({name: value for name, value in other.__dict__.items() if name not in _INSIDE})
    # The dicts of hooks stay with the object, but PyTorch calls them from what is inside: assigning tells it.
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, hooks):
            setattr(parameter, hooks, getattr(parameter, hooks))
