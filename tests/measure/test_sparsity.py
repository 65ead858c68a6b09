"""Predicted cosine and noise of pruning over sparsity, against pruned samples and measured noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import image_batches
from profiled import wide_net
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.measure.prediction import SPARSITIES, USUAL, joint_outlook, pruning_outlook, pruning_outlooks
from lograd.ops import stochastic_prune
from lograd.theory import threshold
from lograd.treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(wide_net(), image_batches(2), cross_entropy, noise=2)


def test_cosines_are_those_of_pruned_samples(profile):
    layer = profile["2"]
    found = pruning_outlook(layer)
    x = torch.from_numpy(layer.sample).double()
    for place, sparsity in enumerate(SPARSITIES):
        pruned = stochastic_prune(x.float(), float(threshold(layer.law, sparsity)), seed=place).double()
        cosine = float(x @ pruned / (x.norm() * pruned.norm()))
        assert found.cosines[place] == pytest.approx(cosine, rel=0.05)
    assert np.all(np.diff(found.cosines) <= 0)


def test_good_and_fair_sparsities_have_such_cosines(profile):
    for sparsity, cosine in (("good", GOOD_COSINE), ("fair", FAIR_COSINE)):
        found = pruning_outlook(profile["2"])
        plan = profile.plan(sparsity=getattr(found, sparsity), allocation="uniform", keep=(), everywhere=True)
        assert plan.layers["2"].predicted_input_gradient.cosine == pytest.approx(cosine, abs=2e-3)


def test_zeros_that_are_there_cost_nothing():
    profile = lograd.profile(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), _vectors(), cross_entropy)
    layer = profile["0"]
    assert layer.zero_share > 0.3
    found = pruning_outlook(layer)
    assert found.good > layer.zero_share
    assert pruning_outlook(profile["2"]).cosine(0.5) < found.cosine(0.5)


def _vectors():
    torch.manual_seed(0)
    return [(torch.randn(64, 6), torch.randint(0, 3, (64,)))]


def test_noise_of_a_layer_is_what_it_was_measured_to_bring(profile):
    found = pruning_outlook(profile["2"], profile.noise)
    place = profile.noise.layers.index("2")
    factors = profile.noise.factors
    ratios = np.zeros(len(profile.noise.layers))
    ratios[place] = noise_of(found.cosine(USUAL))
    assert found.noise(USUAL) == pytest.approx(factors.total(ratios, ratios), rel=1e-9)
    assert pruning_outlook(profile["2"]).noise(USUAL) is None


def test_layers_together_are_what_a_uniform_plan_predicts(profile):
    found = pruning_outlooks(profile.layers, profile.noise)
    sums = joint_outlook(found, profile.noise)
    plan = profile.plan(sparsity=USUAL, allocation="uniform")
    assert list(plan.layers) == ["2"]
    assert sums.growth[SPARSITIES.index(USUAL)] == pytest.approx(plan.evidence.growth.factor, rel=0.01)
    assert sums.noise == sorted(sums.noise)
    assert joint_outlook(found, None) is None
