"""Ranges that are learned or follow from moments: values, gradients against finite differences, and training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lograd
from lograd import InvalidValue
from lograd.treatments import (
    Hadamard,
    Integers,
    Learned,
    ProductPlan,
    Sawb,
    Setting,
    Treated,
)

KEY = torch.zeros(2, dtype=torch.int64)


def setting(clip: float = 0.0, signed: bool = True) -> Setting:
    return Setting({}, KEY, torch.tensor([clip, float(signed), clip], dtype=torch.float64), ())


def rounded(x: np.ndarray, clip: float, largest: int, low: int) -> np.ndarray:
    """The definition, in float64."""
    step = clip / largest
    return step * np.clip(np.rint(x / step), low, largest)


@given(bits=st.integers(2, 8), clip=st.floats(0.1, 10.0), signed=st.booleans(), seed=st.integers(0, 99))
def test_values_are_whole_steps_within_the_clip(bits: int, clip: float, signed: bool, seed: int) -> None:
    x = 2 * torch.randn(40, generator=torch.Generator().manual_seed(seed))
    one, largest = Learned(bits), 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    found = one.apply(x, setting(clip, signed)).result
    expected = rounded(x.double().numpy(), clip, largest, -largest if signed else 0)
    # float32 may tip a tie, so an element may be a step away, and is exact otherwise
    away = np.abs(found.double().numpy() - expected)
    assert np.all((away < 1e-5 * clip) | (np.abs(away - clip / largest) < 1e-5 * clip))
    assert np.mean(away > 1e-5 * clip) < 0.1
    assert torch.equal(one.encode(x, setting(clip, signed)).coded.decode(), found)


@pytest.mark.parametrize("method", ["clip", "lsq"])
@pytest.mark.parametrize("signed", [False, True])
def test_gradients_against_finite_differences(method: str, signed: bool) -> None:
    """With rounding as a constant shift of x / s, x_q is a smooth function of x and c between the edges."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=200) if signed else np.abs(rng.normal(size=200)), rng.normal(size=200)
    bits, clip = 4, 1.1
    largest, low = (7, -7) if signed else (15, 0)
    shift = np.rint(x * largest / clip) - x * largest / clip

    def surrogate(x: np.ndarray, c: float) -> np.ndarray:
        inside = (x * largest / clip >= low) & (x * largest / clip <= largest)
        return np.where(inside, (x * largest / c + shift) * c / largest, np.clip(x, low * c / largest, c))

    memory = setting(clip, signed).memory
    d_x, d_clip = Learned(bits, method).learn(torch.tensor(g).float(), torch.tensor(x).float(), memory)  # type: ignore[arg-type]
    h = 1e-5
    expected = np.sum(g * (surrogate(x, clip + h) - surrogate(x, clip - h))) / (2 * h)
    factor = 1.0 if method == "clip" else 1 / math.sqrt(200 * largest)
    assert float(d_clip) == pytest.approx(expected * factor, rel=1e-4)
    slopes = (surrogate(x + h, clip) - surrogate(x - h, clip)) / (2 * h)
    assert np.allclose(d_x.numpy(), g * slopes, atol=1e-4)


def test_the_gradient_of_x_is_cut_at_the_edges() -> None:
    x = torch.tensor([-1.1, -1.0, -0.999, 0.0, 1.0, 1.001])
    d_x, _ = Learned(4).learn(torch.ones(6), x, setting(1.0).memory)
    assert d_x.tolist() == [0, 1, 1, 1, 1, 0]
    d_x, _ = Learned(4).learn(torch.ones(6), x, setting(1.0, signed=False).memory)
    assert d_x.tolist() == [0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_clip_starts_where_the_papers_start_it(bits: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(100_000)
    for method, values, expected in (
        ("clip", x, 3.0),
        ("clip", x.abs(), 3.0),
        ("lsq", x, 2 * math.sqrt(2 / math.pi) * math.sqrt(2 ** (bits - 1) - 1)),
    ):
        memory = setting().memory
        Learned(bits, method).follow(values, 0.5, memory)  # type: ignore[arg-type]
        assert float(memory[2]) == pytest.approx(expected, rel=0.02)
        assert float(memory[0] - memory[2]) == pytest.approx(0.5)
        assert bool(memory[1]) == bool((values < 0).any())


def test_a_tensor_of_zeros_starts_nothing() -> None:
    one, at = Learned(4), setting()
    assert one.apply(torch.zeros(5), at).result.tolist() == [0] * 5
    assert at.memory[0] == 0
    one.apply(torch.randn(5), at)
    assert at.memory[0] > 0


@pytest.mark.parametrize("bits", [2, 4, 5])
def test_sawb_is_near_the_least_squared_error(bits: int) -> None:
    torch.manual_seed(1)
    x, one = torch.randn(50_000), Sawb(bits)
    clips = np.linspace(0.5, 4.0, 141)
    errors = [
        np.mean((rounded(x.numpy(), clip, 2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1)) - x.numpy()) ** 2) for clip in clips
    ]
    found = one.apply(x, Setting({}, KEY, torch.zeros(0, dtype=torch.float64), ())).result
    assert float(((found - x) ** 2).mean()) < 1.15 * min(errors)


def test_sawb_keeps_the_largest_magnitude_where_its_formula_fails() -> None:
    x = torch.tensor([1.0, -1.0, 1.0])  # E|x| = sqrt(E x^2)
    assert Sawb(4).range(x) == (-1.0, 1.0)
    assert Sawb(4).range(torch.zeros(3)) == (0.0, 0.0)


def test_equal_elements_have_a_range() -> None:
    found = Learned(4).apply(torch.full((8,), 0.3), setting()).result
    assert torch.allclose(found, torch.full((8,), 0.3))
    found = Learned(4).apply(torch.full((8,), -0.3), setting()).result
    assert torch.allclose(found, torch.full((8,), -0.3))


def test_ranges_are_refused_where_they_cannot_be_learned() -> None:
    learned, rounded = (Learned(4),), (Integers(4),)
    cases = {
        "not for gradient of dX alone": Treated(input_gradient=ProductPlan(gradient=learned)),
        "not for activations of dW alone": Treated(weight_gradient=ProductPlan(activations=learned)),
        "must come first": Treated(ProductPlan(activations=(*rounded, *learned))),
    }
    for words, treated in cases.items():
        with pytest.raises(InvalidValue, match=words):
            lograd.attach(nn.Linear(8, 8), lograd.Plan(every=lograd.LayerPlan.of(treated)))
    with pytest.raises(InvalidValue, match="which learns"):
        Hadamard(Learned(4))


# ------------------------------------------------------------------------------------------------------- in the engine


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(288, 10)
    )


