"""lograd.nn.saved_activations: codes in the place of what layers keep for the backward, and their undo."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from bits import assert_all_same_bits
from torch import Tensor, nn

import lograd
from lograd.errors import InvalidType, InvalidValue


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1))


def images() -> Tensor:
    return torch.randn(16, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def gradients(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    result = net(x)
    g = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad(result, tuple(net.parameters()), g)


def difference(found: Tensor, expected: Tensor) -> float:
    """The relative error of a tensor."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("bits", "share", "error"), [(8, 0.26, 0.02), (4, 0.135, 0.4)])
def test_forward_is_unchanged_and_gradients_are_close(bits: int, share: float, error: float) -> None:
    net, x = model(), images()
    before, output, expected = pickle.dumps(net), net(x), gradients(net, x)
    net = pickle.loads(before)  # running averages have moved

    with lograd.nn.saved_activations(net, bits) as handle:
        assert torch.equal(net(x), output)
        found = gradients(net, x)

    assert handle.before > 0
    assert handle.after < share * handle.before
    for one, other in list(zip(found, expected, strict=True))[2:]:  # a bias before a BatchNorm has no gradient
        assert difference(one, other) < error


def test_gradients_are_unbiased() -> None:
    net, x = nn.Sequential(nn.Linear(64, 32), nn.Identity()), torch.randn(2048, 64)
    (expected, _) = gradients(net, x.clone().requires_grad_())
    drawn = []
    for seed in range(100):
        with lograd.nn.saved_activations(net, 3, seed) as handle:
            drawn.append(gradients(net, x.clone().requires_grad_())[0].double())
        assert handle.before == 4 * x.numel()
    every = torch.stack(drawn)
    deviations = (every.mean(0) - expected) / (every.std(0) / len(drawn) ** 0.5)
    assert 0.8 < float(deviations.square().mean()) < 1.25


def test_a_relu_passes_gradients_where_it_would_have_passed_them() -> None:
    x = torch.randn(256, 512, requires_grad=True)
    net = nn.ReLU()
    with lograd.nn.saved_activations(net, 2) as handle:
        (found,) = torch.autograd.grad(net(x).sum(), x)
    assert handle.before > 0
    assert torch.equal(found, (x > 0).float())


def test_undo_leaves_the_model_as_it_was() -> None:
    net = model()
    before = pickle.dumps(net)
    handle = lograd.nn.saved_activations(net)
    handle.remove()
    assert pickle.dumps(net) == before
    expected = gradients(pickle.loads(before), images())
    assert_all_same_bits(gradients(net, images()), expected)
    assert repr(handle) == "SavedHandle(8 bits)"


def test_parameters_and_small_tensors_are_kept_as_they_are() -> None:
    net = nn.Linear(512, 512)
    with lograd.nn.saved_activations(net) as handle:
        net(torch.randn(8, 512, requires_grad=True)).sum().backward()
    assert handle.before == 0


def test_training_in_integers_of_all_that_is_kept() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    x, target = torch.randn(1024, 64), torch.randint(8, (1024,))
    optimizer, losses = torch.optim.Adam(net.parameters(), 0.01), []
    with lograd.nn.saved_activations(net, 4):
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_a_plan_asks_for_it() -> None:
    net, x = model(), images()
    before = pickle.dumps(net)
    plan = replace(lograd.Plan.uniform("identity"), saved=4)
    assert lograd.Plan.from_dict(plan.to_dict()) == plan
    with lograd.attach(net, plan) as handle:
        gradients(net, x)
        said = handle.explain().layers["kept for the backward"]
    assert said == "4-bit codes or masks of tensors from 65,536 elements on, 9% of the bytes that they were"
    net.load_state_dict(pickle.loads(before).state_dict())
    assert pickle.dumps(net) == before


def test_refusals() -> None:
    with pytest.raises(InvalidType, match=r"model must be a torch\.nn\.Module"):
        lograd.nn.saved_activations(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="bits must be"):
        lograd.nn.saved_activations(nn.Linear(2, 2), bits=9)
