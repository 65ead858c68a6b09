"""BatchNorm in training with a sum and a ReLU in the same pass, and its backward; float32, channels in dimension 1.

    y = max((x - mean) inverse weight + bias + residual, 0)

Each takes two passes over memory at most.  Sums are taken in float64 and in a fixed order, so no result depends on
threads, instruction set or layout.  The gradient passes the ReLU where its bit of a mask says so: the mask has a bit
for each element, in the order of memory.

The order of a channel's sums: pieces of 1024 places of an image, in each of these four sums of the places p with equal
p % 4, and then pieces in turn.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidValue
from .contracts import Takes
from .registry import call, register, run, when_native

PIECE, LANES = 1024, 4
MASK_TAIL = 3
"""Bytes behind the bits of a mask: kernels read words."""
Optional = Tensor | None
Statistics = tuple[Tensor, Tensor, Tensor]
Normalized = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class BatchStatistics(NamedTuple):
    """Statistics of the channels of a tensor, in float32."""

    mean: Tensor
    variance: Tensor
    """Biased: the mean of squares."""
    inverse: Tensor
    """1 / sqrt(variance + epsilon)."""


class BatchNormalized(NamedTuple):
    """A normalised tensor, and where a gradient passes its ReLU."""

    result: Tensor
    mask: Tensor
    """uint8, a bit for each element of memory; empty without a ReLU."""


class BatchNormGradients(NamedTuple):
    """The gradients of a BatchNorm."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor
    """The gradient behind the ReLU, where it was asked for and there is a ReLU; else empty."""


def batch_statistics(x: Tensor, epsilon: float = 1e-5) -> BatchStatistics:
    """Return mean, variance and inverse standard deviation of each channel (dimension 1) of x.

    >>> batch_statistics(torch.tensor([[1.0], [3.0]]), 0.0).mean.item()
    2.0
    """
    return BatchStatistics(*call("batch_statistics", x, float(epsilon)))


