"""The state from which passes of a model start, so that several are comparable: buffers and random numbers."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class Start:
    """Buffers and the random state of now; `put_back` repeats a forward bit for bit, dropout included.

    Args:
        model: any module; what it keeps elsewhere than in buffers is not known.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [(module._buffers, dict(module._buffers)) for module in model.modules()]
        self._buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
        self._devices = list({one.device for one in model.parameters() if one.device.type == "cuda"})
        self._random = self._random_state()

    def take_random_state(self) -> None:
        """Take the random state of now for all passes to come."""
        self._random = self._random_state()

    def _random_state(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]

    def put_back(self) -> None:
        """Put buffers and the random state back."""
        first, *others = self._random
        torch.set_rng_state(first)
        for device, state in zip(self._devices, others, strict=True):
            torch.cuda.set_rng_state(state, device)
        for table, entries in self._tables:  # a forward may have bound a name to another tensor
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for buffer, before in self._buffers.items():
                buffer.copy_(before)


def taken(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, zero where none came, and take it from the parameter."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return gradient.to_dense() if gradient.is_sparse else gradient.detach()
