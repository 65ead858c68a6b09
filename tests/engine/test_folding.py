"""Weights whose outputs differ in size: dX needs their steps in the gradient, and dW must not pay for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import lograd
from lograd import ops
from lograd.laws import Empirical
from lograd.treatments import Statistics
from lograd.treatments.verdicts import noise_of, verdict

SPREADS = [0.1, 1e-4, 1e-12, 0.0]
DRAWS = 12

LAYERS = {
    "linear": (lambda: nn.Linear(64, 32), (256, 64)),
    "conv2d": (lambda: nn.Conv2d(16, 32, 3, padding=1), (8, 16, 8, 8)),
    "conv1d": (lambda: nn.Conv1d(16, 32, 3, padding=1), (16, 16, 24)),
    "grouped": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=2), (8, 32, 8, 8)),
}


def gradients(layer: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(layer(x), [x, layer.weight, layer.bias], g)


def errors(layer: nn.Module, x: Tensor, recipe: str, backend: str = "auto") -> dict[str, Tensor]:
    """Relative errors of dX, and of each output's dW and dbias: root mean squares over draws."""
    g = torch.randn_like(layer(x))
    model = nn.Sequential(layer)
    exact = gradients(layer, x, g)
    squares: list[list[Tensor]] = [[], [], []]
    with lograd.attach(model, lograd.Plan.uniform(recipe, keep=()), backend=backend) as handle:
        for _ in range(DRAWS):
            for place, (found, known) in enumerate(zip(gradients(layer, x, g), exact, strict=True)):
                rows = (1, -1) if place == 0 else (len(known), -1)
                difference, signal = (found - known).reshape(rows), known.reshape(rows)
                squares[place].append(difference.square().sum(1) / signal.square().sum(1))
            handle.step()
    names = ("dX", "dW", "db")
    return {name: torch.stack(found).mean(0).sqrt() for name, found in zip(names, squares, strict=True)}


def with_small_outputs(kind: str, spread: float) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer = make()
    with torch.no_grad():
        layer.weight[::2] *= spread
    return layer, torch.randn(shape).requires_grad_()


@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("kind", LAYERS)
def test_dW_and_dbias_know_nothing_of_the_size_of_weights(kind, spread, backend):
    usual = errors(*with_small_outputs(kind, 1.0), "int8-full", backend)
    found = errors(*with_small_outputs(kind, spread), "int8-full", backend)
    for name in ("dW", "db"):
        torch.testing.assert_close(found[name], usual[name], rtol=1e-3, atol=1e-6)
    assert float(found["dX"]) < 1.6 * float(usual["dX"]), "half of the energy, under the same range"


@pytest.mark.parametrize("bits", range(2, 9))
def test_all_bits(bits):
    usual = errors(*with_small_outputs("linear", 1.0), f"int{bits}-full")
    found = errors(*with_small_outputs("linear", 0.0), f"int{bits}-full")
    torch.testing.assert_close(found["dW"], usual["dW"], rtol=1e-3, atol=1e-6)


def test_filters_that_are_pruned_or_padded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 3))
    prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0)
    with torch.no_grad():
        model[3].weight[8:] = 0  # channels that only make a multiple of 16
    x, leaves = torch.randn(8, 16, 8, 8), [model[0].weight_orig, model[3].weight]
    exact = torch.autograd.grad(model(x).square().mean(), leaves)
    with lograd.attach(model, lograd.Plan.uniform("int8-full", keep=())):
        found = torch.autograd.grad(model(x).square().mean(), leaves)
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() < 0.1 * other.norm()


def test_all_weights_zero():
    layer, x = with_small_outputs("linear", 1.0)
    nn.init.zeros_(layer.weight)
    g = torch.randn(256, 32)
    exact = gradients(layer, x, g)
    with lograd.attach(nn.Sequential(layer), lograd.Plan.uniform("int8-full", keep=())):
        found = gradients(layer, x, g)
    assert torch.equal(found[0], torch.zeros_like(x))
    assert (found[1] - exact[1]).norm() < 0.05 * exact[1].norm()