def batch_normalize(
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> BatchNormalized:
    """Return x normalised by its statistics, with a sum and a ReLU in the same pass.

    Args:
        x: float32 with at least two dimensions, channels in dimension 1.
        mean, inverse: of `batch_statistics`.
        weight, bias: of each channel.
        residual: added before the ReLU; of the shape of x.
        relu: rectify the result, and give the mask that the backward needs.
    """
    return BatchNormalized(*call("batch_normalize", x, mean, inverse, weight, bias, residual, bool(relu)))


def batch_normalize_backward(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
) -> BatchNormGradients:
    """Return the gradients of `batch_normalize` with respect to x, weight, bias and residual.

    Args:
        g: the gradient of the result.
        x, mean, inverse, weight: as in the forward, with the statistics of x itself.
        mask: of the ReLU, where there was one.
        residual: whether the gradient of the residual is wanted; without a mask it is g, and not given again.
    """
    found = call("batch_normalize_backward", g, x, mean, inverse, weight, mask, bool(residual))
    return BatchNormGradients(*found)


# --------------------------------------------------------------------------------------------------------------- checks


def _check_images(x: Tensor, *vectors: Tensor | None) -> None:
    """Refuses a tensor without channels, or with too few values, and vectors of other sizes."""
    if x.dim() < 2 or not x.numel():
        raise InvalidValue(f"x must have values in images and channels, at least 2 dimensions; got {tuple(x.shape)}.")
    for vector in vectors:
        if vector is not None and tuple(vector.shape) != (x.shape[1],):
            wanted = f"a number for each of {x.shape[1]} channels (dimension 1 of x)"
            raise InvalidValue(f"mean, inverse, weight and bias must be {wanted}; got shape {tuple(vector.shape)}.")


def _check_alike(name: str, x: Tensor, other: Tensor | None) -> None:
    if other is not None and other.shape != x.shape:
        raise InvalidValue(f"{name} must have the shape of x, {tuple(x.shape)}; got {tuple(other.shape)}.")


def _check_normalize(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, bias: Optional, residual: Optional, relu: bool
) -> None:
    """Refuses tensors that do not fit together."""
    _check_images(x, mean, inverse, weight, bias)
    _check_alike("residual", x, residual)


def _check_backward(
    g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, mask: Optional, residual: bool
) -> None:
    """Refuses tensors that do not fit together."""
    _check_images(x, mean, inverse, weight)
    _check_alike("g", x, g)
    if mask is not None and tuple(mask.shape) != (_mask_size(x.numel()),):
        wanted = f"{_mask_size(x.numel())} bytes for {x.numel()} elements"
        raise InvalidValue(f"mask must be that of batch_normalize, {wanted}; got shape {tuple(mask.shape)}.")


# ---------------------------------------------------------------------------------------------------------- definitions


class _Planes(NamedTuple):
    """The sizes of a tensor of images; those of one place each are one image of many places."""

    images: int
    channels: int
    places: int


def _planes_of(x: Tensor) -> _Planes:
    """The sizes of x."""
    images, channels, places = x.shape[0], x.shape[1], prod(x.shape[2:])
    return _Planes(1, channels, images) if places == 1 else _Planes(images, channels, places)


def in_planes(x: Tensor) -> Tensor:
    """x itself where its planes are contiguous or its channels lie side by side; else a contiguous copy."""
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x if x.movedim(1, -1).is_contiguous() else x.contiguous()


def like_in_memory(x: Tensor, other: Tensor) -> Tensor:
    """Another tensor of the shape of x, in memory as x is."""
    return other if other.stride() == x.stride() else torch.empty_like(x).copy_(other)


def _mask_size(elements: int) -> int:
    """The bytes of a mask, a bit for each element of memory."""
    return (elements + 7) // 8 + MASK_TAIL


def _by_plane(x: Tensor) -> Tensor:
    """(images, channels, places)."""
    size = _planes_of(x)
    if size.images != x.shape[0]:
        return x.reshape(x.shape[0], x.shape[1]).t().unsqueeze(0)
    return x.reshape(size)


def _sums(x: Tensor) -> Tensor:
    """The sum of each channel of (images, channels, places), in the order of the module."""
    images, channels, places = x.shape
    padded = F.pad(x, (0, -places % PIECE)).view(images, channels, -1, PIECE // LANES, LANES)
    lanes = torch.zeros_like(padded[:, :, :, 0])
    for step in range(min(PIECE // LANES, -(-places // LANES))):
        lanes = lanes + padded[:, :, :, step]
    pieces = (lanes[..., 0] + lanes[..., 1]) + (lanes[..., 2] + lanes[..., 3])
    total = torch.zeros_like(pieces[0, :, 0])
    for image in pieces:
        for piece in image.unbind(-1):
            total = total + piece
    return total


def _statistics_reference(x: Tensor, epsilon: float) -> Statistics:
    """Mean, variance (biased) and inverse standard deviation of each channel."""
    values, count = _by_plane(x).double(), x.numel() // max(x.shape[1], 1)
    mean = _sums(values) / count
    spread = _sums(values * values) / count - mean * mean
    variance = torch.where(spread < 0, 0, spread)
    return mean.float(), variance.float(), (1 / (variance + epsilon).sqrt()).float()


def _along(vector: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels, to meet x."""
    return vector.view(-1, *[1] * (x.dim() - 2))


def _bits_of(passes: Tensor) -> Tensor:
    """A mask of a tensor of truth values that fills a block of memory."""
    flat = passes.as_strided((passes.numel(),), (1,))
    padded = F.pad(flat.to(torch.uint8), (0, 8 * _mask_size(len(flat)) - len(flat))).view(-1, 8)
    powers = 2 ** torch.arange(8, device=passes.device, dtype=torch.uint8)
    return (padded * powers).sum(1, dtype=torch.uint8)


def where_passes(mask: Tensor, x: Tensor) -> Tensor:
    """The truth values of a mask, in the layout of x."""
    powers = 2 ** torch.arange(8, device=mask.device, dtype=torch.uint8)
    flat = (mask.unsqueeze(1) & powers).ne(0).flatten()[: x.numel()]
    passes = torch.empty_like(x, dtype=torch.bool)
    passes.as_strided((x.numel(),), (1,)).copy_(flat)
    return passes


def _normalize_reference(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, bias: Optional, residual: Optional, relu: bool
) -> Normalized:
    """(x - mean) inverse weight + bias + residual, rectified; and the bits where a gradient passes the ReLU."""
    x = in_planes(x)
    factor = inverse if weight is None else inverse * weight
    y = (x - _along(mean, x)) * _along(factor, x)
    y = y + _along(torch.zeros_like(mean) if bias is None else bias, x)
    if residual is not None:
        y = y + like_in_memory(x, residual)
    if not relu:
        return y, x.new_empty(0, dtype=torch.uint8)
    stopped = y <= 0
    return torch.where(stopped, 0, y), _bits_of(~stopped)


def _backward_reference(
    g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, mask: Optional, residual: bool
) -> Gradients:
    """dX, dweight, dbias, and the gradient behind the ReLU, which is that of the residual; empty if nobody wants it."""
    x = in_planes(x)
    g = like_in_memory(x, g)
    if mask is not None:
        g = torch.where(where_passes(mask, x), g, 0)
    values, count = _by_plane(g).double(), x.numel() // max(x.shape[1], 1)
    total, wide = _sums(values), inverse.double()
    product = _sums(values * _by_plane(x).double()) - mean.double() * total
    slope, middle = (product * wide * wide / count).float(), (total / count).float()
    factor = inverse if weight is None else inverse * weight
    left = (g - _along(middle, x)) - (x - _along(mean, x)) * _along(slope, x)
    kept = g if residual and mask is not None else x.new_empty(0)
    return left * _along(factor, x), (product * wide).float(), total.float(), kept


# --------------------------------------------------------------------------------------------------------------- native


def _sizes(x: Tensor) -> dict[str, Any]:
    """How a tensor lies in memory; where each image has one place, channels are always side by side."""
    size = _planes_of(x)
    return {**size._asdict(), "last": size.images != x.shape[0] or not x.is_contiguous()}


def _vectors(**vectors: Optional) -> dict[str, Optional]:
    """Numbers of channels without gaps."""
    return {name: None if one is None else one.contiguous() for name, one in vectors.items()}


def _statistics_native(x: Tensor, epsilon: float) -> Statistics:
    x = in_planes(x)
    mean, variance, inverse = (x.new_empty(x.shape[1]) for _ in range(3))
    run("batch_statistics", x=x, epsilon=epsilon, mean=mean, variance=variance, inverse=inverse, **_sizes(x))
    return mean, variance, inverse


def _normalize_native(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, bias: Optional, residual: Optional, relu: bool
) -> Normalized:
    x = in_planes(x)
    residual = None if residual is None else like_in_memory(x, residual)
    y, mask = torch.empty_like(x), x.new_empty(_mask_size(x.numel()) if relu else 0, dtype=torch.uint8)
    vectors = _vectors(mean=mean, inverse=inverse, weight=weight, bias=bias)
    run("batch_normalize", x=x, y=y, residual=residual, mask=mask, **vectors, **_sizes(x))
    return y, mask


def _backward_native(
    g: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Optional, mask: Optional, residual: bool
) -> Gradients:
    x = in_planes(x)
    g = like_in_memory(x, g)
    d_x, d_weight, d_bias = torch.empty_like(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    kept = torch.empty_like(x) if residual and mask is not None else x.new_empty(0)
    vectors = _vectors(mean=mean, inverse=inverse, weight=weight, d_weight=d_weight, d_bias=d_bias, mask=mask)
    run("batch_normalize_backward", g=g, x=x, d_x=d_x, masked=kept, **vectors, **_sizes(x))
    return d_x, d_weight, d_bias, kept


# --------------------------------------------------------------------------------------------------------- registration


_FLOAT32 = Takes((torch.float32,))
_TAKES = dict.fromkeys(("x", "g", "mean", "inverse", "weight", "bias", "residual"), _FLOAT32)

register(
    "batch_statistics(Tensor x, float epsilon) -> (Tensor, Tensor, Tensor)",
    _statistics_reference,
    when_native(_statistics_native),
    lambda x, epsilon: tuple(x.new_empty(x.shape[1]) for _ in range(3)),
    lambda x, epsilon: _check_images(x),
    _TAKES,
)
register(
    "batch_normalize(Tensor x, Tensor mean, Tensor inverse, Tensor? weight, Tensor? bias, Tensor? residual, bool relu)"
    " -> (Tensor, Tensor)",
    _normalize_reference,
    when_native(_normalize_native),
    lambda x, *rest: (
        torch.empty_like(in_planes(x)), x.new_empty(_mask_size(x.numel()) if rest[-1] else 0, dtype=torch.uint8),
    ),
    _check_normalize,
    _TAKES,
)  # fmt: skip
register(
    "batch_normalize_backward(Tensor g, Tensor x, Tensor mean, Tensor inverse, Tensor? weight, Tensor? mask,"
    " bool residual) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_reference,
    when_native(_backward_native),
    lambda g, x, mean, inverse, weight, mask, residual: (
        torch.empty_like(in_planes(x)), mean.new_empty(x.shape[1]), mean.new_empty(x.shape[1]),
        torch.empty_like(in_planes(x)) if residual and mask is not None else x.new_empty(0),
    ),
    _check_backward,
    {**{name: one for name, one in _TAKES.items() if name != "residual"}, "mask": Takes((torch.uint8,))},
)  # fmt: skip
