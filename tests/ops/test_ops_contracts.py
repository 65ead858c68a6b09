"""What operators refuse: whoever calls `torch.ops.lograd` directly meets one sentence, before memory is touched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from operators import EXAMPLES, KEY, MX, ONE, codes_of
from operators import arguments as example_arguments
from torch import Tensor

import lograd
import lograd.attachment
import lograd.nn
from lograd import InvalidValue, native, ops
from lograd.errors import LogradError
from lograd.ops.registry import operators

SOURCE = Path(lograd.__file__).parent
contracts = {name: row for name, row in operators.items() if not name.startswith("layer_")}
"""All but the two of attached layers, which take the number of an engine: tests/attachment calls these."""


def long(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def valid_arguments(name: str) -> tuple[Any, ...]:
    """Arguments that an operator takes; made anew, because some are written."""
    if name in EXAMPLES:
        return example_arguments(name, torch.randn(4, 64))
    attended = torch.randn(4, 6, 8), torch.randn(4, 5, 8), torch.randn(4, 5, 16)
    return {
        "integer_attention": (*attended, torch.randn(6, 5), KEY.clone(), 0.5, 0.0, 8),
        "integer_attention_backward": (
            torch.randn(4, 6, 16), *map(codes_of, attended), torch.ones(3, 4), torch.randn(6, 5), KEY.clone(), 0.5, 0.0,
            8,
        ),
    }[name]  # fmt: skip


def operator(name: str) -> Any:
    return getattr(torch.ops.lograd, name).default


def tensors_of(name: str) -> list[tuple[int, str]]:
    arguments = operator(name)._schema.arguments
    return [(place, each.name) for place, each in enumerate(arguments) if "Tensor" in str(each.type)]


def test_every_tensor_has_a_rule() -> None:
    for name, row in contracts.items():
        assert {argument for _, argument in tensors_of(name)} <= row.contract.covered, name


@pytest.mark.parametrize("name", contracts)
def test_valid_arguments_are_taken(name: str) -> None:
    operator(name)(*valid_arguments(name))


DATA = ("x", "g", "weight")
"""Tensors of any float type and size; all others have one type, and as many elements as their operator wants."""


def refused(name: str, arguments: list[Any], place: int, value: Any, why: object) -> None:
    """One sentence, and nothing written."""
    changed = [*arguments[:place], value, *arguments[place + 1 :]]
    before = [each.clone() if isinstance(each, Tensor) and not each.is_meta else None for each in changed]
    try:
        operator(name)(*changed)
    except LogradError as error:
        message = str(error)
    else:
        pytest.fail(f"{name} took {why}")
    assert message.endswith(".")
    assert "\n" not in message
    for one, other in zip(changed, before, strict=True):
        assert other is None or torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def cases(name: str) -> Iterator[tuple[list[Any], int, str, Tensor]]:
    for place, argument in tensors_of(name):
        arguments = list(valid_arguments(name))
        yield arguments, place, argument, arguments[place]


@pytest.mark.parametrize("name", contracts)
def test_other_types_are_refused(name: str) -> None:
    for arguments, place, argument, value in cases(name):
        others = {torch.int32, torch.complex64, torch.int8}
        if argument not in (*DATA, "gamma", "query", "keys", "values"):
            others |= {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8}
        for dtype in others - {value.dtype}:
            refused(name, arguments, place, value.to(dtype), (argument, dtype))


@pytest.mark.parametrize("name", contracts)
def test_other_sizes_are_refused(name: str) -> None:
    alone = not name.startswith("sparse")  # there the sizes of all three belong together
    for arguments, place, argument, value in cases(name):
        if place == 0 and alone:
            continue
        flat = value.flatten()
        shorter, longer = flat[: max(len(flat) - 1, 0)], torch.cat([flat, flat.new_zeros(1)])
        for other in (shorter, longer, longer[None]):
            if other.numel() != value.numel():
                refused(name, arguments, place, other, (argument, other.shape))


@pytest.mark.parametrize("name", contracts)
def test_other_devices_are_refused(name: str) -> None:
    for arguments, place, argument, value in cases(name):
        if place:
            refused(name, arguments, place, value.to("meta"), argument)


MISMATCHES: dict[str, tuple[str, int, Any]] = {
    "a gradient of another batch": ("sparse_convolution_backward", 1, torch.randn(1, 8, 6, 6)),
    "a gradient of another size": ("sparse_convolution_backward", 0, torch.randn(4, 12, 5, 6)),
    "channels without weights": ("sparse_convolution_backward", 1, torch.randn(4, 9, 6, 6)),
    "a stride of 0": ("sparse_convolution_backward", 5, [0, 1]),
    "a padding below 0": ("sparse_convolution_backward", 6, [-1, 1]),
    "a dilation of 0": ("sparse_convolution_backward", 7, [1, 0]),
    "a stride too few": ("sparse_convolution_backward", 5, [1]),
    "no groups": ("sparse_convolution_backward", 8, 0),
    "groups that do not divide": ("sparse_convolution_backward", 8, 3),
    "rows of another batch": ("sparse_linear_backward", 1, torch.randn(3, 64)),
    "outputs without weights": ("sparse_linear_backward", 0, torch.randn(4, 17)),
    "a weight of one dimension": ("sparse_linear_backward", 2, torch.randn(16)),
    "two types": ("sparse_linear_backward", 2, torch.randn(16, 64).half()),
    "no such place": ("kth_magnitude", 1, 257),
    "place zero": ("kth_magnitude", 1, 0),
    "every 0th line": ("log_histogram", 1, 0),
    "a block of 3": ("hadamard", 1, 3),
    "a block that does not divide": ("hadamard", 1, 128),
    "one bit": ("quantize_per_sample", 1, 1),
    "nine bits": ("quantize_interval", 2, 9),
    "bins beyond a byte": ("dequantize_rows", 2, 256),
    "integers out": ("dequantize_codes", 3, torch.int8),
    "a mantissa beyond 8 bits": ("quantize", 3, 40),
    "no format": ("quantize_codes", 2, "1-40"),
    "a block format for elements": ("quantize_codes", 2, MX),
    "an element format for blocks": ("quantize_blocks", 2, "1-4-3"),
    "codes beyond the bytes": ("unpack_nibbles", 1, 130),
    "scales of other blocks": ("dequantize_block_codes", 1, torch.zeros(4, 3, dtype=torch.uint8)),
    "a single sample": ("quantize_per_sample", 0, torch.randn(64)),
    "rows that are not there": ("dequantize_block_householder", 2, torch.tensor([[0, 1, 2, 900], [0, 0, 0, 0]])),
    "a group before its beginning": ("dequantize_block_householder", 2, torch.tensor([[0, 1, 2, 3], [3, 0, 0, 0]])),
    "matrices that do not meet": ("integer_matmul", 1, torch.zeros(63, 19, dtype=torch.uint8)),
    "a batch and a matrix": ("integer_matmul", 1, torch.zeros(4, 64, 19, dtype=torch.uint8)),
    "a zero beyond a byte": ("integer_matmul", 2, 256),
    "a zero below a byte": ("integer_convolution", 3, -1),
    "images that are too small": ("integer_convolution", 0, torch.zeros(4, 8, 1, 0, dtype=torch.uint8)),
    "images without a batch": ("integer_convolution", 0, torch.zeros(8, 6, 6, dtype=torch.uint8)),
    "another input": ("integer_convolution_input_gradient", 9, [6, 7]),
    "another kernel": ("integer_convolution_weight_gradient", 9, [3, 2]),
    "groups without channels": ("integer_convolution_weight_gradient", 8, 5),
    "blocks that do not divide": ("integer_block_matmul", 8, 24),
    "rows of another length": ("integer_block_matmul", 1, torch.zeros(11, 32, dtype=torch.uint8)),
    "levels of a wide format": ("code_levels", 1, "1-4-3"),
    "levels of other rows": ("dequantize_levels", 2, torch.ones(3)),
}


@pytest.mark.parametrize("why", MISMATCHES)
def test_what_does_not_fit_together_is_refused(why: str) -> None:
    name, place, value = MISMATCHES[why]
    refused(name, list(valid_arguments(name)), place, value, why)


def test_public_functions_refuse_gradients_that_do_not_fit() -> None:
    """They skip PyTorch's dispatcher, and its contracts with it."""
    g, x, weight = torch.randn(4, 12, 6, 6), torch.randn(1, 8, 6, 6), torch.randn(12, 8, 3, 3)
    need = (True, True, True)
    with pytest.raises(InvalidValue, match=r"g must have the shape of the layer's result, \(1, 12, 6, 6\) for x of"):
        ops.sparse_convolution_backward(g, x, weight, ONE, KEY, ((1, 1), (1, 1), (1, 1), 1), need)
    with pytest.raises(InvalidValue, match=r"g must have the shape of the layer's result, \(3, 5\) for x of"):
        ops.sparse_linear_backward(torch.randn(4, 5), torch.randn(3, 7), torch.randn(5, 7), ONE, KEY, need)


