"""Coded tensors as values: frozen, nodes of PyTorch's trees, decoded exactly, and refused where parts do not fit."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import torch
from bits import assert_same_bits
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from lograd import ops, parse_format
from lograd.errors import InvalidValue
from lograd.ops.coded import CodedTensor, Folded, Layout, Table

X = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
FORMAT, BLOCK = parse_format("e2m1"), parse_format("mxfp4")
CODED = {
    "elements": ops.pack_codes(X, FORMAT, 2.0),
    "rows": ops.pack_per_sample(X, 4),
    "one range": ops.pack_per_tensor(X, 4),
    "groups of rows": ops.pack_block_householder(X, 4),
    "blocks": ops.quantize_block_codes(X, BLOCK),
}
QUANTIZED = {
    "elements": ops.quantize(X, FORMAT, 2.0),
    "rows": ops.quantize_per_sample(X, 4),
    "one range": ops.quantize_per_tensor(X, 4),
    "groups of rows": ops.quantize_block_householder(X, 4),
    "blocks": ops.quantize_blocks(X, BLOCK),
}


@pytest.mark.parametrize("name", CODED)
def test_decoding_gives_the_bits_that_quantizing_gives(name: str) -> None:
    assert_same_bits(CODED[name].decode(), QUANTIZED[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_type_is_rounded_once(dtype: torch.dtype) -> None:
    assert_same_bits(CODED["elements"].decode(dtype), QUANTIZED["elements"].to(dtype))


@pytest.mark.parametrize("name", CODED)
def test_no_part_can_be_exchanged(name: str) -> None:
    for field in fields(CodedTensor):
        with pytest.raises(FrozenInstanceError):
            setattr(CODED[name], field.name, None)


@pytest.mark.parametrize("name", CODED)
def test_a_coded_tensor_is_a_tree_of_its_tensors(name: str) -> None:
    coded = CODED[name]
    leaves, structure = tree_flatten(coded)
    own = (coded.codes, coded.scale, coded.zero, coded.low, coded.block_scales)
    assert {id(part) for part in own if part is not None} <= {id(leaf) for leaf in leaves}
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    assert_same_bits(tree_unflatten(leaves, structure).decode(), coded.decode())
    copied = tree_map(torch.clone, coded)
    assert copied.layout == coded.layout
    copied.codes.zero_()
    assert_same_bits(coded.decode(), QUANTIZED[name])


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_and_pickles_decode_alike(name: str, copied: Any) -> None:
    assert_same_bits(copied(CODED[name]).decode(), QUANTIZED[name])


def test_bytes_are_those_of_codes_and_scales() -> None:
    rows, columns = X.shape
    assert CODED["elements"].nbytes == X.numel() + 4
    assert CODED["rows"].nbytes == X.numel() + 3 * 4 * rows
    assert CODED["blocks"].nbytes == X.numel() + rows * columns // 32 + 4
    assert CODED["elements"].in_nibbles().nbytes == X.numel() // 2 + 4


@pytest.mark.parametrize("name", CODED)
def test_nibbles_hold_the_same_numbers_in_half_the_bytes(name: str) -> None:
    packed = CODED[name].in_nibbles()
    assert packed.codes.numel() * 2 == X.numel()
    assert packed.layout.bits == 4
    assert_same_bits(packed.decode(), QUANTIZED[name])
    with pytest.raises(InvalidValue, match="two codes share a byte"):
        packed.in_nibbles()


@pytest.mark.parametrize("width", [1, 2, 7])
def test_a_row_of_nibbles_may_end_within_a_byte(width: int) -> None:
    coded = ops.pack_codes(X[:, :width].contiguous(), FORMAT)
    packed = coded.in_nibbles()
    assert packed.layout.width == width
    assert packed.codes.shape == (6, (width + 1) // 2)
    assert_same_bits(packed.decode(), coded.decode())


def test_a_table_gives_each_code_its_value() -> None:
    values = torch.arange(256.0).flip(0)
    codes = torch.tensor([[0, 255], [7, 1]], dtype=torch.uint8)
    layout = Layout((2, 2), (2, 1), torch.float32)
    coded = CodedTensor(codes, torch.ones(()), "1-4-3", layout, transform=(Table(values),))
    assert coded.decode().tolist() == [[255.0, 0.0], [248.0, 254.0]]


def levels(x: Tensor, **parts: Any) -> CodedTensor:
    """Codes 0 to 15 of the shape of x around a zero of 7, with a scale of 4."""
    codes = torch.empty_like(x, dtype=torch.uint8).copy_(torch.arange(x.numel()).view(x.shape) * 7 % 16)
    layout = Layout(tuple(x.shape), tuple(x.stride()), x.dtype)
    return CodedTensor(codes, torch.tensor(4.0), "uint4", layout, torch.tensor(7.0), **parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_levels_count_steps_from_zero(dtype: torch.dtype) -> None:
    coded = levels(X.to(dtype))
    assert_same_bits(coded.decode(), ((coded.codes.float() - 7) / 4).to(dtype))
    rows = replace(coded, scale=torch.arange(1.0, 7.0))
    assert_same_bits(rows.decode(torch.float32), (coded.codes.float() - 7) / torch.arange(1.0, 7.0)[:, None])


@pytest.mark.parametrize("dim", [1, 3, -2])
def test_folded_channels_are_divided_by_their_factors(dim: int) -> None:
    x = torch.zeros(2, 3, 4, 5)
    factors = torch.arange(1.0, 1 + x.shape[dim])
    coded = levels(x, transform=(Folded(factors, dim),))
    expected = ((coded.codes.float() - 7) / 4).movedim(dim, -1) / factors
    assert_same_bits(coded.decode(), expected.movedim(-1, dim).contiguous())
    assert coded.in_nibbles().decode().equal(coded.decode())
    elements = replace(CODED["elements"], transform=(Folded(torch.full((64,), 2.0)),))
    assert_same_bits(elements.decode(), QUANTIZED["elements"] / 2)


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("shape", [(5,), (4, 6)])
def test_nibbles_of_channels_last_images_lie_along_channels(shape: tuple[int, ...], channels: int) -> None:
    """So that nothing is transposed, to pack or to unpack them."""
    image = torch.zeros(2, *shape, channels).movedim(-1, 1)
    coded = levels(image)
    packed = coded.in_nibbles()
    assert packed.codes.shape == (torch.Size((2, *shape)).numel(), (channels + 1) // 2)
    assert_same_bits(packed.decode(), coded.decode())
    assert packed.layout.shaped(packed.in_bytes()).stride() == coded.codes.stride()


NONSENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "codes of floats": ("elements", {"codes": X}),
    "two scales": ("elements", {"scale": torch.ones(2)}),
    "no format": ("elements", {"format": "1-40"}),
    "scales of other rows": (
        "rows", {name: torch.ones(2) for name in ("scale", "zero", "low")},
    ),
    "scales of other blocks": ("blocks", {"block_scales": torch.zeros(6, 3, dtype=torch.uint8)}),
    "an element format for blocks": ("blocks", {"format": "1-2-1"}),
    "nibbles of another width": ("elements", {"layout": Layout((6, 64), (64, 1), torch.float32, bits=4, width=9)}),
}  # fmt: skip


@pytest.mark.parametrize("what", NONSENSE)
def test_parts_that_do_not_fit_are_refused_in_one_sentence(what: str) -> None:
    name, parts = NONSENSE[what]
    with pytest.raises((InvalidValue, TypeError)) as error:
        replace(CODED[name], **parts).decode()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


# -------------------------------------------------------------------------------------------------------------- layouts


def test_matrices_give_their_tensor_back() -> None:
    x = torch.arange(2 * 3 * 4).view(2, 3, 4).float()
    for source in (x, x.transpose(0, 2), x.permute(1, 2, 0)):
        for summed in ((), (0,), (0, 2), (2, 1)):
            layout = Layout.summed_last(source, summed)
            matrix = layout.matrix(source)
            assert matrix.shape[1] == layout.columns == math.prod(source.shape[dim] for dim in summed or (2,))
            padded = torch.nn.functional.pad(matrix, (0, 5))
            assert_same_bits(layout.restore(padded), source)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4)], ids=str)
def test_tensors_of_few_dimensions_or_without_elements_come_back(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    layout = Layout.summed_last(x, ())
    assert_same_bits(layout.restore(layout.matrix(x)), x)
