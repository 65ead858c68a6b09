"""The minibatch's own variance in a profile, noise as energies of all parameters, and rho, the ratio of the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidType, InvalidValue, Plan
from lograd.measure.values import VECTORS, GradientVariance, Measured, Minibatch
from lograd.plan import Expected


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(conv_net(), image_batches(5), cross_entropy, noise=2)


@pytest.fixture(scope="module")
def half(profile):
    return profile.plan(sparsity=0.5)


def all_gradients(model, batch):
    model.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    return {name: one.grad.clone().double() for name, one in model.named_parameters()}


def words_of(profile):
    """The table on one line, as lines are wrapped."""
    return " ".join(str(profile.table()).split())


def test_variance_and_signal_are_those_of_the_gradients(profile):
    found, model = profile.minibatch, conv_net()
    seen = [all_gradients(model, batch) for batch in image_batches(5)]
    variance, signal = {}, {}
    for name in seen[0]:
        stacked = torch.stack([one[name] for one in seen])
        group = name if stacked.dim() > 2 else VECTORS
        variance[group] = variance.get(group, 0.0) + float(stacked.var(0).sum())
        signal[group] = signal.get(group, 0.0) + float(stacked.mean(0).square().sum() - stacked.var(0).sum() / 5)
    assert [one.name for one in found.tensors] == ["0.weight", "3.weight", "7.weight", VECTORS]
    for name, expected in variance.items():
        assert found[name].variance.mean == pytest.approx(expected, rel=1e-5)
        assert found[name].signal == pytest.approx(signal[name], rel=1e-4)
    assert found.unit == found.total.variance.mean == pytest.approx(sum(variance.values()), rel=1e-5)
    assert found.batches == 5
    assert found.share("3") == pytest.approx(variance["3.weight"] / found.unit, rel=1e-5)
    assert found.share("5") is None


def test_it_is_the_variance_that_lograd_variance_measures(profile):
    plan = Plan.uniform("fp6")
    other = lograd.variance(conv_net(), image_batches(5), plan, cross_entropy, repeats=4, contributions=False)
    for mine, theirs in zip(profile.minibatch.tensors, other.tensors, strict=True):
        assert mine.name == theirs.name
        assert mine.variance.mean == pytest.approx(theirs.minibatch.mean, rel=1e-6)
        assert mine.variance.error == pytest.approx(theirs.minibatch.error, rel=1e-5)
        assert mine.signal == pytest.approx(theirs.signal, rel=1e-5, abs=1e-9)


def test_two_batches_are_too_few_and_the_profile_says_so():
    few = lograd.profile(conv_net(), image_batches(2), cross_entropy, noise=1)
    assert few.minibatch is None
    assert few.noise.energies is not None
    assert "it takes 3 batches whose gradients are finite, and the profile has 2" in words_of(few)
    assert few.plan(sparsity=0.5).evidence.expected is None
    plain = lograd.profile(conv_net(), image_batches(3), cross_entropy)
    assert plain.minibatch is None
    assert "variance" not in words_of(plain)


def test_energies_are_those_of_a_usual_batch():
    """The last batch has a gradient ten times smaller than the two before it."""
    x, y = image_batches(1)[0]
    loss = lambda model, batch: batch[2] * cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    found = lograd.profile(conv_net(), [(x, y, scale) for scale in (1.0, 1.0, 0.1)], loss, noise=1).noise
    alone = lograd.profile(conv_net(), [(x, y, 0.1)], loss, noise=1).noise
    assert found.energies.own / alone.energies.own == pytest.approx(np.full(3, (1 + 1 + 0.01) / 3 / 0.01), rel=0.02)
    assert found.factors.own == pytest.approx(alone.factors.own, rel=0.02)


def test_biases_count_as_the_layers_own():
    batches = vector_batches(3)
    with_bias, without = mlp(), mlp()
    without[0].bias.requires_grad_(False)
    both, weight = (lograd.profile(model, batches, cross_entropy, noise=2) for model in (with_bias, without))
    assert both.noise.energies.own[0] > 1.01 * weight.noise.energies.own[0]
    assert both.noise.factors == weight.noise.factors
    assert both.noise.energies.passed[0] == 0, "the input needs no gradient"


def test_sparse_and_float64_gradients_count_and_the_model_is_restored():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3)).double()
    before = state_of(model)
    batches = [(torch.randint(0, 9, (16, 3)), torch.randint(0, 3, (16,))) for _ in range(4)]
    found = lograd.profile(model, batches, cross_entropy, noise=1)
    assert found.minibatch["0.weight"].variance.mean > 0
    assert found.noise.energies.passed[0] > 0, "noise reaches the embedding"
    assert equal_states(before, model.state_dict())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_has_no_variance():
    """That of a parameter which is no layer's: the layers' gradients are finite, so noise is measured."""

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.factor = mlp(), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.inner(x) + self.factor.abs().sqrt() * 0

    found = lograd.profile(Broken(), vector_batches(4), cross_entropy, noise=1)
    assert found.noise is not None
    assert found.minibatch is None
    assert "gradients are finite, and the profile has 4" in words_of(found)


def test_table_and_page_have_the_variance(profile, tmp_path):
    text = words_of(profile)
    assert "The minibatch's own variance V of the gradient is" in text
    assert "V: the share of the layer's weight in the minibatch's own variance" in text
    assert "own variance" in profile.to_html(tmp_path / "p.html").read_text()


def test_a_tensor_has_a_noise_scale_where_there_is_a_signal():
    good = GradientVariance("a", 4, Measured(1.0, 0.1), 0.5)
    total = GradientVariance("(all)", 4, Measured(1.0, 0.1), 0.5)
    assert Minibatch((good,), total, 3).total.noise_scale == 2.0
    assert GradientVariance("a", 4, Measured(1.0, 0.1), -0.1).noise_scale is None
    with pytest.raises(InvalidValue, match=r"no weight tensor 'b'"):
        Minibatch((good,), total, 3)["b"]


# -- plans --


def test_a_plan_tells_its_noise_in_that_unit(profile):
    plans = [profile.plan(sparsity=share, everywhere=True) for share in (0.5, 0.8)]
    rho = [plan.evidence.expected.rho for plan in plans]
    assert 0 < rho[0] < rho[1]
    assert plans[0].evidence.expected.unit == pytest.approx(profile.minibatch.unit, rel=1e-5)
    assert "of the minibatch's variance: a step is worth about one with" in str(plans[0])
    assert "of the minibatch's variance" in repr(plans[0])
    for options in (
        {"bits": 6},
        {"sparsity": 0.5, "allocation": "uniform"},
        {"sparsity": 0.5, "allocation": "cosine"},
        {"sparsity": 0.5, "split": True},
        {"sparsity": 0.5, "products": "weight_gradient"},
    ):
        assert profile.plan(**options).evidence.expected.rho > 0
    assert profile.expected(profile.plan(bits=6).override("[03]", rounding="nearest")).rho is None


def test_a_uniform_plan_has_the_noise_of_the_same_plan_by_layers(profile):
    made = profile.plan(sparsity=0.5, allocation="uniform", keep=(), everywhere=True)
    assert profile.expected(Plan.uniform("prune50")) == made.evidence.expected == profile.expected(made)
    kept = profile.expected(Plan.uniform("prune50", keep="last"))
    assert kept == profile.plan(sparsity=0.5, allocation="uniform", everywhere=True).evidence.expected
    assert kept.rho < made.evidence.expected.rho
    with pytest.raises(InvalidType, match="plan must be a Plan"):
        profile.expected("fp6")


def test_a_profile_without_measured_noise_says_what_it_needs(profile):
    same = lograd.profile(conv_net(), [image_batches(1)[0]] * 3, cross_entropy, noise=1)
    broken = replace(profile, noise=replace(profile.noise, energies=None))
    for found in (same, broken, replace(profile, minibatch=None), replace(profile, noise=None)):
        with pytest.raises(InvalidValue, match="make one with noise=2 on at least 3 different batches"):
            found.expected(Plan.uniform("fp6"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("int6-psq", "int6 psq in '0' depends on more than the law of magnitudes"),
        ("int8-full", "has more than its gradient treated"),
        ("int4-interval", "has a bias, which is more than noise"),
    ],
)
def test_where_theory_does_not_tell_the_reason_is_given(profile, name, words):
    found = profile.expected(Plan.uniform(name))
    assert found.rho is None
    assert words in found.words()


def test_words_on_noise():
    assert Expected(0.0, 1.0).words().endswith("with 100 % of the samples.")
    assert "adds 6.8e+03 of the minibatch's variance" in Expected(6790.0, 1.0).words()
    assert "less than 1 % of the samples" in Expected(6790.0, 1.0).words()
    unknown = Expected(None, 1.0, "rows decide")
    assert unknown.words() == "Noise in units of the minibatch's variance is not predicted: rows decide."
