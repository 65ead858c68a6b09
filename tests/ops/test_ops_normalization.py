"""BatchNorm in training with sum and ReLU: against PyTorch's own in float64, over shapes, layouts and parameters."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from bits import MACHINES, assert_all_same_bits, machine
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lograd import ops


class Case(NamedTuple):
    """A tensor, what belongs to it, and the gradient of the result."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    g: Tensor
    relu: bool
    epsilon: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = (
        draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 3, 8, 16, 17, 40])),
        *draw(st.lists(st.integers(1, 9), max_size=3)),
    )
    if draw(st.integers(0, 9)) == 0:
        shape = (2, 5, 1100)  # more than a piece
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def tensor(scale: float = 1.0, shift: float = 0.0) -> Tensor:
        made = torch.randn(shape, generator=generator) * scale + shift
        last = draw(st.booleans())
        return made.movedim(1, -1).contiguous().movedim(-1, 1) if last else made

    def vector() -> Tensor | None:
        return torch.randn(shape[1], generator=generator) if draw(st.booleans()) else None

    x = tensor(draw(st.sampled_from([1e-3, 1.0, 100.0])), draw(st.sampled_from([0.0, 3.0])))
    return Case(
        x, vector(), vector(), tensor() if draw(st.booleans()) else None, tensor(), draw(st.booleans()),
        draw(st.sampled_from([1e-5, 1e-3, 0.5])),
    )  # fmt: skip


def computed(case: Case) -> tuple[Tensor, ...]:
    """Result, dX, dweight, dbias and the gradient of the residual."""
    mean, _, inverse = ops.batch_statistics(case.x, case.epsilon)
    y, mask = ops.batch_normalize(case.x, mean, inverse, case.weight, case.bias, residual=case.residual, relu=case.relu)
    mask_or_none = mask if case.relu else None
    found = ops.batch_normalize_backward(
        case.g, case.x, mean, inverse, case.weight, mask=mask_or_none, residual=case.residual is not None
    )
    return y, *found


def expected(case: Case, found: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's in float64; the ReLU passes what it passed in the result that was found, which rounding may decide."""
    wide = [None if one is None else one.double().requires_grad_() for one in case[:4]]
    x, weight, bias, residual = wide
    assert x is not None
    channels = x.shape[1]
    weight = torch.ones(channels).double().requires_grad_() if weight is None else weight
    bias = torch.zeros(channels).double().requires_grad_() if bias is None else bias
    y = F.batch_norm(x, None, None, weight, bias, True, 0.0, case.epsilon)
    y = y if residual is None else y + residual
    passed = found > 0 if case.relu else torch.ones_like(found, dtype=torch.bool)
    g = torch.where(passed, case.g.double(), 0)
    wanted = (x, weight, bias)
    return torch.where(passed, y, 0).detach() if case.relu else y.detach(), *torch.autograd.grad(y, wanted, g), g


def near(found: Tensor, wanted: Tensor, scale: float) -> None:
    assert found.dtype == torch.float32
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= 2e-5 * scale


@settings(max_examples=60, deadline=None)
@given(cases())
def test_values_and_gradients_are_those_of_torch(case: Case) -> None:
    count = case.x.numel() // case.x.shape[1]
    assume(count > 1)
    found = computed(case)
    wanted = expected(case, found[0])
    size = float(case.g.abs().max()) * max(1.0, float(case.weight.abs().max()) if case.weight is not None else 1.0)
    inverse = float(ops.batch_statistics(case.x, case.epsilon).inverse.max())
    # The mean is a float32: an input far from zero is centred to the last bit of that.
    centring = 1.0 + float(case.x.abs().max()) * inverse * 0.1
    near(found[0], wanted[0], (20.0 + float(wanted[0].abs().max())) * centring)
    near(found[1], wanted[1], size * inverse * 20 * centring)
    near(found[2], wanted[2], size * count * centring)
    near(found[3], wanted[3], size * count)
    if case.residual is not None and case.relu:
        assert torch.equal(found[4].double(), wanted[4])
    else:
        assert not found[4].numel()


@settings(max_examples=15, deadline=None)
@given(cases())
@pytest.mark.parametrize("isa", MACHINES, ids=str)
def test_no_bit_depends_on_threads_instruction_set_or_layout(isa: tuple[str, int], case: Case) -> None:
    with machine("generic", 1):
        wanted = computed(case._replace(x=case.x.contiguous(), g=case.g.contiguous()))
    with machine(*isa):
        found = computed(case)
    assert_all_same_bits(tuple(one.contiguous() for one in found), tuple(one.contiguous() for one in wanted))


@pytest.mark.parametrize("isa", MACHINES, ids=str)
@pytest.mark.parametrize("last", [True, False])
def test_large_tensors_on_many_threads(isa: tuple[str, int], last: bool) -> None:
    """Written past the cache, in pieces of several threads."""
    torch.manual_seed(0)
    x, g, r = (torch.randn(9, 67, 41, 47) for _ in range(3))
    case = Case(x, torch.rand(67), torch.randn(67), r, g, True, 1e-5)
    with machine("generic", 1):
        wanted = computed(case)
    if last:
        case = case._replace(x=x.contiguous(memory_format=torch.channels_last))
    with machine(*isa):
        found = computed(case)
    assert_all_same_bits(tuple(one.contiguous() for one in found), tuple(one.contiguous() for one in wanted))


def test_statistics_survive_a_mean_far_from_zero() -> None:
    x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 1000.0
    found = ops.batch_statistics(x, 0.0)
    wide = x.double().transpose(0, 1).flatten(1)
    assert torch.allclose(found.mean.double(), wide.mean(1), rtol=1e-7)
    assert torch.allclose(found.variance.double(), wide.var(1, correction=0), rtol=1e-6)


def test_constant_channels_have_no_variance() -> None:
    found = ops.batch_statistics(torch.full((5, 2, 3), 0.1), 1e-5)
    assert found.variance.max() < 1e-12
    assert torch.allclose(found.inverse, torch.tensor(1e-5).rsqrt())
