"""Which tensors that autograd keeps may be kept in fewer bits, by the node of the graph that keeps them.

A rule takes a node and a tensor that it keeps, and returns a smaller form of the tensor, or None to keep it as it is.
There are three kinds:

- Exact.  The backward of a piecewise-linear function reads on which piece x lies, so one bit for each element gives
  the same gradient bit for bit; so does one bit for each element of a dropout mask.  Pooling reads shapes.
- Rounded, in functions whose gradient has bounded derivatives with respect to x: GELU, SiLU and normalizations.
- Rounded, as operands of products.  The gradient is linear in them, so stochastic rounding leaves it unbiased.  That is
  not enough where few terms are summed and the noise then meets a division by the same number: the product in p log p
  gives g p to the logarithm, which divides it by p.  So an operand is rounded if its product sums over at least
  `SUMMED` terms, or if both operands come from parameters or products through functions with bounded derivatives only.

Nodes without a rule keep what they keep: log, sqrt, powers, divisions, softmax, compiled code, functions of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from ..ops.coded import CodedTensor

SUMMED = 16
"""Products that sum over as many terms as this average the noise of an operand."""
SHORTEST_ROW = 64
"""Elements that share a range, at least: a range takes 8 bytes."""


class SavedForm(Protocol):
    """A smaller form of a tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""

    def decode(self) -> Tensor:
        """Return a tensor on which the backward gives the gradient."""


Round = Callable[[Tensor], CodedTensor]
"""Rounds a contiguous matrix, each row in a range of its own."""
Rule = Callable[[Any, Tensor, Round], SavedForm | None]
"""Returns a form of a tensor that a node keeps, or None to keep it as it is."""


# ---------------------------------------------------------------------------------------------------------------- forms


@final
@dataclass(frozen=True)
class Order:
    """The shape of a tensor and the order in which its dimensions lie in memory."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]

    def restore(self, values: Tensor) -> Tensor:
        """Return values that lie in this order, in the shape."""
        inverse = [self.dims.index(dim) for dim in range(len(self.dims))]
        return values.view([self.shape[dim] for dim in self.dims]).permute(inverse)


def ordered(x: Tensor) -> tuple[Tensor, Order]:
    """Return a tensor with its dimensions in the order of memory, contiguous, and the way back.

    One with gaps or overlaps is copied.
    """
    strides = x.stride()
    dims = tuple(sorted(range(x.dim()), key=lambda dim: (x.shape[dim] == 1, -strides[dim], dim)))
    moved = x.permute(dims)
    if moved.is_contiguous():
        return moved, Order(tuple(x.shape), dims)
    return x.contiguous(), Order(tuple(x.shape), tuple(range(x.dim())))


@final
@dataclass(frozen=True)
class Rounded:
    """Codes of a matrix in memory order."""

    coded: CodedTensor
    order: Order

    @property
    def nbytes(self) -> int:
        """Bytes of codes and ranges."""
        return self.coded.nbytes

    def decode(self) -> Tensor:
        """Return the rounded tensor."""
        return self.order.restore(self.coded.decode())


@final
@dataclass(frozen=True)
class Mask:
    """One bit for each element, which chooses between two values."""

    bits: Tensor
    order: Order
    off: float
    on: float
    dtype: torch.dtype

    @classmethod
    def of(cls, where: Tensor, dtype: torch.dtype, off: float, on: float) -> Mask:
        """Return the mask of a tensor of booleans."""
        moved, order = ordered(where)
        flat = moved.reshape(-1)
        # Other devices have no operator that packs bits, and keep bytes.
        bits = torch.from_numpy(np.packbits(flat.numpy())) if flat.device.type == "cpu" else flat
        return cls(bits, order, off, on, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the mask."""
        return self.bits.numel()

    def decode(self) -> Tensor:
        """Return the values, in the layout that the tensor had."""
        flat = self.bits
        if flat.dtype != torch.bool:
            flat = torch.from_numpy(np.unpackbits(flat.numpy(), count=prod(self.order.shape))).view(torch.bool)
        off, on = (torch.tensor(value, dtype=self.dtype, device=flat.device) for value in (self.off, self.on))
        return self.order.restore(torch.where(flat, on, off))


@final
@dataclass(frozen=True)
class Shape:
    """Zeros in the layout of a tensor whose values are never read."""

    order: Order
    dtype: torch.dtype
    device: torch.device
    nbytes: int = 0

    def decode(self) -> Tensor:
        """Return zeros."""
        return self.order.restore(torch.zeros(prod(self.order.shape), dtype=self.dtype, device=self.device))


