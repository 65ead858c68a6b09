"""What the operators' public functions take and give: checks, conversions and the counted result."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from .library import FLOAT_TYPES

Scalar = float | Tensor


class Counted(NamedTuple):
    """A result with what was counted: exact zeros, NaN and saturated elements of it.

    Operators on single elements (`elementwise`) count the zeros of x as a fourth.
    """

    result: Tensor
    counts: Tensor


def describe(x: Tensor) -> str:
    return f"{type_name(x.dtype)} {tuple(x.shape)} with strides {tuple(x.stride())}"


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_tensor(what: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise InvalidType(sentence(what, f"an object of type {type(x).__name__}", "a tensor"))


def check_floats(x: object) -> None:
    check_tensor("x", x)
    if isinstance(x, Tensor) and x.dtype not in FLOAT_TYPES:
        raise InvalidType(f"x must be float32, bfloat16 or float16; got {type_name(x.dtype)}.")


def check_codes(what: str, codes: object) -> None:
    check_tensor(what, codes)
    if isinstance(codes, Tensor) and codes.dtype != torch.uint8:
        raise InvalidType(f"{what} must be uint8; got {type_name(codes.dtype)}.")


def scalar(what: str, value: Scalar, x: Tensor, low: float) -> Tensor:
    """A number, or a float tensor of one element, as a float32 tensor beside x."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise InvalidValue(f"{what} must be a number or a float tensor of one element; got {describe(value)}.")
        return value.to(dtype=torch.float32)
    if not (isinstance(value, float | int) and math.isfinite(value) and value >= low):
        raise InvalidValue(sentence(what, value, "finite and zero or positive" if low == 0 else "finite and positive"))
    return _number(float(value), x.device) if torch.compiler.is_compiling() else _cached_number(float(value), x.device)


def key_of(seed: int | Tensor, offset: int | Tensor, x: Tensor) -> Tensor:
    """The int64 pair (seed, offset) beside x; a tensor of two elements as the seed is that pair already."""
    if isinstance(seed, Tensor) and seed.shape == (2,):
        if seed.dtype != torch.int64 or not isinstance(offset, int) or offset:
            raise InvalidValue(
                f"a seed of two elements is the int64 pair (seed, offset), without offset=; got {describe(seed)}."
            )
        return seed
    if isinstance(seed, int) and isinstance(offset, int):
        return (_pair if torch.compiler.is_compiling() else _cached_pair)(seed, offset, x.device)
    parts = [torch.as_tensor(part, dtype=torch.int64, device=x.device).reshape(()) for part in (seed, offset)]
    return torch.stack(parts)


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
