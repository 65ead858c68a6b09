"""Treatments: the numbers that follow from statistics, predictions against measurements, JSON, recipes, messages."""

import math

import numpy as np
import pytest
import torch

from lograd import FloatFormat, IntFormat, theory
from lograd.laws import Empirical, LogNormal
from lograd.treatments import (
    Prune,
    Quantize,
    Statistics,
    apply,
    describe,
    from_json,
    numbers_of,
    predict,
    recipe,
    to_json,
)

ELEMENTS = 1 << 18


def gradient(sigma=2.0, zeros=0.3, seed=0, elements=ELEMENTS):
    generator = torch.Generator().manual_seed(seed)
    g = torch.exp(sigma * torch.randn(elements, generator=generator) - 9)
    g *= torch.sign(torch.randn(elements, generator=generator))
    return g * (torch.rand(elements, generator=generator) >= zeros)


def statistics_of(g, masked=0.0):
    return Statistics(Empirical.fit(g), masked)


def treated(treatments, g, seed=5):
    """The sentence applied to a tensor, with the numbers that its statistics give; its counts."""
    result, counts = apply(treatments, g, seed)
    return result, counts.tolist()


# Every treatment joins by a row: its prediction is held against a measurement.
SENTENCES = {
    "identity": (),
    "fp4": recipe("fp4").input_gradient.gradient,
    "fp6": recipe("fp6").input_gradient.gradient,
    "fp8 nearest": (Quantize(FloatFormat(5, 2), rounding="nearest"),),
    "fp6 mean": (Quantize(FloatFormat(4, 1), scale="mean"),),
    "fp5 mean-3": (Quantize(FloatFormat(4, 0), scale="mean-3", rounding="nearest"),),
    "int8": recipe("int8").input_gradient.gradient,
    "int4 quantile": (Quantize(IntFormat(4), scale="quantile(0.99)"),),
    "fp6 expected_max": (Quantize(FloatFormat(4, 1), scale="expected_max"),),
    "prune50": recipe("prune50").input_gradient.gradient,
    "prune85": recipe("prune85").input_gradient.gradient,
    "prune85 lognormal": recipe("prune85-lognormal").input_gradient.gradient,
    "prune60 normal": recipe("prune60-normal").input_gradient.gradient,
    "prune85+fp6": recipe("prune85+fp6").input_gradient.gradient,
    "prune95+fp4": recipe("prune95+fp4").input_gradient.gradient,
    "fp6+prune85": recipe("fp6+prune85").input_gradient.gradient,
}


@pytest.mark.parametrize("sigma", [1.0, 2.0])
@pytest.mark.parametrize("name", SENTENCES)
def test_predictions_agree_with_measurement(name, sigma):
    g = gradient(sigma)
    y = treated(SENTENCES[name], g)[0].double()
    x, nonzero = g.double(), g != 0
    predicted = predict(SENTENCES[name], statistics_of(g))

    zeros = float((y == 0).double().mean())
    cosine = float((x * y).sum() / (x.norm() * y.norm()))
    error = float(((y - x).abs() / x.abs())[nonzero].mean())

    band = 4 * math.sqrt(0.25 / ELEMENTS)
    assert abs(predicted.sparsity - zeros) < band
    assert abs(predicted.cosine - cosine) < 0.02 * cosine
    # |y - x| / x of an element that survives against the odds is a / x: a heavy tail, hence the wide band
    assert abs(predicted.relative_error - error) < 0.05 * error + 1e-12


@pytest.mark.parametrize(
    "format", [FloatFormat(3, 0), FloatFormat(4, 1), FloatFormat(1, 6), IntFormat(4), IntFormat(8)]
)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_predicted_rounding_is_that_of_the_theory(format, rounding):
    statistics = statistics_of(gradient(1.0))
    treatment = Quantize(format, rounding=rounding)
    scale = treatment.numbers(statistics)["scale"]
    exact = float(theory.relative_error(statistics.law, format, scale, rounding))
    assert predict((treatment,), statistics).relative_error == pytest.approx(exact, rel=2e-3)


def test_predicted_pruning_is_that_of_the_theory():
    statistics = statistics_of(gradient(zeros=0.0))
    predicted = predict((Prune(0.9),), statistics)
    threshold = theory.threshold(statistics.law, 0.9)
    assert predicted.sparsity == pytest.approx(0.9, abs=1e-6)
    assert predicted.cosine == pytest.approx(float(theory.cosine(statistics.law, threshold)), rel=1e-4)
    assert predicted.relative_error == pytest.approx(1.8, rel=1e-4)  # E|T(x) - x| / x = 2 S(a), for any law


# -- numbers --