def rounded_form(x: Tensor, round: Round, length: int = 0) -> SavedForm | None:
    """Return codes with a range for each sample, or for `length` elements of a contiguous x; None for NaN and infinity.

    A range holds at least `SHORTEST_ROW` elements.
    """
    moved, order = ordered(x)
    rows = next((size for size in moved.shape if size > 1), 1)
    if length >= SHORTEST_ROW and order.dims == tuple(range(x.dim())):
        rows = moved.numel() // length
    while moved.numel() // rows < SHORTEST_ROW and rows % 2 == 0:
        rows //= 2
    if moved.numel() // rows < SHORTEST_ROW:
        rows = 1
    coded = round(moved.reshape(rows, -1))
    return Rounded(coded, order) if bool(coded.scale.isfinite().all()) else None


# ---------------------------------------------------------------------------------------------------------- exact rules


def _relu(node: Any, x: Tensor, round: Round) -> SavedForm:
    return Mask.of(~(x <= 0), x.dtype, 0.0, 1.0)  # a NaN passes, as in PyTorch


def _leaky_relu(node: Any, x: Tensor, round: Round) -> SavedForm:
    return Mask.of(x > 0, x.dtype, -1.0, 1.0)


def _hardtanh(node: Any, x: Tensor, round: Round) -> SavedForm | None:
    return _open(x, node._saved_min_val, node._saved_max_val)


def _hardsigmoid(node: Any, x: Tensor, round: Round) -> SavedForm | None:
    return _open(x, -3.0, 3.0)


def _open(x: Tensor, low: float, high: float) -> SavedForm | None:
    """Return whether elements lie strictly between two numbers, as a number between them or the upper one."""
    ends = torch.tensor([low, high, low / 2 + high / 2], dtype=x.dtype)
    if not bool(ends[0] < ends[2] < ends[1]) or bool(x.isnan().any()):
        return None  # which gradients pass at a NaN depends on its place in PyTorch's vectors
    return Mask.of(~((x <= low) | (x >= high)), x.dtype, float(ends[1]), float(ends[2]))


def _shape(node: Any, x: Tensor, round: Round) -> SavedForm:
    return Shape(ordered(x)[1], x.dtype, x.device)


def _two_valued(x: Tensor) -> SavedForm | None:
    """Return the bits of a tensor of zeros and one other value, such as a dropout mask; None for any other tensor."""
    start = x.flatten()[:64] if x.is_contiguous() else x.select(0, 0)
    if torch.unique(start).numel() > 2:  # nearly all others end here
        return None
    value = x.max() if bool(x.max() > 0) else x.min()
    where = x != 0
    if not bool(value.isfinite()) or not bool((x == torch.where(where, value, torch.zeros_like(value))).all()):
        return None
    return Mask.of(where, x.dtype, 0.0, value.item())


# -------------------------------------------------------------------------------------------------------- rounded rules


def _smooth(node: Any, x: Tensor, round: Round) -> SavedForm | None:
    return rounded_form(x, round)


def _layer_norm(node: Any, x: Tensor, round: Round) -> SavedForm | None:
    # A row's noise must be small beside its own deviation, by which the backward divides.
    return rounded_form(x, round, prod(node._saved_normalized_shape))


