"""Parameters that get another inside: the objects stay, and so does all that holds them or hangs on them."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidValue

_swap: Any = torch.utils.swap_tensors  # untyped
_INSIDE = {"codes", "spacing", "ledger", "coding", "window", "_is_param"}
"""Attributes that belong to what is inside; any other was put there by the user."""


def swap_all(parameters: dict[str, Any], others: dict[str, Any]) -> None:
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
