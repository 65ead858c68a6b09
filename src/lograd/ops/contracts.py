"""Contracts: what an operator takes, argument by argument, refused in one sentence before a kernel of any device runs.

PyTorch's own signatures know tensors and numbers only; that a key is an int64 pair, or that a gradient has the shape
that its layer gives, is said here and in the checks beside the operators.  Whoever calls `torch.ops.lograd` directly
meets these checks; the public functions have theirs, which speak of their own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence

FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Element types, and the number by which the native module knows each."""
FLOATS = tuple(FLOAT_TYPES)
WIDE_FLOATS = (*FLOATS, torch.float64)
BLOCKS = (16, 32, 64, 128)
"""Sizes of a Hadamard transform."""
COUNTS = 3
"""How many numbers count a result: its zeros, its NaN and its saturated elements."""


class Takes(NamedTuple):
    """A tensor argument."""

    dtypes: tuple[torch.dtype, ...] = ()
    """Those that it may have; any if there are none."""
    elements: int | None = None
    """The number of elements that it must have, in whatever shape; any number if None."""
    anywhere: bool = False
    """True if it may lie on another device than the first tensor."""

    def __str__(self) -> str:
        dtypes = " or ".join(type_name(dtype) for dtype in self.dtypes) or "a tensor"
        if self.elements is None:
            return dtypes
        return f"{dtypes} of {self.elements} element" + ("s" if self.elements != 1 else "")


NUMBER = Takes((torch.float32,), 1)
TENSORS: dict[str, Takes] = {
    "x": Takes(FLOATS),
    "g": Takes(FLOATS),
    "weight": Takes(FLOATS),
    "threshold": NUMBER,
    "step": NUMBER,
    "scale": NUMBER,
    "tensor_scale": NUMBER,
    "gamma": Takes(WIDE_FLOATS, 1),
    "key": Takes((torch.int64,), 2),
    "codes": Takes((torch.uint8,)),
    "packed": Takes((torch.uint8,)),
    "scales": Takes((torch.uint8,)),
    "parameters": Takes((torch.float32,)),
    "groups": Takes((torch.int64,)),
    "stretch": Takes((torch.float32,)),
}
"""By the argument's name; the name says the same in every operator, unless the operator says otherwise."""

NUMBERS: dict[str, range | tuple[Any, ...]] = {
    "bits": range(2, 9),
    "bins": range(1, 256),
    "block": BLOCKS,
    "dtype": FLOATS,
    "mantissa": range(8),
    "smallest_exponent": range(-100, 101),
    "a_zero": range(256),
    "b_zero": range(256),
    "g_zero": range(256),
    "weight_zero": range(256),
    "x_zero": range(256),
}
"""Valid values of arguments that are no tensors."""


class Contract:
    """The rules of one operator."""

    def __init__(self, name: str, schema: Any, takes: Mapping[str, Takes], more: Callable[..., None] | None) -> None:
        self._name, self._more = name, more
        known = {**TENSORS, **takes}
        names = [argument.name for argument in schema.arguments]
        tensors = {argument.name for argument in schema.arguments if "Tensor" in str(argument.type)}
        self.first = names[0]
        self._tensors = [(i, name, known[name]) for i, name in enumerate(names) if name in known and name in tensors]
        self._numbers = [(i, name, NUMBERS[name]) for i, name in enumerate(names) if name in NUMBERS]

    @property
    def covered(self) -> set[str]:
        """The arguments that have a rule of their own."""
        return {name for _, name, _ in (*self._tensors, *self._numbers)}

    def check(self, *arguments: Any) -> None:
        """Refuse an argument that is not what its name says, and arguments that do not fit together."""
        self._check_each(arguments)
        if self._more is not None:
            self._more(*arguments)

    def _check_each(self, arguments: tuple[Any, ...]) -> None:
        for place, name, (dtypes, elements, _) in self._tensors:
            value = arguments[place]
            if not isinstance(value, Tensor):
                if value is not None and not isinstance(value, list):  # an optional argument, and a list of tensors
                    check_tensor(name, value)
                continue
            if dtypes and value.dtype not in dtypes:
                raise InvalidType(self._sentence(place, name, value))
            if elements is not None and value.numel() != elements:
                raise InvalidValue(self._sentence(place, name, value))
        for place, name, valid in self._numbers:
            if arguments[place] not in valid:
                expected = f"from {valid[0]} to {valid[-1]}" if isinstance(valid, range) else _list(valid)
                raise InvalidValue(sentence(f"{name} of lograd::{self._name}", _shown(arguments[place]), expected))

    def _check_devices(self, arguments: tuple[Any, ...]) -> None:
        first = arguments[0].device
        for place, name, takes in self._tensors:
            value = arguments[place]
            if not isinstance(value, Tensor):
                continue
            # On the meta device nothing is read, so that small tensors may stay where they are.
            if value.device != first and not takes.anywhere and first.type != "meta":
                raise InvalidValue(
                    f"the tensors of lograd::{self._name} must lie on one device; {name} is on {value.device}, and "
                    f"the first on {first}."
                )

    def _sentence(self, place: int, name: str, value: Tensor) -> str:
        takes = next(takes for at, _, takes in self._tensors if at == place)
        got = f"{type_name(value.dtype)} of shape {tuple(value.shape)}"
        return f"{name} of lograd::{self._name} must be {takes}; got {got}."

    def guarded(self, kernel: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
        """Return the kernel behind the rules of each argument, and of several together unless `alone`."""

        def run(*arguments: Any) -> Any:
            self._check_each(arguments)
            self._check_devices(arguments)
            if self._more is not None and not alone:
                self._more(*arguments)
            return kernel(*arguments)

        return run


def check_tensor(what: str, x: object) -> None:
    """Refuse what is not a tensor; `what` is its name in the message."""
    if not isinstance(x, Tensor):
        raise InvalidType(sentence(what, f"an object of type {type(x).__name__}", "a tensor"))


def type_name(dtype: torch.dtype) -> str:
    """Return the name of an element type without the prefix 'torch.'."""
    return str(dtype).removeprefix("torch.")


def _shown(value: Any) -> Any:
    return f"an element type {type_name(value)}" if isinstance(value, torch.dtype) else value


def _list(values: tuple[Any, ...]) -> str:
    *most, last = (type_name(value) if isinstance(value, torch.dtype) else str(value) for value in values)
    return f"{', '.join(most)} or {last}"
