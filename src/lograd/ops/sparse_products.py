"""The two products of a layer's backward with a gradient that is mostly zeros, pruned on the way if wanted.

`lograd::sparse_linear_backward` and `lograd::sparse_convolution_backward` return (dX, dW, dbias, counts): the dense
products of the gradient as `stochastic_prune` leaves it, bit for bit, and its counts.  What is not needed has no
elements.  Without a threshold the gradient is taken as it is, and its zeros are skipped.

The native kernels sum in an order of their own, fixed by the shapes, so results are equal for any number of threads and
differ from a dense product by rounding.  They work in float32; 16-bit tensors are converted, pruned first in their own
type.  Zero times infinity: a gradient element that is not finite reaches all that it multiplies, as in a dense product;
where x or the weight is not finite, the dense products are computed.

Memory: lists of 16 bytes for each nonzero element, in no more than a quarter of the size of the gradient, the size of
the weight or 2 MB, whichever is most; what does not fit is done in turns, and if the lists of 512 pixels do not, there
is room for all their elements.  Then the weight once more, with input channels rounded up to tiles; and of each thread
8 bytes for each of at most 4096 output channels of 1027 pixels (34 MB at most; 1795 pixels with up to eight input
channels), and 4 MB, with kernels wider than 15 more.  It is kept for the next call; `release_workspace` gives it back,
as a handle's `step` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from .contracts import FLOAT_TYPES, WIDE_FLOATS, Takes, type_name
from .geometry import Geometry, check_geometry
from .layouts import dense
from .registry import call, register, run, when_native

Products = tuple[Tensor, Tensor, Tensor]
Results = tuple[Tensor, Tensor, Tensor, Tensor]


def sparse_linear_backward(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, need: tuple[bool, bool, bool]
) -> Results:
    """dX, dW, dbias and counts of x @ weight.T + bias for the gradient g of its result.

    `threshold` and `key` are those of `stochastic_prune`; `need` says which of the three are wanted.
    """
    result: Results = call("sparse_linear_backward", g, x, weight, threshold, key, *need)
    return result


def sparse_convolution_backward(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, geometry: Geometry,
    need: tuple[bool, bool, bool],
) -> Results:  # fmt: skip
    """Return dX, dW, dbias and counts of a convolution over one or two dimensions."""
    stride, padding, dilation, groups = geometry
    where = list(stride), list(padding), list(dilation), groups
    result: Results = call("sparse_convolution_backward", g, x, weight, threshold, key, *where, *need)
    return result


def release_workspace() -> None:
    """Give the memory back that the native kernels of sparse and of integer products keep between calls."""
    for release in _releases:
        if release is not None:
            release()


# --------------------------------------------------------------------------------------------------------------- checks


def check_linear(g: Tensor, x: Tensor, weight: Tensor, *rest: object) -> None:
    """Refuse tensors whose shapes are not those of a linear layer."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InvalidValue(
            "a linear layer has a weight of (outputs, inputs) and an x of (..., inputs); got "
            f"{tuple(weight.shape)} and {tuple(x.shape)}."
        )
    _check_gradient(g, x, weight, (*x.shape[:-1], weight.shape[0]))


def check_convolution(g: Tensor, x: Tensor, weight: Tensor, threshold: object, key: object, *rest: Any) -> None:
    """Refuse tensors and a geometry that do not make a convolution over one to three dimensions."""
    stride, padding, dilation, groups = rest[:4]
    _check_gradient(g, x, weight, check_geometry(x.shape, weight.shape, stride, padding, dilation, groups, 3))


