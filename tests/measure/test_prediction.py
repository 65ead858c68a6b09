"""Predictions from histograms: zeros, few bits, and what treatments add to gradients with noise in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from profiled import wide_net
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import ops
from lograd.laws import Empirical
from lograd.measure.prediction import (
    USUAL,
    pruning_outlook,
    ratio_of,
    ratio_over,
    recommended_format,
    rise_of,
    statistics_of,
    steps_over_last,
    tried_formats,
)
from lograd.measure.records import LayerProfile, NoisyGradient, Record
from lograd.ops import stochastic_prune
from lograd.theory import threshold
from lograd.treatments import Integers, Prune, Quantize, Statistics, StatQuant, numbers_of
from lograd.treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of

ELEMENTS = 200_000
LEVELS = (0.03, 0.3, 3.0)


def range_of(g):
    return float(g.min()), float(g.max())


@pytest.fixture(scope="module")
def gradient():
    """Lognormal magnitudes with a spread that neural gradients have, more of them positive."""
    torch.manual_seed(0)
    magnitudes = torch.exp(2.0 * torch.randn(ELEMENTS))
    return magnitudes * torch.where(torch.rand(ELEMENTS) < 0.7, 1.0, -0.3)


def with_noise(gradient, level):
    noise = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    return gradient + noise * (level * gradient.square().mean()).sqrt()


@pytest.fixture(scope="module")
def layer(gradient):
    noisy = [with_noise(gradient, level) for level in LEVELS]
    return LayerProfile(
        "layer", "Linear", records=[Record(0, Empirical.fit(gradient), 0)], range=range_of(gradient),
        noisy=tuple(
            NoisyGradient(Empirical.fit(g), level, range_of(g)) for g, level in zip(noisy, LEVELS, strict=True)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "treatment", [Prune(0.8), Prune(0.95), StatQuant(4), StatQuant(8), Integers(4, rounding="stochastic")]
)
@pytest.mark.parametrize("level", [0.0, 0.1, 1.0, 3.0])
def test_the_rise_tells_what_is_added_to_a_gradient_with_noise(gradient, layer, treatment, level):
    noise = ratio_of((treatment,), statistics_of(layer))
    added = noise + rise_of((treatment,), layer, noise).at(level) * level
    arrives = with_noise(gradient, level) if level else gradient
    found = lograd.treatments.apply((treatment,), arrives, 5).result
    measured = float((found - arrives).square().sum() / gradient.square().sum())
    # 2 % by the bins of histograms, 1 % by chance, and power laws between levels that are ten times apart.
    assert added == pytest.approx(measured, rel=0.05 if level in (0.0, 3.0) else 0.2)


def test_a_measured_ratio_scales_the_rise(layer):
    sentence = (Prune(0.9),)
    noise = ratio_of(sentence, statistics_of(layer))
    assert rise_of(sentence, layer, 2 * noise).at(0.3) == pytest.approx(2 * rise_of(sentence, layer, noise).at(0.3))
    assert rise_of(sentence, layer, 0.0).at(0.3) == 0.0
    assert rise_of(sentence, None, noise).at(0.3) == noise
    unseen = LayerProfile("layer", "Linear", records=layer.records)
    assert rise_of(sentence, unseen, noise).at(0.3) == noise
    assert rise_of((StatQuant(4, "psq"),), layer, noise).at(0.3) == noise  # the law does not tell


@pytest.mark.parametrize("treatment", [Prune(0.9), Integers(4, rounding="stochastic"), StatQuant(6)])
def test_noise_over_batches_of_different_energy_is_summed_before_it_is_compared(gradient, treatment):
    """A threshold of the batch before is too large for a batch with a tenth of the energy, and leaves mostly noise."""
    batches = [gradient * factor for factor in (1.0, 3.0, 0.3)]
    records = [Record(step, Empirical.fit(g), 0) for step, g in enumerate(batches)]
    layer = LayerProfile("layer", "Linear", records=records, range=range_of(batches[-1]))
    laws = [Statistics(record.law, range=range_of(g)) for record, g in zip(records, batches, strict=True)]
    noise = 0.0
    for before, g in zip([laws[0], *laws], batches, strict=False):
        names, numbers = treatment.number_names, treatment.numbers(before)
        fixed = [{name: numbers[name] for name in names}]
        noise += float((lograd.treatments.apply((treatment,), g, 5, numbers=fixed).result - g).square().sum())
    signal = sum(float(g.square().sum()) for g in batches)
    # 2 % by the bins of histograms, 1 % by chance.
    assert ratio_over((treatment,), layer) == pytest.approx(noise / signal, rel=0.05)
    alone = ratio_of((treatment,), statistics_of(layer))
    assert steps_over_last((treatment,), layer) == pytest.approx(noise / signal / alone, rel=0.07)


def test_one_batch_or_a_law_that_does_not_tell_has_no_share(layer):
    assert ratio_over((Prune(0.9),), layer) == ratio_of((Prune(0.9),), statistics_of(layer))
    assert steps_over_last((Prune(0.9),), layer) == 1.0
    assert steps_over_last((StatQuant(4, "psq"),), layer) == 1.0
    assert steps_over_last((), layer) == steps_over_last((Prune(0.9),), None) == 1.0
    silent = LayerProfile("layer", "Linear", records=[Record(0, None, 10)])
    assert ratio_over((Prune(0.9),), silent) is None


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize(
    ("low", "high"), [(-3.0, 1.0), (-1.0, 3.0), (-0.01, 3.0), (0.0, 2.0), (-2.0, 0.0), (-1.0, 1.0)]
)
def test_steps_of_integers_follow_the_range_as_the_operators_have_it(bits, low, high):
    g = torch.linspace(low, high, 4001)
    statistics = Statistics(Empirical.fit(g), range=range_of(g))
    coded = ops.pack_integers(g, bits)
    assert Integers(bits).numbers(statistics)["step"] == pytest.approx(1 / float(coded.scale), rel=1e-5)
    rounded = torch.unique(ops.quantize_per_tensor(g, bits))
    if low < 0 < high:
        assert StatQuant(bits).numbers(statistics)["step"] == pytest.approx(float(rounded.diff().min()), rel=1e-4)


def test_a_range_is_scaled_with_its_gradient(gradient):
    statistics = Statistics(Empirical.fit(gradient), range=range_of(gradient))
    for factor in (4.0, 1.3):
        low, high = statistics.scaled(factor).range
        assert (low, high) == pytest.approx((factor * statistics.range[0], factor * statistics.range[1]))
    assert Statistics(statistics.law).scaled(2.0).range is None


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(conv_net(), image_batches(3), cross_entropy, noise=2)


def test_profiles_count_gradients_while_all_layers_are_pruned(profile):
    *others, last = profile.noise.layers
    assert profile[last].noisy == ()  # no noise arrives at the last layer
    for name in others:
        levels = [one.level for one in profile[name].noisy]
        assert len(levels) == 3
        assert levels == sorted(levels)
        assert levels[0] > 0
        assert all(int(one.law.count + one.law.zeros) == 2 * profile[name].elements for one in profile[name].noisy)
    for name in profile.noise.layers:
        low, high = profile[name].range
        assert max(-low, high) == pytest.approx(profile[name].last.largest, rel=1 / 15)


def test_noise_of_pruning_is_predicted_higher_where_noise_arrives(profile):
    """Where gradients are taken as they are without noise, the prediction for all layers together is too low."""
    plan = lograd.Plan.uniform("prune90")
    before = {name: layer.noisy for name, layer in profile.layers.items()}
    with_rises = profile.expected(plan).rho
    try:
        for layer in profile.layers.values():
            layer.noisy = ()
        without = profile.expected(plan).rho
    finally:
        for name, layer in profile.layers.items():
            layer.noisy = before[name]
    assert np.isfinite(with_rises)
    assert with_rises != without


# -- zeros --


@pytest.fixture(scope="module")
def wide():
    return lograd.profile(wide_net(), image_batches(2), cross_entropy, noise=2)


def test_the_cosine_is_that_of_a_pruned_sample(wide):
    layer = wide["2"]
    x = torch.from_numpy(layer.sample).double()
    pruned = stochastic_prune(x.float(), float(threshold(layer.law, USUAL)), seed=3).double()
    assert pruning_outlook(layer).cosine == pytest.approx(float(x @ pruned / (x.norm() * pruned.norm())), rel=0.05)


def test_good_and_fair_sparsities_have_such_cosines(wide):
    for sparsity, cosine in (("good", GOOD_COSINE), ("fair", FAIR_COSINE)):
        found = pruning_outlook(wide["2"])
        plan = wide.plan(sparsity=getattr(found, sparsity), allocation="uniform", keep=(), everywhere=True)
        assert plan.layers["2"].predicted_input_gradient.cosine == pytest.approx(cosine, abs=2e-3)


def test_zeros_that_are_there_cost_nothing():
    wide = lograd.profile(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), _vectors(), cross_entropy)
    layer = wide["0"]
    assert layer.zero_share > 0.3
    found = pruning_outlook(layer)
    assert found.good > layer.zero_share


def _vectors():
    torch.manual_seed(0)
    return [(torch.randn(64, 6), torch.randint(0, 3, (64,)))]


def test_noise_of_a_layer_is_what_it_was_measured_to_bring(wide):
    found = pruning_outlook(wide["2"], wide.noise)
    ratios = np.zeros(len(wide.noise.layers))
    ratios[wide.noise.layers.index("2")] = noise_of(found.cosine)
    assert found.noise == pytest.approx(wide.noise.factors.total(ratios, ratios), rel=1e-9)
    assert pruning_outlook(wide["2"]).noise is None


# -- few bits --


def test_predicted_cosines_are_measured_ones_and_the_fewest_good_bits_are_recommended():
    profile = lograd.profile(conv_net(), image_batches(1, size=64), cross_entropy, sample=2**20)
    layer = profile["0"]
    tried = list(tried_formats(layer.law))
    assert [format.bits for format, _ in tried] == [4, 5, 6, 7, 8]
    x = torch.from_numpy(layer.sample).double()
    for format, cosine in tried:
        treatment = (Quantize(format, "max", "stochastic"),)
        numbers = numbers_of(treatment, Statistics(layer.law))
        y = lograd.treatments.apply(treatment, x.float(), 1, numbers=numbers).result.double()
        assert float(x @ y / (x.norm() * y.norm())) == pytest.approx(cosine, rel=0.02)
    good = [format for format, cosine in tried if cosine >= GOOD_COSINE]
    assert recommended_format(layer.law) == good[0]
