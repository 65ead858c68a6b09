"""Example arguments of every operator of `lograd.ops`: a new operator joins the generic tests by a row here.

A row is a tuple of functions (x, lay) -> arguments.  x is a contiguous float tensor of at least two dimensions, the
last a multiple of 32; `lay` puts a tensor into the layout under test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lograd import FloatFormat, IntFormat, ops, parse_format
from lograd.ops.elementwise import arguments_of
from lograd.ops.registry import operators

Lay = Callable[[Tensor], Tensor]
Example = Callable[[Tensor, Lay], tuple[Any, ...]]

KEY, ONE, NEED = torch.tensor([3, 4]), torch.tensor(0.5), (True, True, True)
PAIR = torch.tensor([-1.5, 2.0])
MX, NV = "1-2-1/32/0-8-0:fn:nozero", "1-2-1/16/1-4-3:fn"
GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)


def codes_of(x: Tensor, most: int = 15) -> Tensor:
    """Codes from 0 to `most` in the shape of x."""
    return (torch.arange(x.numel()) * 7 % (most + 1)).to(torch.uint8).view(x.shape)


def small(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """-1, 0 and 1, whose sums of products every type and every order of summation holds exactly."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters(x: Tensor) -> Tensor:
    """Scale, low and zero of each row."""
    rows = torch.arange(x.shape[0], dtype=torch.float32)
    return torch.stack([2.0 + rows, -1.0 - rows, rows])


def fold(x: Tensor) -> Tensor:
    """Factors of the channels."""
    return torch.linspace(0.5, 2.0, x.shape[1])


def groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Groups and stretch of the rows, as packing gives them."""
    (step,) = ops.pack_block_householder(x.nan_to_num(0.0, 1.0, -1.0), 4).transform
    return step.groups, step.stretch


def linear(threshold: Tensor | None) -> Example:
    def example(x: Tensor, lay: Lay) -> tuple[Any, ...]:
        gradient = small((*x.shape[:-1], 16), x.dtype, 1)
        tensors = lay(gradient), lay(small(tuple(x.shape), x.dtype, 2)), small((16, x.shape[-1]), x.dtype, 3)
        return *tensors, threshold, KEY, *NEED

    return example


def convolution(threshold: Tensor | None) -> Example:
    def example(x: Tensor, lay: Lay) -> tuple[Any, ...]:
        gradient, image = small((4, 12, 6, 6), x.dtype, 1), small((4, 8, 6, 6), x.dtype, 2)
        return lay(gradient), lay(image), small((12, 8, 3, 3), x.dtype, 3), threshold, KEY, *GEOMETRY, *NEED

    return example


def in_bytes(shape: tuple[int, ...], most: int = 255) -> Tensor:
    return codes_of(torch.empty(shape), most)


def some(count: int) -> Tensor:
    """So many factors."""
    return torch.arange(count, dtype=torch.float32) / 8 - 1


def integer_product(x: Tensor, lay: Lay) -> tuple[Any, ...]:
    """Matrices whose sums are over tails of all tiles, with one factor and with many."""
    a, b = codes_of(x).flatten(0, -2), in_bytes((x.shape[-1], 19))
    return a, b, 7, 3, some(len(a)), ONE.view(1), some(19)


def batched_product(x: Tensor, lay: Lay) -> tuple[Any, ...]:
    a, b = in_bytes((3, 5, 33)), in_bytes((3, 18, 33), 15)
    return a, b.transpose(1, 2), 128, 0, None, some(18), None


def block_product(x: Tensor, lay: Lay) -> tuple[Any, ...]:
    a, b = codes_of(x, 24).flatten(0, -2), in_bytes((11, x.shape[-1]), 24)
    scales = some(len(a) * x.shape[-1] // 16).view(len(a), -1), some(11 * x.shape[-1] // 16).view(11, -1)
    return a, b, 12, 12, *scales, ONE, some(11), 16


G_CODES, X_CODES, W_CODES = (4, 12, 6, 6), (4, 8, 6, 6), (12, 8, 3, 3)


def channels(x: Tensor, low: float = 0.5) -> Tensor:
    """A number for each channel."""
    return torch.linspace(low, 2.0, x.shape[1])


def bits_for(x: Tensor) -> Tensor:
    """A mask of the elements of x."""
    return in_bytes(((x.numel() + 7) // 8 + 3,))


def quantizer(*before: Any) -> tuple[Example, ...]:
    """Rounded and as codes; to nearest with 8 bits, stochastically with 4."""
    return tuple(
        lambda x, lay, rest=(bits, stochastic, packed): (lay(x), *before, *rest, KEY)
        for bits, stochastic in ((4, True), (8, False))
        for packed in (False, True)
    )


BLOCKS: tuple[Example, ...] = (
    lambda x, lay: (lay(x), ONE, MX, True, True, KEY),
    lambda x, lay: (lay(x), ONE, NV, False, False, KEY),
)

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "stochastic_prune": (lambda x, lay: (lay(x), ONE, KEY, True), lambda x, lay: (lay(x), ONE, KEY, False)),
    "threshold_prune": (lambda x, lay: (lay(x), ONE, True),),
    "dither": (lambda x, lay: (lay(x), ONE, KEY, True),),
    "quantize": (
        lambda x, lay: (lay(x), ONE, *arguments_of(FloatFormat(4, 3)), True, KEY, True),
        lambda x, lay: (lay(x), ONE, *arguments_of(FloatFormat(3, 0)), False, KEY, False),
        lambda x, lay: (lay(x), ONE, *arguments_of(IntFormat(4)), True, KEY, True),
    ),
    "log_histogram": (lambda x, lay: (lay(x), 1), lambda x, lay: (lay(x), 3)),
    "kth_magnitude": (lambda x, lay: (lay(x), 3),),
    "largest_and_scale": (lambda x, lay: (lay(x), 64.0),),
    "column_largest": (
        lambda x, lay: (lay(x.flatten(1)), ONE.expand(len(x)).clone()), lambda x, lay: (lay(x), None),
    ),
    "row_limits": (lambda x, lay: (lay(x.flatten(1)), 8), lambda x, lay: (lay(x.flatten(1).relu()), 4)),
    "hadamard": (lambda x, lay: (lay(x), 32, KEY, False), lambda x, lay: (lay(x), 16, None, True)),
    "quantize_codes": (
        lambda x, lay: (lay(x), ONE, "1-4-3", True, KEY),
        lambda x, lay: (lay(x), ONE, "int4", False, KEY),
    ),
    "dequantize_codes": (
        lambda x, lay: (lay(codes_of(x)), ONE, "1-2-1", x.dtype),
        lambda x, lay: (lay(codes_of(x, 126)), ONE, "1-4-3:fn", x.dtype),
    ),
    "pack_nibbles": (lambda x, lay: (lay(codes_of(x)),),),
    "unpack_nibbles": (
        lambda x, lay: (lay(codes_of(x, 255)), 2 * x.shape[-1]),
        lambda x, lay: (lay(codes_of(x, 255)), 2 * x.shape[-1] - 1),
    ),
    "quantize_blocks": BLOCKS,
    "quantize_block_codes": BLOCKS,
    "dequantize_block_codes": (
        lambda x, lay: (
            lay(codes_of(x)), codes_of(x[..., :: parse_format(MX).size]) + 120, ONE, MX, False, x.dtype,
        ),
    ),
    "integer_codes": tuple(
        lambda x, lay, rest=rest: (
            lay(x), PAIR if rest[0] else None, fold(x) if rest[1] else None, 1, *rest[2:], KEY, rest[5],
        )
        for rest in (
            (True, True, 8, False, False, False),
            (False, False, 4, False, False, True),
            (False, True, 6, True, True, False),
            (False, False, 5, True, False, True),
            (True, True, 3, False, True, True),
        )
    ),
    "dequantize_levels": (
        lambda x, lay: (lay(codes_of(x, 255)), torch.tensor([3.5]), torch.tensor([17.0]), x.dtype),
        lambda x, lay: (lay(codes_of(x)), *parameters(x)[::2], x.dtype),
    ),
    "batch_statistics": (lambda x, lay: (lay(x.float()), 1e-5), lambda x, lay: (lay(x.float()[:, :, :1, :1]), 0.1)),
    "batch_normalize": (
        lambda x, lay: (
            lay(x.float()), channels(x), channels(x), channels(x, -1.0), channels(x, -2.0), lay(x.float().roll(1)), True
        ),
        lambda x, lay: (lay(x.float()), channels(x), channels(x), None, None, None, True),
        lambda x, lay: (lay(x.float()), channels(x), channels(x), channels(x), None, x.float().roll(2), False),
    ),
    "batch_normalize_backward": (
        lambda x, lay: (
            lay(x.float().roll(3)), lay(x.float()), channels(x), channels(x), channels(x, -1.0), bits_for(x), True
        ),
        lambda x, lay: (lay(x.float().roll(3)), lay(x.float()), channels(x), channels(x), None, bits_for(x), False),
        lambda x, lay: (x.float().roll(1), lay(x.float()), channels(x), channels(x), channels(x), None, True),
    ),
    "range_gradients": (
        lambda x, lay: (lay(x), lay(x.roll(1)), 2.5, -7, 7),
        lambda x, lay: (lay(x.roll(2)), x, 0.7, 0, 15),
    ),
    "quantize_per_tensor": quantizer(),
    "quantize_per_sample": quantizer(),
    "quantize_interval": quantizer(ONE.double()),
    "quantize_block_householder": quantizer(),
    "dequantize_rows": (lambda x, lay: (lay(codes_of(x)), parameters(x), 15, x.dtype),),
    "dequantize_block_householder": (lambda x, lay: (lay(codes_of(x)), parameters(x), *groups(x), 15, x.dtype),),
    "code_levels": (lambda x, lay: (lay(codes_of(x)), "1-3-0"), lambda x, lay: (lay(codes_of(x, 63)), "int6")),
    "integer_matmul": (integer_product, batched_product),
    "integer_convolution": (
        lambda x, lay: (
            lay(in_bytes(X_CODES)), in_bytes(W_CODES, 15), 0, 8, some(12), some(12), *GEOMETRY,
        ),
    ),
    "integer_convolution_input_gradient": (
        lambda x, lay: (lay(in_bytes(G_CODES, 15)), in_bytes(W_CODES, 63), 7, 32, some(1), *GEOMETRY, [6, 6]),
    ),
    "integer_convolution_weight_gradient": (
        lambda x, lay: (lay(in_bytes(G_CODES, 15)), lay(in_bytes(X_CODES)), 7, 128, some(12), *GEOMETRY, [3, 3]),
    ),
    "integer_block_matmul": (block_product,),
    "sparse_linear_backward": (linear(torch.tensor(2.0)), linear(None)),
    "sparse_convolution_backward": (convolution(torch.tensor(2.0)), convolution(None)),
}  # fmt: skip


def names() -> list[str]:
    """All operators of `lograd.ops`."""
    return [name for name in operators if name in EXAMPLES]


def arguments(name: str, x: Tensor, lay: Lay = lambda x: x, place: int = 0) -> tuple[Any, ...]:
    """Arguments of an operator by the example at a place."""
    return EXAMPLES[name][place](x, lay)


def examples(name: str) -> range:
    """The places of an operator's examples."""
    return range(len(EXAMPLES[name]))