def _check_gradient(g: Tensor, x: Tensor, weight: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(g.shape) != shape:
        raise InvalidValue(
            f"g must have the shape of the layer's result, {shape} for x of {tuple(x.shape)} and a weight of "
            f"{tuple(weight.shape)}; got {tuple(g.shape)}."
        )
    if not g.dtype == x.dtype == weight.dtype:
        types = ", ".join(type_name(each.dtype) for each in (g, x, weight))
        raise InvalidType(f"g, x and weight must have one type; got {types}.")


# ------------------------------------------------------------------------------------------------ dense, for any device


def _pruned(g: Tensor, threshold: Tensor | None, key: Tensor) -> tuple[Tensor, Tensor]:
    if threshold is not None:
        narrow = g.float() if g.dtype == torch.float64 else g
        pruned: tuple[Tensor, Tensor] = torch.ops.lograd.stochastic_prune.default(narrow, threshold, key, True)
        # What is kept in float64 is kept with all its digits; what is pruned is what float32 makes of it.
        kept = (pruned[0] == narrow) & (pruned[0] != 0)
        return (pruned[0] if narrow is g else torch.where(kept, g, pruned[0].double())), pruned[1]
    zeros = (g == 0).sum()
    return g, torch.stack([zeros, g.isnan().sum(), torch.zeros_like(zeros), zeros])


def _plain(g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, *rest: Any) -> Results:
    """The products by the operators that autograd would call; a linear layer has no geometry before its needs."""
    geometry, need = rest[:-3], rest[-3:]
    pruned, counts = _pruned(g, threshold, key)
    if geometry:
        found = convolution_products(pruned, x, weight, geometry, need)
    else:
        rows = x.shape[:-1].numel()  # -1 would not do for a layer without inputs or outputs
        found = linear_products(pruned.reshape(rows, weight.shape[0]), x.reshape(rows, weight.shape[1]), weight, need)
    results = zip(_empty(x, weight, *rest), found, strict=True)
    d_x, d_weight, d_bias = (result.copy_(part.view_as(result)) for result, part in results)
    return d_x, d_weight, d_bias, counts


def linear_products(g: Tensor, x: Tensor, weight: Tensor, need: tuple[bool, ...]) -> Products:
    """dX, dW and dbias of matrices by the operators that autograd would call; without elements where not needed."""
    return (
        g.mm(weight) if need[0] else g.new_empty(0),
        g.t().mm(x) if need[1] else g.new_empty(0),
        g.sum(0) if need[2] else g.new_empty(0),
    )


def convolution_products(g: Tensor, x: Tensor, weight: Tensor, geometry: Any, need: tuple[bool, ...]) -> Products:
    """dX, dW and dbias of a convolution by PyTorch's operator; without elements where not needed."""
    stride, padding, dilation, groups = geometry
    found = torch.ops.aten.convolution_backward.default(
        g, x, weight, [weight.shape[0]], stride, padding, dilation, False, [0] * len(stride), groups, list(need)
    )
    d_x, d_weight, d_bias = (part if wanted else g.new_empty(0) for part, wanted in zip(found, need, strict=True))
    return d_x, d_weight, d_bias


def _empty(x: Tensor, weight: Tensor, *rest: Any) -> Products:
    """Room for the products in the layout that is promised; without elements where not needed."""
    geometry, need = rest[:-3], rest[-3:]
    return (
        x.new_empty(0) if not need[0] else _input_gradient(x) if geometry else x.new_empty(x.shape),
        torch.empty_like(dense(weight)) if need[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0] if need[2] else 0),
    )


def _input_gradient(x: Tensor) -> Tensor:
    """Channels last where x has them last, else contiguous."""
    image = _image(x)
    last = not x.is_contiguous() and image.is_contiguous(memory_format=torch.channels_last)
    format = torch.channels_last if last else torch.contiguous_format
    return torch.empty_like(image, memory_format=format).view(x.shape) if last else x.new_empty(x.shape)


def _image(x: Tensor) -> Tensor:
    """One dimension as an image of height one."""
    return x.unsqueeze(2) if x.dim() == 3 else x


# --------------------------------------------------------------------------------------------------------------- native