@pytest.mark.parametrize("spread", [1.0, 0.1, 1e-2, 0.0])
@pytest.mark.parametrize("recipe", ["int8-full", "int5-full"])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_predicted_noise_has_what_folding_adds(kind, recipe, spread):
    """The cosines of explain(), those that a guard weighs, and lograd.variance, against draws."""
    layer, x = with_small_outputs(kind, spread)
    g = torch.randn_like(layer(x))
    model = nn.Sequential(layer)
    with lograd.attach(model, lograd.Plan.uniform(recipe, keep=())) as handle:
        gradients(layer, x, g)
        handle.step()
        statistics = handle._statistics["0"]["gradient"]
        known = {name: one for name, one in statistics.predictions(1.0).items() if one} | statistics.bounds(1.0)
        predicted = {name: noise_of(one.cosine) for name, one in known.items()}
        shown = handle.explain().layers["0"]
        by_input, by_weight = (f"{one.cosine:.3f} ({verdict(one.cosine)})" for one in known.values())
        assert f"predicted cosine {by_input} and at least {by_weight}" in shown
        factors = ops.fold_of(ops.pack_integers(layer.weight.detach(), int(recipe[3]), per="channel", symmetric=True))
        along = factors.reshape(-1, *(1,) * (g.dim() - 2))
        for name, site in handle.layers["0"].gradient.sites.items():
            fold = factors if name.startswith("input") else None
            by = 1.0 if fold is None else along
            energies = []
            for draw in range(DRAWS):
                site.key[1] = draw << 40
                treated = site.treat(g, (), handle.layers["0"].gradient.control, fold)
                energies.append(float(((treated - g) * by).square().sum() / (g * by).square().sum()))
            low, high = (0.7, 1.4) if fold is not None else (0.4, 1.05)  # ranges of outputs are below that of all
            assert low < np.mean(energies) / predicted[name] < high, name
    found = lograd.variance(model, [(x.detach(), g)] * 3, lograd.Plan.uniform(recipe, keep=()), nn.functional.mse_loss)
    for site in found.sites:
        if site.product == "dX":
            assert site.predicted == pytest.approx(site.noise.mean, rel=0.15)
        else:
            assert site.predicted is None


def test_the_law_of_channels_with_factors_is_a_mixture():
    random = np.random.default_rng(0)
    factors = np.exp(random.normal(size=64))
    factors[:8] = 0.0
    g = random.normal(size=(4096, 64))
    predicted = Statistics(Empirical.fit(g)).times(factors)
    exact = Statistics(Empirical.fit((g * factors)[:, 8:]))
    assert predicted.law.moment(2) * (1 - predicted.zero_share) == pytest.approx(
        np.square(g * factors).mean(), rel=0.02
    )
    for share in (0.3, 0.5, 0.9, 0.999):
        inside = 0.125 + 0.875 * share
        assert predicted.quantile(inside) == pytest.approx(exact.quantile(share), rel=0.1)


def test_factors_neither_underflow_nor_lose_bits():
    weight = ops.pack_integers(
        torch.tensor([[1e-30, -3e-30], [2e-33, 1e-33], [0.0, 0.0]]), 8, per="channel", symmetric=True
    )
    fold = ops.fold_of(weight)
    assert fold[2] == 0
    assert 1 <= fold[0] < 2
    assert float(fold[0] / fold[1]) == pytest.approx(float(weight.scale[1] / weight.scale[0]))
    g = torch.randn(16, 3) * 1e-6
    coded = ops.pack_integers(g, 8, fold=fold)
    (d_x, _, _) = ops.integer_linear_backward(coded, None, weight, need=(True, False, False))
    exact = g.double() @ weight.decode().double()
    assert (d_x - exact).norm() < 0.02 * exact.norm()
    assert torch.equal(coded.decode()[:, 2], torch.zeros(16))


def test_dW_of_a_gradient_without_some_outputs_is_refused():
    weight = ops.pack_integers(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), 8, per="channel", symmetric=True)
    g = ops.pack_integers(torch.randn(4, 2), 8, fold=ops.fold_of(weight))
    x = ops.pack_integers(torch.randn(4, 2), 8)
    for need in ((False, True, False), (False, False, True)):
        with pytest.raises(lograd.InvalidValue, match="once more without factors"):
            ops.integer_linear_backward(g, x, weight, need=need)