def _group_norm(node: Any, x: Tensor, round: Round) -> SavedForm | None:
    return rounded_form(x, round, x.numel() // (x.shape[0] * node._saved_group))


def _operand(summed: Callable[[Tensor], int]) -> Rule:
    """Return the rule of an operand of a product; `summed` counts the terms of the sums that it enters."""

    def rule(node: Any, x: Tensor, round: Round) -> SavedForm | None:
        if summed(x) < SUMMED:
            exact = _two_valued(x)
            if exact is not None or not all(is_bounded(following) for following, _ in node.next_functions):
                return exact
        return rounded_form(x, round)

    return rule


def is_bounded(node: Any, depth: int = 32) -> bool:
    """Return True if noise in the gradient of a node's output is only multiplied by bounded numbers.

    The graph is followed up to parameters and products.
    """
    if node is None or depth == 0:
        return node is None
    name = node.name()
    if name == "torch::autograd::AccumulateGrad" or name in _SUMS or hasattr(_function(node), "lograd_operands"):
        return True
    if name not in _BOUNDED and not hasattr(_function(node), "lograd_normalized"):
        return False
    return all(is_bounded(following, depth - 1) for following, _ in node.next_functions)


def _function(node: Any) -> Any:
    """Return the class of a torch.autograd.Function; None for a node of PyTorch's own."""
    return getattr(type(node), "_forward_cls", None)


_CHANNELS = _operand(lambda x: x.numel() // x.shape[1])
_FILTERS = _operand(lambda x: x.shape[0])

_RULES: dict[str, dict[str | int, Rule]] = {
    "ReluBackward0": {"_saved_result": _relu},
    "LeakyReluBackward0": {"_saved_self": _leaky_relu},
    "LeakyReluBackward1": {"_saved_result": _leaky_relu},
    "HardtanhBackward0": {"_saved_self": _hardtanh},
    "HardsigmoidBackward0": {"_saved_self": _hardsigmoid},
    "MaxPool2DWithIndicesBackward0": {"_saved_self": _shape},
    "AvgPool2DBackward0": {"_saved_self": _shape},
    "AdaptiveAvgPool2DBackward0": {"_saved_self": _shape},
    "GeluBackward0": {"_saved_self": _smooth},
    "SiluBackward0": {"_saved_self": _smooth},
    "NativeBatchNormBackward0": {"_saved_input": _smooth},
    "CudnnBatchNormBackward0": {"_saved_input": _smooth},
    "NativeLayerNormBackward0": {"_saved_input": _layer_norm},
    "NativeGroupNormBackward0": {"_saved_input": _group_norm},
    "ConvolutionBackward0": {"_saved_input": _CHANNELS, "_saved_weight": _FILTERS},
    "MmBackward0": {
        "_saved_self": _operand(lambda x: x.shape[0]),
        "_saved_mat2": _operand(lambda x: x.shape[1]),
    },
    "AddmmBackward0": {
        "_saved_mat1": _operand(lambda x: x.shape[0]),
        "_saved_mat2": _operand(lambda x: x.shape[1]),
    },
    "BmmBackward0": {
        "_saved_self": _operand(lambda x: x.shape[1]),
        "_saved_mat2": _operand(lambda x: x.shape[2]),
    },
    "BaddbmmBackward0": {
        "_saved_batch1": _operand(lambda x: x.shape[1]),
        "_saved_batch2": _operand(lambda x: x.shape[2]),
    },
    "MulBackward0": {"_saved_self": _operand(lambda x: 1), "_saved_other": _operand(lambda x: 1)},
    # Its backward computes exp(q k - logsumexp) again, so q and k stay; it is linear in the values and in the result.
    "ScaledDotProductFlashAttentionForCpuBackward0": {"_saved_value": _smooth, "_saved_output": _smooth},
}
"""By the name of a node, the rules of the tensors that it keeps under these attributes."""

_SUMS = {"ConvolutionBackward0", "MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0"}
_BOUNDED = {
    "ReluBackward0", "GeluBackward0", "SiluBackward0", "SigmoidBackward0", "TanhBackward0", "HardsigmoidBackward0",
    "HardtanhBackward0", "LeakyReluBackward0", "NativeBatchNormBackward0", "NativeLayerNormBackward0",
    "NativeGroupNormBackward0", "AddBackward0", "SubBackward0", "NegBackward0", "ViewBackward0", "UnsafeViewBackward0",
    "ReshapeAliasBackward0", "TransposeBackward0", "TBackward0", "PermuteBackward0", "SplitBackward0", "SliceBackward0",
    "SelectBackward0", "CloneBackward0", "ExpandBackward0", "UnsqueezeBackward0", "SqueezeBackward1", "CatBackward0",
    "UnbindBackward0", "MeanBackward0", "MeanBackward1", "AdaptiveAvgPool2DBackward0", "AvgPool2DBackward0",
    "ToCopyBackward0",
}  # fmt: skip
"""Nodes whose backward multiplies by bounded numbers."""


def rules_of(node: Any) -> dict[str | int, Rule]:
    """Return the rules of the tensors that a node keeps.

    Keys are attributes of a node of PyTorch's own, and places among the saved tensors of a torch.autograd.Function.
    Functions of lograd say which of these are x and weight of a layer (`lograd_operands`, places 0 and 1), or inputs of
    a normalization (`lograd_normalized`).
    """
    function = _function(node)
    if function is None:
        return _RULES.get(node.name(), {})
    if hasattr(function, "lograd_operands"):
        return {place: (_CHANNELS, _FILTERS)[place] for place in function.lograd_operands}
    return dict.fromkeys(getattr(function, "lograd_normalized", ()), _smooth)
