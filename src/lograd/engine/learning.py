"""Operands whose range is learned: the gradient that a layer gives them is cut at the range, which gets its own.

The layer itself treats its operands straight through.  So an identity in front of it has all that differs: in its
backward it gets the gradient of the treated operand, and makes those of the operand and of the parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidValue
from ..ops.contracts import Takes
from ..ops.registry import call, register
from ..treatments import Sentence, memories
from .autograd import DoubleBackward
from .coding import parsed
from .site import Site


def learning(x: Tensor, site: Site) -> Tensor:
    """Return an operand as it is; its gradient goes to the parameter of the site as well."""
    if not site.held:
        site.follow(x.detach())
    result: Tensor = _Learning.apply(x, site.learned, site)  # type: ignore[no-untyped-call]
    return result


class _Learning(torch.autograd.Function):
    """The identity; see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, learned: Tensor, site: Site) -> Tensor:
        ctx.save_for_backward(x)
        ctx.site = site
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise DoubleBackward
        (x,) = ctx.saved_tensors
        d_x, d_learned = call("learned_gradients", g, x, ctx.site.text, ctx.site.memory)
        return d_x, d_learned, None


def _follow(x: Tensor, text: str, learned: Tensor, memory: Tensor) -> None:
    for one, part in zip(parsed(text), memories(parsed(text), memory), strict=True):
        if one.learns:
            one.follow(x, float(learned), part)


def _gradients(g: Tensor, x: Tensor, text: str, memory: Tensor) -> tuple[Tensor, Tensor]:
    treatments = parsed(text)
    (found,) = (
        one.learn(g, x, part) for one, part in zip(treatments, memories(treatments, memory), strict=True) if one.learns
    )
    return found


def _check(treatments: Sentence, memory: Tensor) -> None:
    size = sum(one.memory_size for one in treatments)
    if sum(one.learns for one in treatments) != 1 or memory.numel() != size:
        raise InvalidValue(
            f"one of these treatments must learn, with a memory of {size}; got {memory.numel()} numbers."
        )


def _check_gradients(g: Tensor, x: Tensor, text: str, memory: Tensor) -> None:
    _check(parsed(text), memory)
    if g.shape != x.shape:
        raise InvalidValue(f"g must have the shape of x, {tuple(x.shape)}; got {tuple(g.shape)}.")


_TAKES = {"learned": Takes((torch.float32,), 1), "memory": Takes((torch.float64,))}
register(
    "follow_learned(Tensor x, str treatments, Tensor learned, Tensor(a!) memory) -> ()",
    _follow,
    _follow,
    lambda x, text, learned, memory: None,
    lambda x, text, learned, memory: _check(parsed(text), memory),
    _TAKES,
)
register(
    "learned_gradients(Tensor g, Tensor x, str treatments, Tensor memory) -> (Tensor, Tensor)",
    _gradients,
    _gradients,
    lambda g, x, text, memory: (torch.empty_like(g), memory.new_empty(1, dtype=torch.float32)),
    _check_gradients,
    {"memory": Takes((torch.float64,))},
)
