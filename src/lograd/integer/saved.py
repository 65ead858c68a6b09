"""Activations that other layers keep for the backward, as codes: those of BatchNorm, ReLU, LayerNorm, GELU and so on.

Layers in integers keep codes of their own.  What lies between them keeps float32 tensors, most of the memory of a
training step.  Here PyTorch is asked to keep 4- to 8-bit codes of these instead: each sample has its own range, and is
rounded stochastically, so gradients that are linear in what was kept are unbiased (Chen et al., ActNN, ICML 2021).
The result of a ReLU keeps its zeros and only these: the smallest positive number becomes one step, so that gradients
pass where they would have passed.  Parameters and buffers stay as they are, and so do small tensors.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from .. import native
from ..coded import CodedTensor
from ..errors import InvalidType, sentence
from ..formats.values import check_width
from ..ops import pack_integers
from ..ops.contracts import FLOATS
from .running import WhileRunning

SMALLEST = 2**16
"""Tensors with fewer elements are kept as they are."""


def saved_activations(model: nn.Module, bits: int = 8, seed: int = 0) -> SavedHandle:
    """Keep codes of activations for the backward of a model, from the next forward on.

        handle = lograd.integer.saved_activations(model, bits=8)
        ...
        handle.remove()

    As a context it is removed at the end.

    Args:
        model: any module; what its forward computes is unchanged.
        bits: 2 to 8; two codes share a byte where they have at most 4 bits.
        seed: of the rounding.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    check_width("bits", bits, 2, 8)
    return SavedHandle(model, bits, seed)


@final
class SavedHandle:
    """Activations kept as codes; `remove` makes the model what it was."""

    def __init__(self, model: nn.Module, bits: int, seed: int) -> None:
        self.bits = bits
        self.before, self.after = 0, 0
        """Bytes of all tensors that were kept as codes, and of these codes."""
        self._model = model
        self._own: set[int] = set()
        self._seed, self._drawn = seed, 0
        self._running = WhileRunning(model, self._hooks)

    def __enter__(self) -> SavedHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        share = f", {self.after / self.before:.0%} of the bytes" if self.before else ""
        return f"SavedHandle({self.bits} bits{share})"

    def words(self) -> str:
        """Return what is kept as codes, for people."""
        share = f", {self.after / self.before:.0%} of the bytes that they were" if self.before else ""
        return f"{self.bits}-bit codes of tensors from {SMALLEST:,} elements on{share}"

    def remove(self) -> None:
        """Let PyTorch keep tensors as they are again."""
        self._running.remove()

    def _hooks(self) -> saved_tensors_hooks:
        parts = (*self._model.parameters(), *self._model.buffers())
        self._own = {native.storage(each) for each in parts}
        return saved_tensors_hooks(self._packed, _unpacked)

    def _packed(self, tensor: Tensor) -> Tensor | CodedTensor:
        if tensor.numel() < SMALLEST or tensor.dtype not in FLOATS or type(tensor) is not Tensor:
            return tensor
        if native.storage(tensor) in self._own:
            return tensor
        coded = self._coded(tensor.detach(), of_relu=_is_of_relu(tensor))
        self.before += tensor.numel() * tensor.element_size()
        self.after += coded.nbytes
        return coded

    def _coded(self, x: Tensor, of_relu: bool) -> CodedTensor:
        """Codes of a tensor; those of a ReLU's result are zero where it is, and nowhere else."""
        coded: CodedTensor = pack_integers(
            x, self.bits, per="channel", rounding="stochastic", seed=self._seed, offset=self._drawn
        )
        self._drawn += x.numel()
        if of_relu:
            torch.maximum(coded.codes, (x > 0).to(torch.uint8), out=coded.codes)
        return coded.in_nibbles() if self.bits <= 4 else coded


def _is_of_relu(tensor: Tensor) -> bool:
    return tensor.grad_fn is not None and tensor.grad_fn.name().startswith("ReluBackward")


def _unpacked(kept: Tensor | CodedTensor) -> Any:
    return kept.decode() if isinstance(kept, CodedTensor) else kept
