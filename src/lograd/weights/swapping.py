"""Parameters that get another inside: the objects stay, and so does all that holds them."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidValue

_swap: Any = torch.utils.swap_tensors  # untyped


def swap_all(parameters: dict[str, Any], others: dict[str, Any]) -> None:
    """Swap each parameter with the other of its name, gradient aside; all of them, or none."""
    done: list[str] = []
    for name, parameter in parameters.items():
        others[name].grad = parameter.grad
        try:
            _swap(parameter, others[name])
        except RuntimeError as error:
            for other in done:
                _swap(parameters[other], others[other])
            raise InvalidValue(
                f"{name!r} is held by a graph, by DistributedDataParallel or by compiled code, which would go on with "
                "the old numbers; change how weights are stored before these are made, or after they are gone. "
                f"PyTorch says: {str(error).splitlines()[0].rstrip(chr(46))}."
            ) from None
        done.append(name)
