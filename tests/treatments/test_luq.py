"""LUQ beyond one draw: means of several (SMP), their codes and variance, and maxima in hindsight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bits import DTYPES, MACHINES, assert_same_bits, awkward, layouts, machine
from methods import gradient
from torch import Tensor, nn

import lograd
from lograd import ops
from lograd.laws import Empirical
from lograd.ops.codes import coding_of
from lograd.ops.elementwise import round_to_grid
from lograd.ops.logarithmic import SAMPLES, format_of_mean
from lograd.treatments import Luq, Sawb, Statistics, apply, predict, recipe
from lograd.treatments.treatment import Setting


def setting(memory: Tensor | None = None, seed: int = 7) -> Setting:
    memory = torch.zeros(0, dtype=torch.float64) if memory is None else memory
    return Setting({}, torch.tensor([seed, 3]), memory, ())


WIDTHS = [(bits, samples) for bits in range(2, 8) for samples in SAMPLES if samples > 1 and samples <= 2 ** (8 - bits)]


@pytest.mark.parametrize(("bits", "samples"), WIDTHS)
def test_the_code_of_a_mean_is_the_sum_of_the_codes(bits: int, samples: int) -> None:
    """For all numbers of draws that go up, from each magnitude to the next, with both signs."""
    one, mean = format_of_mean(bits, 1), format_of_mean(bits, samples)
    assert mean.bits == bits + math.log2(samples)
    top = 2 ** (bits - 1)
    for sign in (0, top):
        for low in range(top):
            for ups in range(samples + 1):
                codes = [sign + min(low + 1, top - 1)] * ups + [sign + low] * (samples - ups)
                assert mean.decode(sum(codes)) == np.mean([one.decode(code) for code in codes])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mean_is_that_of_draws_with_keys_of_their_own(dtype: torch.dtype) -> None:
    x = awkward((3, 4, 5, 6), dtype, spread=1.0).nan_to_num(0.25, 3.0, -3.0).clamp(-1e3, 1e3)
    for each in layouts(x).values():
        found = ops.luq(each, 4, 5, 11, samples=4)
        draws = [ops.luq(each, 4, 5 + place * 2**32, 11) for place in range(4)]
        mean = torch.stack([draw.result.float() for draw in draws]).mean(0)
        assert torch.allclose(found.result.float(), mean, rtol=2 * torch.finfo(dtype).eps, atol=0)
        assert found.result.stride() == draws[0].result.stride()
        assert int(found.counts[0]) == int((mean == 0).sum())
        coded = ops.pack_luq(each, 4, 5, 11, samples=4)
        assert coded.format == "1-3-2"
        assert_same_bits(coded.decode(), found.result)


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
def test_means_have_the_same_bits_everywhere(isa: str, threads: int) -> None:
    """Against the definition: draws in plain PyTorch."""
    x = gradient(307, 509)
    scale = 16 / x.abs().max()
    one = coding_of("1-3-0")
    codes = torch.zeros(x.shape, dtype=torch.uint8)
    for place in range(2):
        key = torch.tensor([9 + place * 2**32, 0])
        value, _ = round_to_grid(x.flatten() * scale, torch.ones(()), one.grid, True, key)
        codes += one.codes_of(value).view_as(codes)
    with machine(isa, threads):
        found = ops.pack_luq(x, 4, 9, samples=2)
    assert torch.equal(found.codes, codes)


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_the_variance_is_that_of_one_draw_divided(samples: int) -> None:
    """(x - low)(high - x) / samples for each element, within the band of 200 draws."""
    g, one = gradient(16, 64), Luq(4, samples=samples)
    x = g.abs().double().flatten().numpy()
    low, high = Luq(4).outcomes(x, {"largest": x.max()}).values
    expected = np.sum((x - low) * (high - x)) / samples
    found = [float((apply((one,), g, seed).result - g).double().square().sum()) for seed in range(200)]
    assert abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / math.sqrt(len(found))


@pytest.mark.parametrize("samples", [2, 16])
def test_outcomes_of_means_are_a_law_with_the_right_mean(samples: int) -> None:
    x = gradient(zeros=0.0).abs().double().flatten().numpy()
    found = Luq(4, samples=samples).outcomes(x, {"largest": x.max()})
    assert np.allclose(found.probabilities.sum(0), 1)
    assert np.allclose((found.values * found.probabilities).sum(0), x)


def test_hindsight_is_part_of_a_prediction() -> None:
    g = gradient()
    statistics = Statistics(Empirical.fit(g))
    one = Luq(4, ranges="hindsight")
    low = predict((one,), statistics, [one.memory_words([float(g.abs().max()) / 50, 3])])
    high = predict((one,), statistics)
    assert low is not None
    assert high is not None
    assert low.cosine < 0.9 * high.cosine


# ---------------------------------------------------------------------------------------------------------- hindsight


HINDSIGHT = Luq(4, ranges="hindsight")


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("encode", [False, True])
def test_each_maximum_is_that_of_the_gradients_before(encode: bool, samples: int) -> None:
    """m_t = 0.9 m_(t-1) + 0.1 max |g_(t-1)|; the first gradient has its own."""
    one, memory, expected = Luq(4, samples=samples, ranges="hindsight"), torch.zeros(2, dtype=torch.float64), 0.0
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        g = torch.randn(200, generator=generator) * (1 + step)
        largest = float(g.abs().max())
        expected = largest if step == 0 else expected
        wanted = ops.luq(g, 4, torch.tensor([7, 3]), samples=samples, largest=expected)
        if encode:
            coded, counts = one.encode(g, setting(memory))
            result = coded.decode()
        else:
            result, counts = one.apply(g, setting(memory))
        assert_same_bits(result, wanted.result)
        assert float(result.abs().max()) <= expected * (1 + 1e-6)
        assert int(counts[2]) == int((g.abs() * np.float32(16 / expected) > 16).sum())
        assert (int(counts[2]) > 0) == (step > 0)  # these gradients grow faster than what is remembered
        if step:
            expected = 0.9 * expected + (1 - 0.9) * largest
        assert memory.tolist() == [expected, step + 1]
        assert one.memory_words(memory.tolist()) == {"largest": expected}


def test_zeros_and_wrong_numbers_leave_the_maximum_as_it_is() -> None:
    memory = torch.zeros(2, dtype=torch.float64)
    bad = [torch.zeros(5), torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 2.0]), torch.zeros(0)]
    for state in ([0.0, 0.0], [3.0, 4.0]):
        memory.copy_(torch.tensor(state))
        for g in bad:
            HINDSIGHT.apply(g, setting(memory))
            HINDSIGHT.encode(g, setting(memory))
            assert memory.tolist() == state
    assert HINDSIGHT.memory_words([0.0, 0.0]) == {}


def test_the_maximum_follows_the_loss_scale() -> None:
    assert HINDSIGHT.rescaled(torch.tensor([2.0, 5.0]), 8.0).tolist() == [16.0, 5.0]
    nothing = torch.zeros(0)
    assert Luq(4).rescaled(nothing, 8.0) is nothing


# ------------------------------------------------------------------------------------------------------- plain values


def test_recipes_say_where_the_mean_goes() -> None:
    found = recipe("luq4-smp2-hindsight")
    assert found.input_gradient.gradient == (HINDSIGHT,)
    assert found.weight_gradient.gradient == (Luq(4, samples=2, ranges="hindsight"),)
    assert recipe("luq4-smp2").output == recipe("luq4").output
    assert recipe("fp4-luq-smp2").weight_gradient.gradient == recipe("luq4-smp2").weight_gradient.gradient


@pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")
def test_integer_products_serve_all_but_the_mean() -> None:
    """Two draws of 1-3-0 add up to -128 to 128 of their smallest steps, one more than a byte holds; of 1-2-0 less."""
    assert Luq(4).level_bits == 8
    assert Luq(4, samples=2).level_bits == 0
    assert Luq(3, samples=2).level_bits > 0
    layer = nn.Linear(96, 64)
    for name, words in (("luq4", "bits are real;"), ("luq4-smp2", "Y and dX only: the gradient in dW is not")):
        with lograd.attach(layer, lograd.Plan.uniform(name, keep=()), backend="integer") as handle:
            layer(torch.randn(32, 96, requires_grad=True)).square().sum().backward()
            handle.step()
            assert words in str(handle.explain())


def test_the_forward_is_that_of_the_released_code() -> None:
    """SAWB for both operands: over [-c, c], and over [0, 2 c] behind a ReLU, but never beyond the largest element."""
    (activations,) = recipe("luq4").output.activations
    assert recipe("luq4").output.weights == (activations,) == (Sawb(4),)
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    heavy = x.exp() * 0.01
    heavy[0] = 50.0
    for one, signed in ((x, True), (heavy, False)):
        double = one.double()
        clip = 12.1 * float(double.square().mean().sqrt()) - 12.2 * float(double.abs().mean())
        expected = (-clip, clip) if signed else (0.0, 2 * clip)
        assert Sawb(4).range(one) == pytest.approx(expected, rel=1e-6)
        found = Sawb(4).encode(one, setting()).coded
        assert int(found.codes.max()) == (14 if signed else 15)
    assert Sawb(4).range(x.relu()) == (0.0, float(x.max())), "2 c is beyond it"
