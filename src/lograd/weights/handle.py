"""`low_precision_weights` stores the weights of a model as codes, and returns the handle that counts, saves and undoes.

Parameters stay the objects that they were, under the same names; only what is inside changes.  So optimizers that have
them, tied weights and state_dict go on as before.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from ..attachment.explain import Explanation
from ..attachment.refresh import mix
from ..errors import InvalidType, InvalidValue, plural, sentence
from ..formats import Format
from . import saving
from .choice import chosen
from .coding import Per, coding_of
from .counters import Counters, counted
from .moments import Moments
from .stepping import Stepping, check_optimizer
from .swapping import swap_all
from .tensor import LowPrecisionTensor
from .words import explained


def low_precision_weights(
    model: nn.Module,
    format: Format | str,
    *,
    optimizer: Optimizer | None = None,
    per: Per = "channel",
    state_bits: Literal[8] | None = None,
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
        per: one spacing for each output "channel", or one for the "tensor".
        state_bits: 8 also keeps the optimizer's moments as FP8 codes between steps; None leaves them as they are.
        keep: names of parameters or modules that stay as they are; * stands for anything.  Vectors, such as biases and
            the parameters of normalisation, stay in any case.
        seed: of the rounding.  Random numbers depend on it, the weight, the step and the element; not on the rank of a
            process group, so that ranks keep equal weights.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InvalidType(sentence("seed", seed, "a whole number"))
    if state_bits not in (None, 8) or isinstance(state_bits, bool):
        raise InvalidValue(sentence("state_bits", state_bits, "8, or None for the optimizer's own state"))
    coding = coding_of(format, per)
    parameters, kept = chosen(model, keep)
    if optimizer is not None:
        check_optimizer(optimizer, parameters.values())
    seed = operator.index(seed)
    swap_all(
        parameters,
        {
            name: nn.Parameter(LowPrecisionTensor.of(parameter, coding, _stream(seed, number)), parameter.requires_grad)
            for number, (name, parameter) in enumerate(parameters.items())
        },
    )
    handle = WeightsHandle(model, parameters, kept, seed, state_bits)
    if optimizer is not None:
        handle.bind(optimizer)
    return handle


@final
class WeightsHandle:
    """Weights in low precision; `remove` makes them plain parameters again, with their present values."""

    def __init__(
        self, model: nn.Module, weights: dict[str, Any], kept: dict[str, str], seed: int, state_bits: int | None
    ) -> None:
        self.model, self.weights, self.kept = model, weights, kept
        """The model; its weights in low precision by name; parameters that were left alone, and why."""
        self.seed, self.state_bits = seed, state_bits
        self._steppings: list[Stepping] = []
        self._steps_before = 0
        self._float_bytes = {name: weight.numel() * weight.element_size() for name, weight in weights.items()}
        self._removed = False

    def __enter__(self) -> WeightsHandle:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self.remove()
        except InvalidValue:
            if kind is None:  # else the error of the block, whose graph holds the weights, is the one to see
                raise

    def __repr__(self) -> str:
        coding = next((weight.coding.format for weight in self._stored().values()), "removed")
        what = f"{plural(len(self.weights), 'weight')} of {type(self.model).__name__}"
        return f"WeightsHandle({what}, {coding}, {plural(self.steps, 'step')})"

    @property
    def steps(self) -> int:
        """Steps of the optimizers that are bound."""
        return self._steps_before + sum(stepping.steps for stepping in self._steppings)

    def bind(self, optimizer: Optimizer) -> None:
        """Make the steps of an optimizer round once; one that is bound already stays so."""
        weights = self._present()
        check_optimizer(optimizer, weights.values())
        if all(stepping.optimizer is not optimizer for stepping in self._steppings):
            moments = Moments(self._seed_of_moment) if self.state_bits else None
            self._steppings.append(Stepping(optimizer, weights.values(), moments))

    def _seed_of_moment(self, weight: LowPrecisionTensor, part: int) -> int:
        number = next(place for place, each in enumerate(self.weights.values()) if each is weight)
        return _stream(self.seed, number, part + 1)

    def _stored(self) -> dict[str, LowPrecisionTensor]:
        return {} if self._removed else self.weights

    def _present(self) -> dict[str, LowPrecisionTensor]:
        if self._removed:
            raise InvalidValue(
                "the handle was removed, and the weights are plain parameters again; call low_precision_weights anew."
            )
        return self.weights

    # -- what happened --

    def counters(self) -> Counters:
        """Return exact counts since the weights were stored, and the bytes that they have."""
        return counted(self._stored(), self.steps, sum(self._float_bytes.values()))

    def explain(self) -> Explanation:
        """Return a text to print: how each parameter is stored, or why it was left alone, and a summary."""
        return explained(self._stored(), self.kept, self.counters(), self._steppings, self.state_bits)

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
        return saving.state_of(self._present(), self.steps)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the weights of another handle on the same model; a state that does not fit is refused whole."""
        self._steps_before = saving.load_state(self._present(), state)
        for stepping in self._steppings:
            stepping.steps = 0

    def remove(self) -> None:
        """Make the weights plain parameters again, with their present values; the optimizer's state, too."""
        if self._removed:
            return
        _make_plain(self.weights)
        for stepping in self._steppings:
            stepping.remove()
        self._removed = True


def _make_plain(weights: dict[str, Any]) -> None:
    swap_all(weights, {name: nn.Parameter(each.decode(), each.requires_grad) for name, each in weights.items()})


def _stream(seed: int, *numbers: int) -> int:
    """A seed of its own for each weight, and each part of its optimizer state."""
    found = mix(np.uint64(seed % 2**64))
    for number in numbers:
        found = mix(found + np.uint64(number))
    return int(np.int64(found.astype(np.int64)))
