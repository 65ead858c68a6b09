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

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue
from .contracts import FLOAT_TYPES, WIDE_FLOATS, Takes, type_name
from .geometry import Geometry, check_geometry
from .layouts import dense
from .registry import call, register, when_native

Products = tuple[Tensor, Tensor, Tensor]
Results = tuple[Tensor, Tensor, Tensor, Tensor]


def sparse_linear_backward(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, need: tuple[bool, bool, bool]
) -> Results:
    """dX, dW, dbias and counts of x @ weight.T + bias for the gradient g of its result.

    `threshold` and `key` are those of `stochastic_prune`; `need` says which of the three are wanted.
    """
    check_linear(g, x, weight)
    result: Results = call("sparse_linear_backward", g, x, weight, threshold, key, *need)
    return result


def sparse_convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    threshold: Tensor | None,
    key: Tensor,
    geometry: Geometry,
    need: tuple[bool, bool, bool],
) -> Results:
    """Return dX, dW, dbias and counts of a convolution over one or two dimensions."""
    stride, padding, dilation, groups = geometry
    check_convolution(g, x, weight, threshold, key, stride, padding, dilation, groups)
    result: Results = call(
        "sparse_convolution_backward", g, x, weight, threshold, key, list(stride), list(padding), list(dilation),
        groups, *need,
    )  # fmt: skip
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


def check_convolution(
    g: Tensor, x: Tensor, weight: Tensor, threshold: object, key: object, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, *rest: object,
) -> None:  # fmt: skip
    """Refuse tensors and a geometry that do not make a convolution over one to three dimensions."""
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


def _plain_linear(g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, *need: bool) -> Results:
    pruned, counts = _pruned(g, threshold, key)
    rows = x.shape[:-1].numel()  # -1 would not do for a layer without inputs or outputs
    found = linear_products(pruned.reshape(rows, weight.shape[0]), x.reshape(rows, weight.shape[1]), weight, need)
    return *_filled(_empty_linear(x, weight, need), found), counts


def _plain_convolution(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, *need: bool,
) -> Results:  # fmt: skip
    pruned, counts = _pruned(g, threshold, key)
    found = convolution_products(pruned, x, weight, (stride, padding, dilation, groups), need)
    return *_filled(_empty_convolution(x, weight, need), found), counts


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


def _filled(empty: Products, found: Products) -> Products:
    """Return the found products in the layout that was promised."""
    d_x, d_weight, d_bias = (result.copy_(part.view_as(result)) for result, part in zip(empty, found, strict=True))
    return d_x, d_weight, d_bias


def _empty_linear(x: Tensor, weight: Tensor, need: tuple[bool, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if need[0] else 0),
        torch.empty_like(dense(weight)) if need[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0] if need[2] else 0),
    )


def _empty_convolution(x: Tensor, weight: Tensor, need: tuple[bool, ...]) -> tuple[Tensor, Tensor, Tensor]:
    _, d_weight, d_bias = _empty_linear(x, weight, (False, *need[1:]))
    return _input_gradient(x) if need[0] else x.new_empty(0), d_weight, d_bias


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


def _native_linear(g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, *need: bool) -> Results:
    """As a convolution of images of one pixel."""
    arguments = (g, x, weight, threshold, key)
    found = _products(*arguments, _empty_linear(x, weight, need), ((1, 1), (0, 0), (1, 1), 1), need)
    return _plain_linear(*arguments, *need) if found is None else found


def _native_convolution(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, *need: bool,
) -> Results:  # fmt: skip
    arguments = (g, x, weight, threshold, key)
    one = [1] * (x.dim() == 3)
    geometry = ([*one, *stride], [0] * len(one) + list(padding), [*one, *dilation], groups)
    found = _products(*arguments, _empty_convolution(x, weight, need), geometry, need)
    return _plain_convolution(*arguments, stride, padding, dilation, groups, *need) if found is None else found


def _products(
    g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None, key: Tensor, results: tuple[Tensor, ...],
    geometry: Any, need: tuple[bool, ...],
) -> Results | None:  # fmt: skip
    """Return the products by the native kernel; None where it does not serve."""
    types = {g.dtype, x.dtype, weight.dtype}
    if not types <= set(FLOAT_TYPES) or len(types) > 1 or 0 in (g.numel(), x.numel(), weight.numel()):
        return None
    counts = None
    g = dense(g)
    if g.dtype != torch.float32 or not _in_memory_order(g, weight):
        if threshold is not None:  # positions of random numbers are those in the memory of g, values those of its type
            g, counts = call("stochastic_prune", g, threshold, key, True)
        g, threshold = g.float().contiguous(), None
    gradient, image, kernel = _as_images(g, weight), _as_images(x, weight).float(), _as_kernel(dense(weight)).float()
    if not (image.is_contiguous() or _channels_last(image)):
        image = image.contiguous()
    wide = [result if result.dtype == torch.float32 else result.float() for result in results]
    counted = torch.zeros(4, dtype=torch.int64, device="cpu")
    # (input, output, kernel, stride, padding, dilation) of either axis
    y, x_axis = zip(image.shape[2:], gradient.shape[2:], kernel.shape[2:], *geometry[:3], strict=True)
    address, floats = native.address, torch.float32
    finite = _kernel(
        batch=image.shape[0],
        channels=image.shape[1],
        outputs=kernel.shape[0],
        groups=geometry[3],
        y=y,
        x=x_axis,
        gradient_last=_channels_last(gradient),
        input_last=_channels_last(image),
        g=address("g", gradient, floats, image.shape[0] * kernel.shape[0] * math.prod(gradient.shape[2:])),
        threshold=0 if threshold is None else address("threshold", threshold, floats, 1),
        key=address("key", key, torch.int64, 2),
        input=address("x", image, floats, image.numel()),
        weight=address("weight", kernel, floats, kernel.numel()),
        strides=kernel.stride(),
        d_x=address("d_x", wide[0], floats, image.numel()) if need[0] else 0,
        d_weight=address("d_weight", wide[1], floats, kernel.numel()) if need[1] else 0,
        d_bias=address("d_bias", wide[2], floats, kernel.shape[0]) if need[2] else 0,
        counts=address("counts", counted, torch.int64, 4),
        threads=torch.get_num_threads(),
    )
    if not finite:
        return None
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


def _fake(empty: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., Results]:
    def fake(g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Results:
        return *empty(x, weight, rest[-3:]), g.new_empty(4, dtype=torch.int64)

    return fake


_kernel: Any = native.kernel("sparse_backward")
_releases: list[Any] = [native.kernel(f"release_{kind}_workspace") for kind in ("sparse", "integer")]
_GRADIENT = "Tensor g, Tensor x, Tensor weight, Tensor? threshold, Tensor key"
_TAKES = {name: Takes(WIDE_FLOATS) for name in ("g", "x", "weight")}
_NEED = "bool need_x, bool need_weight, bool need_bias"
register(
    f"sparse_linear_backward({_GRADIENT}, {_NEED}) -> (Tensor, Tensor, Tensor, Tensor)",
    _plain_linear,
    when_native(_native_linear),
    _fake(_empty_linear),
    check_linear,
    _TAKES,
)
register(
    f"sparse_convolution_backward({_GRADIENT}, int[] stride, int[] padding, int[] dilation, int groups, {_NEED}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _plain_convolution,
    when_native(_native_convolution),
    _fake(_empty_convolution),
    check_convolution,
    _TAKES,
)