# -------------------------------------------------------------------------------------------------------- the gateway


def test_addresses_are_taken_in_one_place() -> None:
    """Whoever takes an address by himself skips the checks; native.py has the only ones."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("data_ptr", "ctypes", "__array_interface__")
    }
    assert found == {"native.py"}


REFUSED: dict[str, tuple[Tensor, str]] = {
    "type": (torch.zeros(6, dtype=torch.float16), "got 6 of float16"),
    "size": (torch.zeros(5), "got 5 of float32"),
    "gaps": (torch.zeros(12)[::2], r"got shape \(6,\) with strides \(2,\)"),
    "overlaps": (torch.zeros(1).expand(6), r"got shape \(6,\) with strides \(0,\)"),
    "backwards": (torch.zeros(3, 4)[:, ::2], r"got shape \(3, 2\) with strides \(4, 2\)"),
    "device": (torch.zeros(6, device="meta"), "got on meta"),
    "negated": (torch._neg_view(torch.zeros(6)), "got a negated view"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_gateway_refuses(what: str) -> None:
    tensor, got = REFUSED[what]
    with pytest.raises(InvalidValue, match=f"a native kernel takes 6 elements of float32, without gaps, .* {got}"):
        native.address("x", tensor, torch.float32, 6)


def test_the_gateway_refuses_memory_that_was_freed() -> None:
    x = torch.zeros(6)
    x.untyped_storage().resize_(0)
    with pytest.raises(InvalidValue, match="memory that was freed"):
        native.address("x", x, torch.float32, 6)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(2, 3), torch.zeros(3, 2).t(), torch.zeros(1, 2, 1, 3), torch.zeros(2, 3, 1).transpose(0, 2)],
    ids=["contiguous", "transposed", "ones", "permuted"],
)
def test_the_gateway_takes_dense_tensors_of_any_layout(x: Tensor) -> None:
    assert native.address("x", x, torch.float32, 6) == x.data_ptr()
    assert native.address("x", torch.zeros(0, 4), torch.float32, 0) == 0


@pytest.mark.skipif(not native.status().available, reason="plain PyTorch reads such views as they are meant")
def test_numbers_that_are_negated_views_are_not_misread() -> None:
    with pytest.raises(InvalidValue, match="got a negated view"):
        ops.threshold_prune(torch.randn(64), torch._neg_view(torch.tensor(-0.5)))