def _native(g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, *rest: Any) -> Results:
    """The products by the native kernel where it serves; a linear layer is a convolution of images of one pixel."""
    one = [1] * (x.dim() == 3)
    stride, padding, dilation, groups = rest[:-3] or ([1, 1], [0, 0], [1, 1], 1)
    if rest[:-3]:
        stride, padding, dilation = [*one, *stride], [0] * len(one) + list(padding), [*one, *dilation]
    types = {g.dtype, x.dtype, weight.dtype}
    served = types <= set(FLOAT_TYPES) and len(types) == 1 and weight.dim() < 5
    if not served or 0 in (g.numel(), x.numel(), weight.numel()):
        return _plain(g, x, weight, threshold, key, *rest)
    given, counts = (g, threshold), None
    g = dense(g)
    if g.dtype != torch.float32 or not _in_memory_order(g, weight):
        if threshold is not None:  # positions of random numbers are those in the memory of g, values those of its type
            g, counts = call("stochastic_prune", g, threshold, key, True)
        g, threshold = g.float().contiguous(), None
    gradient, image, kernel = _as_images(g, weight), _as_images(x, weight).float(), _as_kernel(dense(weight)).float()
    if not (image.is_contiguous() or _channels_last(image)):
        image = image.contiguous()
    wide = [result if result.dtype == torch.float32 else result.float() for result in _empty(x, weight, *rest)]
    counted = torch.zeros(4, dtype=torch.int64, device="cpu")
    # (input, output, kernel, stride, padding, dilation) of either axis
    y, x_axis = zip(image.shape[2:], gradient.shape[2:], kernel.shape[2:], stride, padding, dilation, strict=True)
    finite = run(
        "sparse_backward", batch=image.shape[0], channels=image.shape[1], outputs=kernel.shape[0], groups=groups,
        y=y, x=x_axis, gradient_last=_channels_last(gradient), input_last=_channels_last(image), g=gradient,
        threshold=threshold, key=key, input=image, weight=kernel, strides=kernel.stride(), d_x=wide[0],
        d_weight=wide[1], d_bias=wide[2], counts=counted,
    )  # fmt: skip
    if not finite:
        return _plain(given[0], x, weight, given[1], key, *rest)
    d_x, d_weight, d_bias = (result.to(x.dtype) for result in wide)
    return d_x, d_weight, d_bias, counted if counts is None else counts


def _as_images(x: Tensor, weight: Tensor) -> Tensor:
    """(batch, channels, height, width); a row of a linear layer is an image of one pixel."""
    return x.reshape(-1, x.shape[-1], 1, 1) if weight.dim() == 2 else _image(x)


def _in_memory_order(g: Tensor, weight: Tensor) -> bool:
    """Return True if the kernel, which reads images, meets the elements of g in the order of their memory."""
    if weight.dim() == 2:  # `_as_images` would copy a permuted g into the order of its rows
        return g.is_contiguous()
    return _image(g).is_contiguous() or _channels_last(_image(g))


def _as_kernel(weight: Tensor) -> Tensor:
    return weight[:, :, None, None] if weight.dim() == 2 else _image(weight)


def _channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


# --------------------------------------------------------------------------------------------------------- registration


def _fake(g: Tensor, x: Tensor, weight: Tensor, threshold: object, key: object, *rest: Any) -> Results:
    return *_empty(x, weight, *rest), g.new_empty(4, dtype=torch.int64)


_releases: list[Any] = [native.kernel(f"release_{kind}_workspace") for kind in ("sparse", "integer")]
_GRADIENT = "Tensor g, Tensor x, Tensor weight, Tensor? threshold, Tensor key"
_TAKES = {name: Takes(WIDE_FLOATS) for name in ("g", "x", "weight")}
_NEED = "bool need_x, bool need_weight, bool need_bias"
for _signature, _check in (
    (f"sparse_linear_backward({_GRADIENT}, {_NEED})", check_linear),
    (
        f"sparse_convolution_backward({_GRADIENT}, int[] stride, int[] padding, int[] dilation, int groups, {_NEED})",
        check_convolution,
    ),
):
    register(f"{_signature} -> (Tensor, Tensor, Tensor, Tensor)", _plain, when_native(_native), _fake, _check, _TAKES)
