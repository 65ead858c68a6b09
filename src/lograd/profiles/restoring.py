"""A model lent out and given back bit for bit, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..attachment.swap import engine_of


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give back parameters, buffers, gradients, modes and random state as they were, also after an exception.

    So are the counters, histograms and random keys of an attached plan: the run goes on as if nobody had looked.  What
    a model keeps elsewhere, such as a counter in a plain attribute, is not known and stays as it is.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    tables: list[Any] = [table for module in modules for table in (module._parameters, module._buffers)]
    owned = [(table, dict(table)) for table in tables]
    engines = [engine for module in modules if (engine := engine_of(module)) is not None]
    tables += [engine.tensors() for engine in engines]
    tensors = {tensor: tensor.detach().clone() for table in tables for tensor in table.values() if tensor is not None}
    needs = {tensor: tensor.requires_grad for tensor in tensors}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            for table, entries in owned:
                table.clear()
                table.update(entries)
            with torch.no_grad():
                for tensor, before in tensors.items():
                    tensor.copy_(before)
                    tensor.requires_grad_(needs[tensor])
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
