"""The random Hadamard transform: native against plain PyTorch, both against scipy's matrix in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from bits import DTYPES, MACHINES, assert_same_bits, awkward, machine, plain
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lograd import ops
from lograd.ops.contracts import BLOCKS
from lograd.ops.hadamard import random_signs

U = 2.0**-24


def exact(x: Tensor, block: int, seed: int | None) -> Tensor:
    """H D x / sqrt(n) in float64, by the matrix."""
    signs = torch.ones(x.shape[-1]) if seed is None else random_signs(x.shape[-1], torch.tensor(seed))
    matrix = torch.from_numpy(scipy.linalg.hadamard(block).astype(np.float64)) / math.sqrt(block)
    y = (x.double() * signs.double()).unflatten(-1, (-1, block))
    return (y @ matrix.T).flatten(-2)


def bound(block: int, passes: int) -> float:
    """The documented error of so many transforms, relative to the 2-norm of a block."""
    stages = int(math.log2(block)) + (0 if block in (16, 64) else 2)
    return (1 + U) ** (passes * stages) - 1


def norms(x: Tensor, block: int) -> Tensor:
    return x.double().unflatten(-1, (-1, block)).norm(dim=-1)


@pytest.mark.parametrize("isa", MACHINES, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
class TestNativeEqualsPlain:
    @given(
        dtype=st.sampled_from(DTYPES), rows=st.integers(0, 4), blocks=st.integers(0, 5), seed=st.integers(0, 2**63 - 1),
        signs=st.booleans(), inverse=st.booleans(),
    )  # fmt: skip
    def test_awkward_numbers(
        self, block: int, isa: tuple[str, int], dtype: torch.dtype, rows: int, blocks: int, seed: int, signs: bool,
        inverse: bool,
    ) -> None:  # fmt: skip
        x = awkward((rows, blocks * block), dtype, seed)
        key = torch.tensor([seed, 0]) if signs else None
        with machine(*isa):
            result = torch.ops.lograd.hadamard.default(x, block, key, inverse)
        assert_same_bits(result, plain("hadamard")(x, block, key, inverse))


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("block", BLOCKS)
class TestTransform:
    def test_error_stays_within_the_bound(self, block: int, seed: int | None) -> None:
        x = awkward((200, 3 * block), torch.float32, spread=2.0)
        x = torch.where(x.abs() < 1e30, x, 1.0)
        y = ops.hadamard(x, block, seed)
        error = norms(y.double() - exact(x, block, seed), block)
        assert (error <= bound(block, 1) * norms(x, block)).all()
        back = ops.hadamard_inverse(y, block, seed)
        error = norms(back.double() - x.double(), block)
        assert (error <= bound(block, 2) * norms(x, block)).all()

    def test_whole_numbers_come_back_exactly(self, block: int, seed: int | None) -> None:
        x = torch.randint(-1000, 1000, (50, 2 * block)).float()
        back = ops.hadamard_inverse(ops.hadamard(x, block, seed), block, seed)
        if block in (16, 64):
            assert torch.equal(back, x)
        else:
            assert torch.equal(back.round(), x)

    def test_products_do_not_change(self, block: int, seed: int | None) -> None:
        # Rows are what is summed over in the last dimension: (X D H)(H D Y^T) = X Y^T.
        x, y = torch.randn(30, 2 * block), torch.randn(40, 2 * block)
        product = ops.hadamard(x, block, seed).double() @ ops.hadamard(y, block, seed).double().T
        scale = x.double().norm(dim=1)[:, None] * y.double().norm(dim=1)
        assert ((product - x.double() @ y.double().T).abs() <= 2.01 * bound(block, 1) * scale).all()

    def test_an_outlier_is_spread_over_its_block(self, block: int, seed: int | None) -> None:
        x = torch.zeros(2 * block)
        x[3] = 8.0
        y = ops.hadamard(x, block, seed)
        assert torch.allclose(y[:block].abs(), torch.full((block,), 8 / math.sqrt(block)), rtol=2 * U, atol=0)
        assert (y[block:] == 0).all()


def test_signs_are_fair_and_belong_to_positions() -> None:
    n = 2**16
    signs = random_signs(n, torch.tensor(3))
    assert abs(float(signs.sum())) < 4 * math.sqrt(n)
    assert abs(float((signs[1:] * signs[:-1]).sum())) < 4 * math.sqrt(n)
    assert abs(float((signs * random_signs(n, torch.tensor(4))).sum())) < 4 * math.sqrt(n)
    assert torch.equal(random_signs(100, torch.tensor(3)), signs[:100])
    row = torch.randn(256)
    rows = ops.hadamard(row.expand(5, 256), 32, 3)
    for i in range(5):
        assert_same_bits(rows[i], ops.hadamard(row, 32, 3))


def test_signs_do_not_depend_on_the_numbers_of_rounding() -> None:
    from lograd.ops.random import uniform

    n = 2**16
    draws = uniform(n, torch.tensor([3, 0])) - 0.5
    assert abs(float((random_signs(n, torch.tensor(3)) * draws).sum())) < 4 * math.sqrt(n / 12)


def test_nan_and_infinity_reach_their_block_and_no_other() -> None:
    for bad in (math.nan, math.inf):
        x = torch.ones(64)
        x[5] = bad
        y = ops.hadamard(x, 32)
        assert not y[:32].isfinite().any()
        assert y[32:].isfinite().all()
