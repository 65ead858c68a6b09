"""Layouts of coded tensors: matrices that are made of a tensor give it back, with its strides."""

from __future__ import annotations

import math

import pytest
import torch
from bits import assert_same_bits

from lograd.coded import Layout


def test_matrices_give_their_tensor_back() -> None:
    x = torch.arange(2 * 3 * 4).view(2, 3, 4).float()
    for source in (x, x.transpose(0, 2), x.permute(1, 2, 0)):
        for summed in ((), (0,), (0, 2), (2, 1)):
            layout = Layout.summed_last(source, summed)
            matrix = layout.matrix(source)
            assert matrix.shape[1] == layout.columns == math.prod(source.shape[dim] for dim in summed or (2,))
            padded = torch.nn.functional.pad(matrix, (0, 5))
            assert_same_bits(layout.restore(padded), source)


def test_a_layout_is_a_value() -> None:
    x = torch.ones(2, 3).t()
    layout = Layout.of(x)
    assert layout == Layout((3, 2), (1, 3), torch.float32)
    assert hash(layout) == hash(Layout.of(x))
    assert layout != Layout.of(x.contiguous())
    with pytest.raises(AttributeError):
        layout.bits = 4  # type: ignore[misc]


def test_strides_come_back_without_a_matrix() -> None:
    x = torch.randn(2, 3, 4).permute(2, 0, 1)
    restored = Layout.of(x).restore(x.contiguous())
    assert restored.stride() == x.stride()
    assert_same_bits(restored, x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4)], ids=str)
def test_tensors_of_few_dimensions_or_without_elements_come_back(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    layout = Layout.summed_last(x, ())
    assert_same_bits(layout.restore(layout.matrix(x)), x)
