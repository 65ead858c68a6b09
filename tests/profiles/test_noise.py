"""Noise on its way through a backward: the factors are measured rightly, and the least of it arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from scipy import optimize
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lograd
from lograd import InvalidValue, Plan
from lograd.laws import HalfNormal, LogNormal
from lograd.plan import LayerPlan
from lograd.theory import Propagation, allocate_by_noise, noise_to_signal, threshold
from lograd.theory.simulate import Estimate
from lograd.treatments import Prune, gradients

# -- theory --


def chain(layers=6, seed=0):
    """A propagation in which noise flows to earlier layers, with their laws and work."""
    rng = np.random.default_rng(seed)
    transfer = np.triu(rng.uniform(0.2, 1.0, (layers, layers)), 1)
    passed = np.concatenate([[0.0], rng.uniform(0.1, 0.5, layers - 1)])
    laws = [LogNormal(float(rng.normal()), float(sigma)) for sigma in rng.uniform(1.2, 3.0, layers)]
    work = rng.uniform(1, 10, (2, layers))
    work[0, 0] = 0.0  # nobody needs the gradient of the data
    return Propagation(rng.uniform(0.01, 0.3, layers), passed, transfer), laws, work


def test_costs_are_the_derivatives_of_the_total():
    factors, _, _ = chain()
    noise = np.random.default_rng(1).uniform(0, 0.5, (2, 6))
    found = np.stack(factors.costs(*noise))
    for place in np.ndindex(2, 6):
        step = np.zeros((2, 6))
        step[place] = 1e-6
        slope = (factors.total(*(noise + step)) - factors.total(*(noise - step))) / 2e-6
        assert found[place] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_a_chain_multiplies_the_energy_and_one_layer_alone_passes_its_own():
    transfer = np.triu(np.ones((4, 4)), 1)
    factors = Propagation(np.zeros(4), np.full(4, 0.5), transfer)
    assert factors.growth(np.full(4, 0.25)) == pytest.approx(1.25 ** np.array([3, 2, 1, 0]))
    assert factors.total([0, 0, 0.3, 0], np.zeros(4)) == pytest.approx(0.15)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_least_noise_is_the_optimum_of_the_propagated_noise(split, zeros):
    """scipy minimises the total over all splits of the work, and finds nothing better."""
    factors, laws, work = chain()
    target, layers = 0.8, len(laws)
    ours = allocate_by_noise(laws, (work[0], work[1]), target, factors, split=split, zero_share=zeros)

    def ratios(shares):
        return noise_to_signal(laws, threshold(laws, (np.clip(shares, zeros + 1e-6, 0.9999) - zeros) / (1 - zeros)))

    def unpack(v):
        return (np.concatenate([[zeros], v[: layers - 1]]), v[layers - 1 :]) if split else (v, v)

    def objective(v):
        input, weight = unpack(v)
        return np.log(factors.total(ratios(input) * (work[0] > 0), ratios(weight)))

    weights = np.concatenate([work[0, 1:], work[1]]) if split else work.sum(axis=0)
    best = optimize.minimize(
        objective,
        np.full(weights.size, target),
        bounds=[(zeros + 0.01, 0.999)] * weights.size,
        constraints={"type": "eq", "fun": lambda v: weights @ v / weights.sum() - target},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    found = np.concatenate([ours.input[1:], ours.weight]) if split else ours.weight
    assert best.success
    assert weights @ found / weights.sum() == pytest.approx(target)
    assert objective(found) <= best.fun + 1e-7
    assert found == pytest.approx(best.x, abs=2e-3)
    assert ours.input[0] == 0, "a product that is not computed is not pruned"


def test_layers_that_cost_nothing_are_pruned_most_and_the_budget_is_kept():
    factors = Propagation([0.0, 0.1, 0.1], [0.0, 0.2, 0.2], np.zeros((3, 3)))
    laws = [HalfNormal(1.0)] * 3
    ours = allocate_by_noise(laws, ([1.0] * 3, [1.0] * 3), 0.7, factors, max_sparsity=0.99)
    assert ours.weight[0] == pytest.approx(0.99)
    assert ours.weight.mean() == pytest.approx(0.7)
    silent = Propagation(np.zeros(3), np.zeros(3), np.zeros((3, 3)))
    assert allocate_by_noise(laws, ([1.0] * 3, [1.0] * 3), 0.7, silent).weight.mean() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Propagation([1.0], [1.0], [[0.0, 1.0]]), "shapes of a Propagation"),
        (lambda: Propagation([-1.0], [1.0], [[0.0]]), "own of a Propagation"),
        (lambda: Propagation([1.0], [1.0], [[0.0]]).total([1.0, 2.0], [1.0]), "noise must be 1 numbers"),
        (lambda: allocate_by_noise([HalfNormal(1.0)], ([1.0], [1.0]), 0.5, chain()[0]), "does not fit 1 laws"),
        (
            lambda: allocate_by_noise([HalfNormal(1.0)], ([0.0], [0.0]), 0.5, Propagation([1.0], [1.0], [[0.0]])),
            "work must be two times 1 numbers",
        ),
    ],
)
def test_bad_propagations_are_refused(make, message):
    with pytest.raises(InvalidValue, match=message):
        make()


# -- measurement --


def weight_gradients(model, batch, names):
    model.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    modules = dict(model.named_modules())
    return [modules[name].weight.grad.clone().double() for name in names]


@pytest.mark.parametrize("split", [False, True])
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
    assert lograd.Profile.merge([profile, profile]).noise == profile.noise
    other = lograd.profile(conv_net(), image_batches(1), cross_entropy)
    assert other.noise is None
    assert lograd.Profile.merge([profile, other]).noise is None


# -- plans --


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(conv_net(), image_batches(2), cross_entropy, noise=4)


def work_of(profile, plan):
    return {name: (profile[name].flops_input, profile[name].flops_weight) for name in plan.layers}


@pytest.mark.parametrize(
    "choice", [{"allocation": "cosine"}, {"allocation": "noise"}, {"allocation": "noise", "split": True}]
)
def test_sparsity_is_the_share_of_skipped_work(profile, choice):
    plan = profile.plan(sparsity=0.7, keep=(), **choice)
    work = work_of(profile, plan)
    skipped = sum(
        flops * prediction.sparsity
        for name, layer in plan.layers.items()
        for flops, prediction in zip(
            work[name], (layer.predicted_input_gradient, layer.predicted_weight_gradient), strict=True
        )
    )
    assert skipped / sum(map(sum, work.values())) == pytest.approx(0.7, abs=2e-3)
    assert plan.skipped == pytest.approx(0.7, abs=2e-3)
    words = " ".join(str(plan).split())
    assert f"skip {plan.skipped_of_step:.1%} of it, and 70.0% of the products for dX and dW" in words
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted")
def test_a_layer_that_is_to_be_spared_is_spared():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))
    profile = lograd.profile(model, vector_batches(1), cross_entropy, noise=2)
    plan = profile.plan(sparsity=0.5, allocation="floors", floors={"2": 1.0}, keep=())
    assert plan.layers["2"].input_gradient.gradient[0].sparsity == 0.0001
    split = profile.plan(sparsity=0.02, split=True, keep=())
    assert split.skipped == pytest.approx(0.02, abs=2e-3)


def test_an_overridden_layer_keeps_its_work(profile):
    plan = profile.plan(sparsity=0.7, keep=("last",))
    again = plan.override("7", sparsity=0.7)
    assert again.skipped > plan.skipped
    assert again.override("7", treat=False).skipped == plan.skipped
    for wrong in ([], {"7": [1]}, {"7": [1, -1]}, {"7": "x"}):
        with pytest.raises(InvalidValue, match="work of"):
            Plan.from_json({**plan.to_json(), "work": wrong})


def test_kept_layers_count_as_work_that_is_not_skipped(profile):
    plan = profile.plan(sparsity=0.7, allocation="uniform", keep=("last",))
    last = profile["7"]
    total = sum(layer.flops_input + layer.flops_weight for layer in profile.layers.values())
    assert plan.skipped == pytest.approx(0.7 * (1 - (last.flops_input + last.flops_weight) / total), abs=2e-3)


def test_noise_brings_less_noise_than_uniform_and_a_split_less_still(profile):
    def total(**choice):
        plan = profile.plan(sparsity=0.7, keep=(), **choice)
        sides = [
            [1 / getattr(layer, side).cosine ** 2 - 1 for layer in plan.layers.values()]
            for side in ("predicted_input_gradient", "predicted_weight_gradient")
        ]
        sides[0][0] = 0.0
        return profile.noise.factors.total(*sides)

    uniform, shared, split = total(allocation="uniform"), total(), total(split=True)
    assert split < shared < uniform


def test_the_two_products_of_a_split_plan_are_listed(profile):
    plan = profile.plan(sparsity=0.7, keep=(), allocation="noise", split=True)
    layer = plan.layers["3"]
    assert layer.input_gradient.gradient[0].sparsity != layer.weight_gradient.gradient[0].sparsity
    lines = [line.split() for line in str(plan).splitlines()]
    assert [line[1] for line in lines if line[:1] == ["3"]] == ["dX", "dW"]


def test_what_noise_needs_is_said(profile):
    without = lograd.profile(conv_net(), image_batches(1), cross_entropy)
    for act, message in (
        (lambda: without.plan(sparsity=0.5, allocation="noise"), "needs a profile in which noise was measured"),
        (lambda: without.plan(sparsity=0.5, split=True), "split=True needs allocation='noise'"),
        (
            lambda: profile.plan(sparsity=0.5, allocation="noise", split=True, products="weight_gradient"),
            "split=True needs both products",
        ),
        (lambda: profile.plan(sparsity=0.5, allocation="nose"), "Did you mean 'noise'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            act()
    model = conv_net()
    with lograd.attach(model, Plan.uniform("prune85")), pytest.raises(InvalidValue, match="call remove"):
        lograd.profile(model, image_batches(1), cross_entropy, noise=1)
    with pytest.raises(InvalidValue, match="noise"):
        lograd.profile(model, image_batches(1), cross_entropy, noise=-1)