@pytest.mark.parametrize("sparsity", [0.001, 0.3, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("make", [gradient, lambda: torch.randn(1000), lambda: torch.tensor([1e-30, 1.0, 2.0, 1e20])])
def test_the_closed_form_of_the_threshold_is_that_of_the_theory(make, sparsity):
    statistics = statistics_of(make())
    if statistics.zero_share < sparsity:
        target = theory.nonzero_sparsity(sparsity, statistics.zero_share)
        threshold = Prune(sparsity).numbers(statistics)["threshold"]
        assert float(theory.sparsity(statistics.law, threshold)) == pytest.approx(float(target), abs=1e-9)


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95])
def test_sparsity_asked_is_sparsity_got(sparsity, zeros):
    y, counts = treated((Prune(sparsity),), gradient(zeros=zeros))
    assert abs(counts[0] / y.numel() - sparsity) < 4 * math.sqrt(sparsity * (1 - sparsity) / y.numel()) + 1e-3


def test_zeros_that_suffice_leave_nothing_to_prune():
    g = gradient(zeros=0.7)
    assert Prune(0.6).numbers(statistics_of(g)) == {"threshold": 0.0}
    assert torch.equal(treated((Prune(0.6),), g)[0], g)


def two_modes(masked):
    """A conv-BatchNorm-ReLU gradient: masked positions hold values far below the others."""
    g, tiny = gradient(1.5, zeros=0.0), gradient(1.0, zeros=0.0, seed=1) * 1e-6
    positions = torch.rand(ELEMENTS, generator=torch.Generator().manual_seed(2)) < masked
    return torch.where(positions, tiny, g)


def test_the_lognormal_threshold_is_that_of_the_right_mode():
    g = two_modes(0.5)
    corrected = Prune(0.8, "lognormal").numbers(statistics_of(g, masked=0.5))["threshold"]
    mode = LogNormal.fit(g[g.abs() > 3e-8])
    right = float(theory.threshold(LogNormal(mode.mu, mode.sigma), (0.8 - 0.5) / 0.5))
    assert corrected == pytest.approx(right, rel=0.02)
    assert abs(corrected - right) < abs(Prune(0.8, "lognormal").numbers(statistics_of(g))["threshold"] - right) / 10
    predicted = [predict((Prune(0.8, "lognormal"),), statistics_of(g, masked)).sparsity for masked in (0.5, 0.0)]
    assert abs(predicted[0] - 0.8) < 0.01 < abs(predicted[1] - 0.8)


def test_where_more_is_masked_than_asked_for_the_masked_are_pruned():
    statistics = statistics_of(two_modes(0.7), masked=0.7)
    threshold = Prune(0.5, "lognormal").numbers(statistics)["threshold"]
    assert threshold == pytest.approx(float(statistics.law.quantile(0.7)))


def test_the_normal_law_is_exact_for_a_normal_gradient_and_for_no_other():
    normal = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    assert predict((Prune(0.8, "normal"),), statistics_of(normal)).sparsity == pytest.approx(0.8, abs=2e-3)
    assert predict((Prune(0.8, "normal"),), statistics_of(gradient(zeros=0.0))).sparsity > 0.9


def test_the_lognormal_law_of_one_magnitude_falls_back_on_the_histogram():
    statistics = statistics_of(torch.full((1000,), 0.1))
    assert Prune(0.8, "lognormal").numbers(statistics) == Prune(0.8).numbers(statistics)


def test_a_scale_follows_what_pruning_leaves():
    g = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    sentence = recipe("prune95+fp6").input_gradient.gradient
    (prune, quantize) = numbers_of(sentence, statistics_of(g))
    assert prune["threshold"] > g.abs().max()  # every survivor is moved up to the threshold
    _, counts = treated(sentence, g)
    assert counts[2] == 0  # and none of them saturates
    assert quantize["scale"] < Quantize(FloatFormat(4, 1)).numbers(statistics_of(g))["scale"]


def test_scales_stay_float32():
    tiny = Quantize(FloatFormat(4, 3)).numbers(statistics_of(torch.full((64,), 1e-42)))["scale"]
    assert np.isfinite(np.float32(tiny))


def test_statistics_follow_a_loss_scale():
    g = gradient(elements=1 << 14)
    shifted = statistics_of(g).scaled(2.0**5)
    assert shifted.law == statistics_of(g * 2.0**5).law
    assert statistics_of(g).scaled(1.37).distance(statistics_of(g * 1.37)) < 0.01
    assert statistics_of(g).distance(statistics_of(g)) == 0.0
    assert statistics_of(g).distance(shifted) > 0.3
    assert statistics_of(gradient(zeros=0.1)).distance(statistics_of(gradient(zeros=0.6))) == pytest.approx(
        0.5, abs=0.01
    )


# -- values, text, messages --


@pytest.mark.parametrize("name", SENTENCES)
def test_json_is_an_exact_inverse(name):
    sentence = SENTENCES[name]
    assert from_json(to_json(sentence)) == sentence
    assert len({sentence, from_json(to_json(sentence))}) == 1


def test_recipes():
    assert recipe("identity").input_gradient.gradient == ()
    assert recipe("fp6").input_gradient.gradient == (Quantize(FloatFormat(4, 1)),)
    assert recipe("prune90-normal").input_gradient.gradient == (Prune(0.9, "normal"),)
    assert describe(recipe("prune85+fp6").input_gradient.gradient) == "prune 0.85, then 1-4-1 scale max"
    assert describe(()) == "unchanged"
    assert Quantize("1-4-1") == Quantize(FloatFormat(4, 1))
