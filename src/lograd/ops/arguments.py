"""Arguments and results of the operators' public functions: checks, conversions and the counted result."""

from __future__ import annotations

import numbers
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from .contracts import FLOAT_TYPES, check_tensor, type_name
from .registry import watched

Rounding = Literal["nearest", "stochastic"]
Scalar = float | Tensor
Seed = int | Tensor
"""A seed or an offset; as a seed also the int64 pair of both."""


class Counted(NamedTuple):
    """A result with what was counted: exact zeros, NaN and saturated elements of it.

    Operators on single elements (`elementwise`) count the zeros of x as a fourth.
    """

    result: Tensor
    counts: Tensor


def tensor_words(x: Tensor) -> str:
    """Return the type, shape and strides of a tensor in words, for a message."""
    return f"{type_name(x.dtype)} {tuple(x.shape)} with strides {tuple(x.stride())}"


def check_floats(x: object) -> None:
    """Refuse an x that is not a tensor of a type that the operators take."""
    check_tensor("x", x)
    if isinstance(x, Tensor) and x.dtype not in FLOAT_TYPES:
        raise InvalidType(f"x must be float32, bfloat16 or float16; got {type_name(x.dtype)}.")


def scalar(what: str, value: Scalar, x: Tensor, low: float) -> Tensor:
    """A number, or a float tensor of one element, as a float32 tensor beside x."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise InvalidValue(f"{what} must be a number or a float tensor of one element; got {tensor_words(value)}.")
        return value.to(device=x.device, dtype=torch.float32)
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise InvalidType(sentence(what, value, "a number or a float tensor of one element"))
    try:
        number = float(value)
    except OverflowError:  # a whole number may be beyond any float
        number = float("inf")
    if not (_UNDERFLOW < number <= _LARGEST or (number == 0 and low == 0)):
        expected = "zero or positive" if low == 0 else "positive"
        raise InvalidValue(sentence(what, value, f"finite and {expected} in float32"))
    return (_number if _no_cache() else _cached_number)(number, x.device)


_UNDERFLOW = 2.0**-150
_LARGEST = torch.finfo(torch.float32).max


def in_type_of(x: Tensor, value: Tensor) -> Tensor:
    """A float32 scalar as x's type has it: what becomes a value of the result must not be rounded once more there."""
    if x.dtype in (torch.float32, torch.float64):
        return value
    return value.clamp(max=torch.finfo(x.dtype).max).to(x.dtype).float()


def key_of(seed: Seed, offset: Seed, x: Tensor) -> Tensor:
    """The int64 pair (seed, offset) beside x; a tensor of two elements as the seed is that pair already."""
    if type(seed) is int and type(offset) is int:
        return (_pair if _no_cache() else _cached_pair)(seed, offset, x.device)
    if isinstance(seed, Tensor) and seed.shape == (2,):
        if seed.dtype != torch.int64 or not isinstance(offset, int) or offset:
            raise InvalidValue(
                f"a seed of two elements is the int64 pair (seed, offset), without offset=; got {tensor_words(seed)}."
            )
        return seed.to(x.device)
    return torch.stack([_whole("seed", seed, x), _whole("offset", offset, x)])


def _whole(what: str, value: int | Tensor, x: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.dtype not in (torch.int64, torch.int32):
            raise InvalidValue(
                f"{what} must be a whole number or an integer tensor of one element; got {tensor_words(value)}."
            )
        return value.to(device=x.device, dtype=torch.int64).reshape(())
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidType(sentence(what, value, "a whole number or an integer tensor of one element"))
    return torch.tensor(_wrap(value.__index__()), dtype=torch.int64, device=x.device)


def _no_cache() -> bool:
    """Return True where tensors that are made now may not serve later: they may be fake, or belong to a trace."""
    return torch.compiler.is_compiling() or watched()


def _number(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=device)


def _pair(seed: int, offset: int, device: torch.device) -> Tensor:
    return torch.tensor([_wrap(seed), _wrap(offset)], device=device)


# A small tensor costs as much as a small kernel.  Operators only read these.
_cached_number = lru_cache(maxsize=512)(_number)
_cached_pair = lru_cache(maxsize=512)(_pair)


def _wrap(value: int) -> int:
    """A 64-bit pattern as the int64 that holds it."""
    return (value + 2**63) % 2**64 - 2**63