def trained(backend: str, compiled: bool = False, steps: int = 4) -> tuple[lograd.Handle, nn.Module]:
    model = network()
    handle = lograd.attach(model, lograd.Plan.uniform("int4wa-clips", keep=()), backend=backend)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": handle.parameters(), "lr": 0.01}], lr=0.1)
    run = torch.compile(model, backend="aot_eager") if compiled else model
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        x, labels = torch.randn(12, 8, 8, 8, generator=generator), torch.arange(12) % 10
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(x), labels).backward()
        optimizer.step()
        handle.step()
    return handle, model


def clips(handle: lograd.Handle) -> dict[str, float]:
    return {
        f"{layer}.{name}": site.remembered()[0]["clip"]
        for layer, engine in handle.layers.items()
        for name, site in engine.sites.items()
    }


def test_clips_are_parameters_of_the_handle_and_not_of_the_model() -> None:
    handle, model = trained("dense", steps=1)
    names = {f"{layer}.{operand}" for layer in ("0", "2", "4") for operand in ("weights", "activations")}
    assert set(dict(handle.named_parameters())) == names
    assert model.state_dict().keys() == network().state_dict().keys()
    assert all(parameter.grad is not None and float(parameter.grad) for parameter in handle.parameters())
    assert "clip" in str(handle.explain())
    before = clips(handle)
    assert clips(trained("dense", steps=3)[0]) != before


def test_integer_and_simulated_products_learn_alike() -> None:
    found = [clips(trained(backend)[0]) for backend in ("dense", "integer")]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.slow  # torch.compile; treatments/test_methods_training.py compiles others every day
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
def test_compiled_equals_eager() -> None:
    assert clips(trained("integer")[0]) == clips(trained("integer", compiled=True)[0])


def test_the_clip_of_a_layer_has_the_gradient_of_autograd() -> None:
    """A layer by hand, straight through, in plain PyTorch."""
    torch.manual_seed(2)
    layer, x = nn.Linear(16, 8), torch.randn(32, 16)
    handle = lograd.attach(layer, lograd.Plan.uniform("int4wa-clips", keep=()), backend="dense")
    layer(x).square().sum().backward()
    found = {name.removeprefix("."): parameter for name, parameter in handle.named_parameters()}
    by_hand = {
        name.removeprefix("."): torch.tensor([value], requires_grad=True) for name, value in clips(handle).items()
    }
    values = []
    for tensor, clip in ((x, by_hand["activations"]), (layer.weight.detach(), by_hand["weights"])):
        steps = (tensor / clip).clamp(-1, 1) * 7
        values.append((steps + (steps.round() - steps).detach()) * clip / 7)
    nn.functional.linear(*values, layer.bias.detach()).square().sum().backward()
    for name, clip in by_hand.items():
        assert float(found[name].grad) == pytest.approx(float(clip.grad), rel=1e-3)  # type: ignore[arg-type]


def test_a_resumed_handle_goes_on_with_its_clips() -> None:
    handle, _ = trained("integer")
    other = lograd.attach(network(), handle.plan, backend="integer")
    parameters = list(other.parameters())
    other.load_state_dict(handle.state_dict())
    assert clips(other) == clips(handle)
    assert all(one is two for one, two in zip(parameters, other.parameters(), strict=True))  # an optimizer holds them


def test_moving_a_site_keeps_the_parameter_that_an_optimizer_holds() -> None:
    handle, _ = trained("dense", steps=1)
    site = handle.layers["0"].sites["weights"]
    parameter = site.learned
    site.move_to(torch.device("cpu"))
    assert site.learned is parameter
