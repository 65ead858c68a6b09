"""Attention in integers: against its definition in float64 and against PyTorch's; noise, masks and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bits import assert_all_same_bits
from torch import Tensor

from lograd.errors import InvalidType, InvalidValue
from lograd.nn import scaled_dot_product_attention, softmax_attention
from lograd.ops import quantize_integers


def operands(
    lead: tuple[int, ...] = (2, 3), lengths: tuple[int, int] = (9, 13), dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((lengths[0], 16), (lengths[1], 16), (lengths[1], 10))
    q, k, v = (torch.randn(*lead, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    return q, k, v


def gradients(result: Tensor, *wanted: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(result.shape, generator=generator).to(result.dtype)
    return torch.autograd.grad(result, wanted, g)


def difference(found: Tensor, expected: Tensor) -> float:
    """The relative error of a tensor."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def slices(x: Tensor, bits: int) -> Tensor:
    """Each slice rounded in its own range, in float64."""
    flat = x.detach().reshape(-1, *x.shape[-2:])
    return quantize_integers(flat, bits, per="channel", symmetric=True).double().view(x.shape)


def rows(p: Tensor, bits: int) -> Tensor:
    """Each row rounded in its own range, in float64."""
    matrix = quantize_integers(p.float().reshape(-1, p.shape[-1]), bits, per="channel")
    return matrix.double().view(p.shape)


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_output_is_that_of_rounded_operands(bits: int) -> None:
    given = operands()
    q, k, v = (slices(each, bits) for each in given)
    p = (q @ k.transpose(-1, -2) / 4).softmax(-1)

    found = scaled_dot_product_attention(*given, bits=bits)

    assert difference(found, rows(p, bits) @ v) < 1e-3  # an element of p may lie on the edge between two codes
    assert found.dtype == torch.float32


@pytest.mark.parametrize("bits", [5, 8])
def test_gradients_are_unbiased(bits: int) -> None:
    """The mean over seeds is the gradient of the product with rounded operands, within the noise of the mean."""
    given = operands()
    q, k, v = (slices(each, bits) for each in given)
    p = (q @ k.transpose(-1, -2) / 4).softmax(-1)
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(*p.shape[:-1], 10, generator=generator).double()
    d_p = g @ v.transpose(-1, -2)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) / 4
    expected = d_s @ k, d_s.transpose(-1, -2) @ q, rows(p, bits).transpose(-1, -2) @ g

    seeds = range(200)
    drawn = [gradients(scaled_dot_product_attention(*given, bits=bits, seed=seed), *given) for seed in seeds]

    for place, right in enumerate(expected):
        every = torch.stack([found[place].double() for found in drawn])
        deviations = (every.mean(0) - right) / (every.std(0) / len(seeds) ** 0.5)
        # Elements of a slice share the noise of dO; a bias of half a deviation would give 50 here.
        assert 0.6 < float(deviations.square().mean()) < 1.5


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"attn_mask": torch.arange(13) < torch.tensor([7, 13]).view(2, 1, 1, 1)},
    "of a head": {"attn_mask": torch.randn(3, 9, 13, generator=torch.Generator().manual_seed(2))},
    "for all": {"attn_mask": torch.randn(9, 13, generator=torch.Generator().manual_seed(3)) > -1},
    "scale": {"scale": 0.4},
}


@pytest.mark.parametrize("name", MASKS)
def test_close_to_that_of_torch(name: str) -> None:
    given = operands()
    found = scaled_dot_product_attention(*given, **MASKS[name])
    expected = F.scaled_dot_product_attention(*given, **MASKS[name])
    assert difference(found, expected) < 0.03
    for one, other in zip(gradients(found, *given), gradients(expected, *given), strict=True):
        assert difference(one, other) < 0.08


