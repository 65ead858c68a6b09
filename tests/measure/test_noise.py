"""Noise on its way through a backward, measured on models: it equals what attach brings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from everyday import daily
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lograd
from experiments.simulate import Estimate
from lograd import Plan
from lograd.plan import LayerPlan
from lograd.theory import noise_to_signal, threshold
from lograd.treatments import Prune, gradients


def weight_gradients(model, batch, names):
    model.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    modules = dict(model.named_modules())
    return [modules[name].weight.grad.clone().double() for name in names]


@pytest.mark.parametrize("split", daily([False, True], [True]))
def test_the_total_that_is_predicted_is_the_one_that_attach_brings(split):
    """All layers pruned together, by attach, on one batch: the mean over seeds lies in the band of the prediction."""
    (batch,) = image_batches(1, size=32)
    profile = lograd.profile(conv_net(), [batch], cross_entropy, noise=48)
    assert profile.noise is not None
    names = list(profile.layers)
    assert profile.noise.layers == tuple(names)
    shares = dict.fromkeys(names, (0.5, 0.6 if split else 0.5))
    plan = Plan({name: LayerPlan.of(gradients((Prune(a),), (Prune(b),))) for name, (a, b) in shares.items()})
    model = conv_net()
    clean = weight_gradients(model, batch, names)
    totals = []
    for seed in range(120):
        with lograd.attach(model, plan, seed=seed) as handle:
            weight_gradients(model, batch, names)  # takes the statistics
            handle.step()
            noisy = weight_gradients(model, batch, names)
        totals.append(sum(float((a - b).square().sum() / b.square().sum()) for a, b in zip(noisy, clean, strict=True)))
    ratio = {
        name: [
            noise_to_signal(profile[name].law, threshold(profile[name].law, _of_nonzero(profile[name], s)))
            for s in pair
        ]
        for name, pair in shares.items()
    }
    input, weight = (np.array([float(ratio[name][side]) for name in names]) for side in (0, 1))
    input[0] = 0.0  # the images need no gradient
    predicted = profile.noise.factors.total(input, weight)
    # The factors are measured, and thresholds of layers behind others are those of noisy gradients: 5 % for both.
    assert Estimate.of(totals).agrees(predicted, slack=0.05 * predicted)


def _of_nonzero(layer, sparsity):
    zeros = layer.last.zero_share
    return max((sparsity - zeros) / (1 - zeros), 1e-6)


def test_noise_flows_to_earlier_layers_only_and_the_model_does_not_notice():
    model, batches = conv_net(), image_batches(2)
    before, state = state_of(model), torch.get_rng_state()
    factors = lograd.profile(model, batches, cross_entropy, noise=1).noise.factors
    assert equal_states(before, state_of(model))
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert np.array_equal(factors.transfer, np.triu(factors.transfer, 1))
    assert np.all(factors.transfer[np.triu_indices(3, 1)] > 0)
    assert np.all(factors.own > 0)
    assert factors.passed[0] == 0 < factors.passed[1] < factors.passed[2]


class Residual(nn.Module):
    """Noise takes two ways around a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).relu_()
        return self.last(x + self.inner(x).tanh())


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = conv_net()

    def forward(self, x):
        return self.net[3:](checkpoint(self.net[:3], x, use_reentrant=False))


class Twice(nn.Module):
    """One layer runs twice, one is frozen, one has a tied weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.frozen, self.tied, self.last = (nn.Linear(6, size) for size in (6, 6, 6, 3))
        self.tied.weight = self.first.weight
        self.frozen.weight.requires_grad_(False)

    def forward(self, x):
        return self.last(self.tied(self.frozen(self.first(self.first(x).relu()).relu()).relu()))


@pytest.mark.parametrize(
    ("model", "batches"),
    [(Checkpointed(), image_batches(1)), (Twice(), vector_batches(1)), (conv_net().double(), None), (mlp(), None)],
    ids=["checkpoint", "shared and frozen", "float64", "mlp"],
)
def test_noise_is_measured_on_other_models(model, batches):
    if batches is None:
        dtype = next(model.parameters()).dtype
        batches = [(x.to(dtype), y) for x, y in (vector_batches(1) if len(model) == 3 else image_batches(1))]
    profile = lograd.profile(model, batches, cross_entropy, noise=2)
    plan = profile.plan(sparsity=0.5, allocation="noise", keep=())
    assert set(plan.layers) == set(profile.layers)
    assert np.all(np.isfinite(profile.noise.factors.transfer))


def test_computed_weights_count_and_frozen_ones_are_said():
    torch.manual_seed(0)
    normed = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)
    )
    factors = lograd.profile(normed, vector_batches(1), cross_entropy, noise=2).noise.factors
    assert np.all(factors.own > 0), "what a weight is computed from learns as well"
    assert factors.passed[1] > 0
    frozen = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))
    frozen[0].requires_grad_(False)
    batches = [(x.requires_grad_(), y) for x, y in vector_batches(1)]
    with pytest.warns(lograd.errors.LogradWarning, match="no layer has a weight that learns"):
        assert lograd.profile(frozen, batches, cross_entropy, noise=1).noise is None


def test_measured_noise_is_the_same_each_time_and_survives_the_file(tmp_path):
    profile = lograd.profile(conv_net(), image_batches(1), cross_entropy, noise=2)
    again = lograd.profile(conv_net(), image_batches(1), cross_entropy, noise=2)
    assert profile.noise == again.noise
    loaded = lograd.Profile.load(profile.save(tmp_path / "profile.npz"))
    assert loaded == profile
    assert loaded.noise == profile.noise
    assert lograd.profile(conv_net(), image_batches(1), cross_entropy).noise is None