def test_rows_that_see_nothing_give_and_get_zeros() -> None:
    given = operands()
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[4] = False
    found = scaled_dot_product_attention(*given, mask)
    expected = F.scaled_dot_product_attention(*given, mask)
    assert torch.equal(found[..., 4, :], torch.zeros(2, 3, 10))
    d_q, *rest = gradients(found, *given)
    assert torch.equal(d_q[..., 4, :], torch.zeros(2, 3, 16))
    for one, other in zip((d_q, *rest), gradients(expected, *given), strict=True):
        assert difference(one, other) < 0.08


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.3}, {"is_causal": True}], ids=str)
def test_nothing_depends_on_how_many_slices_are_computed_at_one_time(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = operands()
    found = []
    for elements in (1, 300, 2**20):
        monkeypatch.setattr(softmax_attention, "ELEMENTS", elements)
        result = scaled_dot_product_attention(*given, **options, seed=7)
        found.append((result, *gradients(result, *given)))
    assert_all_same_bits(found[0], found[1])
    assert_all_same_bits(found[0], found[2])


def test_dropout_has_the_mean_of_no_dropout_and_one_mask_in_both_directions() -> None:
    q, k, _ = operands((1,), (1, 40))
    v = torch.eye(40, requires_grad=True)[None]
    plain = scaled_dot_product_attention(q, k, v)
    drawn = [scaled_dot_product_attention(q, k, v, dropout_p=0.25, seed=seed) for seed in range(400)]
    zeros = torch.stack([(one == 0) & (plain != 0) for one in drawn]).float().mean() / (plain != 0).float().mean()
    assert float(zeros) == pytest.approx(0.25, abs=0.02)
    assert difference(torch.stack(drawn).mean(0), plain) < 0.1

    (d_v,) = torch.autograd.grad(drawn[0], v, torch.ones_like(drawn[0]))
    assert torch.equal(d_v[0, :, 0] != 0, drawn[0][0, 0] != 0)


def test_random_numbers_come_from_torch_unless_there_is_a_seed() -> None:
    given = operands()
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(gradients(scaled_dot_product_attention(*given), *given))
    assert_all_same_bits(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_come_back(dtype: torch.dtype) -> None:
    given = operands(dtype=dtype)
    found = scaled_dot_product_attention(*given)
    assert found.dtype == dtype
    assert difference(found, F.scaled_dot_product_attention(*(each.float() for each in given))) < 0.03
    assert [each.dtype for each in gradients(found, *given)] == [dtype] * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_slice_with_nan_or_infinity_is_nan_and_no_other(value: float) -> None:
    q, k, v = (each.detach().clone() for each in operands())
    k[1, 2, 3, 4] = value
    found = scaled_dot_product_attention(q, k, v)
    assert bool(found[1, 2].isnan().all())
    assert int(found.isnan().sum()) == found[1, 2].numel()


def test_leading_dimensions_are_broadcast_and_may_be_none() -> None:
    q, k, v = operands((3,))
    shared = scaled_dot_product_attention(q, k[:1], v[:1], seed=1)
    assert_all_same_bits((shared,), (scaled_dot_product_attention(q, k[:1].expand_as(k), v[:1].expand_as(v)),))
    assert_all_same_bits((shared[0],), (scaled_dot_product_attention(q[0], k[0], v[0]),))
    assert gradients(shared, k)[0].shape == k.shape


def test_what_is_kept_for_the_backward_are_codes() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    given = operands()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scaled_dot_product_attention(*given)
    bytes_kept = sum(each.numel() * each.element_size() for each in kept)
    assert bytes_kept < 0.3 * sum(4 * each.numel() for each in given)


def test_operators_pass_the_checks_of_torch() -> None:
    q, k, v = (each.detach().reshape(6, *each.shape[-2:]) for each in operands())
    bias, key = torch.zeros(6, 1, 13), torch.tensor([3, 0])
    result, *codes = torch.ops.lograd.integer_attention(q, k, v, bias, key, 0.25, 0.0, 8)
    torch.library.opcheck(torch.ops.lograd.integer_attention, (q, k, v, bias, key, 0.25, 0.0, 8))
    backward = (torch.randn_like(result), *codes, bias, key, 0.25, 0.0, 8)
    torch.library.opcheck(torch.ops.lograd.integer_attention_backward, backward)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
def test_compiled_is_eager() -> None:
    given = operands()

    def call(*tensors: Tensor) -> Tensor:
        return scaled_dot_product_attention(*tensors, is_causal=True, seed=5) * 2

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*given), call(*given)
    assert_all_same_bits((found, *gradients(found, *given)), (expected, *gradients(expected, *given)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "types": ({"value": torch.zeros(2, 3, 13, 10, dtype=torch.float64)}, "value is torch.float64"),
    "width": ({"query": torch.zeros(9, 8)}, "query and key must have the same width"),
    "one dimension": ({"query": torch.zeros(16)}, "query must be a plain tensor"),
    "dropout": ({"dropout_p": 1.0}, "dropout_p must be from 0 to below 1; got 1.0."),
    "two masks": ({"attn_mask": torch.ones(9, 13) > 0, "is_causal": True}, "exclude each other"),
    "trained mask": ({"attn_mask": torch.zeros(9, 13, requires_grad=True)}, "attn_mask requires a gradient"),
    "bits": ({"bits": 9}, "bits must be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    given: dict[str, Any] = dict(zip(("query", "key", "value"), operands(), strict=True))
    options, words = REFUSED[name]
    with pytest.raises((InvalidType, InvalidValue), match=words):
        scaled_dot_product_attention(**given | options)
