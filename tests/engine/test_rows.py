"""Activations with a range for each row: Y takes their steps out of its sum, dW has them in its gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from networks import Conv1D
from torch import Tensor, nn

import lograd
from lograd import LayerPlan, Plan, ops
from lograd.engine.backends.choice import INTEGER
from lograd.treatments import Integers, ProductPlan, Quantize, Setting, StatQuant, describe, recipe

native = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")
BACKENDS = ["dense", pytest.param("integer", marks=native)]
ROWS = Integers(6, "row")


def tokens(rows: int = 64, features: int = 96) -> Tensor:
    """Activations of a transformer: one feature is 50 times larger in a few rows."""
    x = torch.randn(rows, features, generator=torch.Generator().manual_seed(0))
    x[::16, 5] = 50.0
    return x


def passed(layer: nn.Module, x: Tensor, g: Tensor, plan: str | Plan, backend: str, steps: int = 1) -> list[Tensor]:
    """Return Y, dX, dW and dbias of the last step."""
    x = x.detach().clone().requires_grad_()
    made = Plan(every=LayerPlan.of(recipe(plan))) if isinstance(plan, str) else plan
    with lograd.attach(layer, made, seed=3, backend=backend) as handle:
        for _ in range(steps):
            y = layer(x)
            found = [y.detach(), *torch.autograd.grad(y, [x, layer.weight, layer.bias], g)]
            handle.step()
    return found


def codes_of(x: Tensor, one: Integers = ROWS) -> tuple[Tensor, ...]:
    found = one.level_codes(x, Setting({}, torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), ()))
    return found.codes, *found.parameters, found.counts


def alike(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(float((a - b).abs().max()) <= 3e-6 * float(b.abs().max()) for a, b in zip(found, expected, strict=True))


# ------------------------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(
    "kind", ["normal", "relu", "negative", "gelu", "shifted", "half of the rows zero", "tiny", "huge"]
)
def test_all_rows_have_one_zero_point_and_none_saturates(kind, bits):
    x = tokens()
    change = {
        "relu": torch.relu, "negative": lambda x: -x.relu(), "gelu": nn.functional.gelu, "shifted": lambda x: x + 2,
        "half of the rows zero": lambda x: x * (torch.arange(64) % 2).unsqueeze(1), "tiny": lambda x: x * 1e-30,
        "huge": lambda x: x * 1e33,
    }  # fmt: skip
    x = change.get(kind, torch.Tensor.clone)(x)
    codes, scale, zero, counts = codes_of(x, Integers(bits, "row"))
    assert scale.shape == zero.shape == (64,)
    assert zero.unique().numel() == 1
    assert int(counts[2]) == 0
    step = scale.double().reciprocal().unsqueeze(1)
    decoded = (codes.double() - zero.double().unsqueeze(1)) * step
    assert bool(((decoded - x).abs() <= 0.5001 * step).all())
    assert torch.equal(decoded[x == 0], torch.zeros_like(decoded[x == 0]))
    extent = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    ideal = (extent.double() / (2**bits - 1))[extent > 0]
    if kind in ("relu", "negative"):
        torch.testing.assert_close(step.squeeze(1)[extent > 0], ideal, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_zero_point_is_the_best_of_all(bits):
    x, last = nn.functional.gelu(tokens() * torch.logspace(-6, 6, 64).unsqueeze(1)), 2**bits - 1
    below, above = -x.double().amin(1).clamp(max=0), x.double().amax(1).clamp(min=0)

    def cost(zero: int) -> float:
        step = torch.maximum(below / zero, above / (last - zero)) / (below + above)
        return float(step.square().sum())

    zero = int(codes_of(x, Integers(bits, "row"))[2][0])
    assert cost(zero) <= 1.001 * min(map(cost, range(1, last)))


def test_tensors_that_are_no_matrices_have_one_range():
    for shape in ((4, 8, 5, 5), (4, 8, 5), (8,), ()):
        x = torch.randn(shape)
        setting = Setting({}, torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), ())
        assert torch.equal(ROWS.apply(x, setting).result, ops.quantize_integers(x, 6))


# ------------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("backend", BACKENDS)
def test_outliers_in_a_few_rows_cost_the_others_nothing(backend):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 80), tokens(), torch.randn(64, 80)
    weight, bias = (one.detach().double() for one in (layer.weight, layer.bias))
    exact = x.double() @ weight.t() + bias
    errors = {}
    for name in ("int6-full", "int6-full-rows", "int8x6-full-rows"):
        y = passed(layer, x, g, name, backend)[0].double()
        usual = torch.arange(64) % 16 != 0
        errors[name] = float((y - exact)[usual].norm() / exact[usual].norm())
    assert errors["int6-full-rows"] < errors["int6-full"] / 5  # most of the rest is that of the weights
    assert errors["int8x6-full-rows"] < errors["int6-full-rows"]


@native
@pytest.mark.parametrize(
    "name", ["int2-full-rows", "int4-full-rows", "int8-full-rows", "int8x6-full-rows", "prune50+int6-full-rows"]
)
@pytest.mark.parametrize(
    "kind", ["tokens", "rows of zeros", "first row zero", "all zero", "one row", "sizes", "gelu", "Conv1D"]
)
def test_integer_products_are_the_simulated_ones(kind, name):
    torch.manual_seed(0)
    layer = Conv1D(80, 96) if kind == "Conv1D" else nn.Linear(96, 80)
    x = tokens()
    if kind == "rows of zeros":
        x[::2] = 0
    if kind == "first row zero":
        x[0] = 0
    x = {
        "all zero": x * 0, "one row": x[:1], "sizes": x * torch.logspace(-8, 8, 64).unsqueeze(1),
        "gelu": nn.functional.gelu(x), "Conv1D": x.view(4, 16, 96),
    }.get(kind, x)  # fmt: skip
    g = torch.randn(*x.shape[:-1], 80)
    dense, found = (passed(layer, x, g, name, backend, 3) for backend in ("dense", "integer"))
    assert alike(found, dense)
    assert torch.equal(found[3], g.reshape(-1, 80).sum(0)), "dbias knows nothing of rows"


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_of_a_batch_are_rows(backend):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 80), tokens(), torch.randn(64, 80)
    flat = passed(layer, x, g, "int6-full-rows", backend)
    batched = passed(layer, x.view(4, 16, 96), g.view(4, 16, 80), "int6-full-rows", backend)
    assert alike([one.reshape(other.shape) for one, other in zip(batched, flat, strict=True)], flat)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 96), (2, 0, 96)])
def test_no_rows(shape, backend):
    layer = nn.Linear(96, 80)
    found = passed(layer, torch.randn(shape), torch.randn(*shape[:-1], 80), "int6-full-rows", backend)
    assert torch.equal(found[2], torch.zeros(80, 96))
    assert torch.equal(found[3], torch.zeros(80))


@pytest.mark.parametrize("backend", BACKENDS)
def test_dW_is_unbiased(backend):
    """Its mean over 400 draws is the product of the gradient as it is with the rounded activations."""
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 64), tokens(), torch.randn(64, 64)
    x[3] = 0
    exact = g.double().t() @ Integers(6, "row").apply(x, setting()).result.double()
    with lograd.attach(layer, Plan(every=LayerPlan.of(recipe("int6-full-rows"))), seed=7, backend=backend) as handle:
        drawn = []
        for _ in range(400):
            drawn.append(torch.autograd.grad(layer(x), layer.weight, g)[0].double())
            handle.step()
    found = torch.stack(drawn)
    z = (found.mean(0) - exact) / (found.std(0) / 20).clamp(min=1e-5)
    assert abs(float(z.square().mean()) - 1) < 4 * (2 / 63) ** 0.5  # elements of an output share their gradient's codes
    assert float(z.abs().max()) < 6


def setting() -> Setting:
    return Setting({}, torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), ())


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_size_cost_dW_nothing(backend):
    """Where sizes differ, rounding has the range of the largest products of a step and a gradient."""
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 64), torch.randn(256, 96), torch.randn(256, 64)
    exact, errors = g.t() @ x, {}
    for name in ("int6-full", "int6-full-rows"):
        errors[name] = float((passed(layer, x, g, name, backend)[2] - exact).norm() / exact.norm())
    assert errors["int6-full-rows"] < 1.05 * errors["int6-full"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operand", ["activations", "gradient"])
def test_operands_that_are_not_finite(operand, backend):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 80), tokens(), torch.randn(64, 80)
    {"activations": x, "gradient": g}[operand][3, 7] = float("nan")
    _, _, d_weight, d_bias = passed(layer, x, g, "int6-full-rows", backend)
    assert bool(d_weight.isnan().any())
    assert bool(d_bias.isnan().any()) == (operand == "gradient")


@native
def test_convolutions_have_one_range_in_integers():
    torch.manual_seed(0)
    layer, x, g = nn.Conv2d(16, 24, 3, padding=1), torch.randn(4, 16, 8, 8), torch.randn(4, 24, 8, 8)
    dense, found = (passed(layer, x, g, "int6-full-rows", backend) for backend in ("dense", "integer"))
    assert alike(found, dense)
    usual = passed(layer, x, g, "int6-full", "integer")  # the first range in hindsight is that of the tensor
    for name, a, b in zip(("Y", "dX", "dW", "dbias"), found, usual, strict=True):
        assert torch.equal(a, b) or name == "dX", name  # whose codes are as many below zero as above


@native
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
@pytest.mark.parametrize("zero", [0, 60], ids=["all rows", "few rows"])
def test_gradients_of_very_different_rows_have_little_noise_in_dx(kind, zero):
    """Rows from 1 to 1e-4: with one range 6 bits lose the small ones, with a range each they keep them all."""
    torch.manual_seed(0)
    layer = kind(1024, 1024)  # large enough that rows of zeros are skipped
    x, g = torch.randn(64, 1024), torch.randn(64, 1024) * torch.logspace(0, -4, 64)[:, None]
    g[:zero] = 0
    exact = passed(layer, x, g, "identity", "dense")[1]
    dense, found = (passed(layer, x, g, "int6-full-rows", backend) for backend in ("dense", "integer"))
    assert alike(found, dense)
    moved = ((found[1] - exact).norm(dim=1) / exact.norm(dim=1))[zero:]
    one_range = passed(layer, x, g, "int6-full", "integer")[1]
    assert float(moved.max()) < 0.1  # a step is 1/31 of the largest of 1024 elements, about 0.1 of their deviation
    assert zero or float(((one_range - exact).norm(dim=1) / exact.norm(dim=1)).max()) > 1
    assert torch.equal(found[1][:zero], torch.zeros(zero, 1024))


@native
@pytest.mark.parametrize(
    "gradient", [StatQuant(8, "ptq"), Integers(6, rounding="stochastic"), Integers(6, "column", symmetric=True)]
)
def test_other_gradients_take_the_steps_of_rows(gradient):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 80), tokens(), torch.randn(64, 80)
    plan = planned(gradient)
    dense, found = (passed(layer, x, g, plan, backend) for backend in ("dense", "integer"))
    assert alike(found, dense)
    with lograd.attach(layer, plan, backend="integer") as handle:
        assert handle.layers[""].choices["weight_gradient.gradient"].mode == INTEGER, describe((gradient,))


def planned(gradient, activations=ROWS):
    weights = Integers(6, "channel", symmetric=True)
    return Plan(
        every=LayerPlan(
            ProductPlan(activations=(activations,), weights=(weights,)),
            ProductPlan((Integers(6, rounding="stochastic"),), weights=(weights,)),
            ProductPlan((gradient,), activations=(activations,)),
        )
    )


@native
@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (planned(Quantize("int6")), "dW sums over the scales of the activations"),
        (planned(Integers(6), Integers(6, "channel")), "per='row' has one zero point for all"),
    ],
)
def test_reasons_why_not(plan, reason):
    layer = nn.Linear(96, 80)
    with lograd.attach(layer, plan, backend="integer") as handle:
        for _ in range(2):
            layer(tokens()).sum().backward()
            handle.step()
        assert reason in str(handle.explain())


def test_the_noise_of_dW_is_not_predicted():
    model = nn.Sequential(nn.Linear(96, 80), nn.Unflatten(1, (16, 5)), nn.Conv1d(16, 16, 3))
    with lograd.attach(model, Plan(every=LayerPlan.of(recipe("int6-full-rows")))) as handle:
        model(tokens()).square().sum().backward()
        handle.step()
        shown = handle.explain().layers
    assert shown["0"].endswith("predicted cosine unknown")  # that of dW alone, as x has no gradient
    assert "and at least" in shown["2"]


@pytest.mark.parametrize(
    ("name", "activations", "others"),
    [("int6-full-rows", Integers(6, "row"), 6), ("int8x6-full-rows", Integers(8, "row"), 6),
     ("int8x4-full", Integers(8, ranges="hindsight"), 4)],
)  # fmt: skip
def test_recipes(name, activations, others):
    found = recipe(name)
    assert found.output.activations == found.weight_gradient.activations == (activations,)
    usual = recipe(f"int{others}-full").input_gradient
    if name.endswith("rows"):
        usual = replace(usual, gradient=(Integers(others, "row", symmetric=True, rounding="stochastic"),))
    assert found.input_gradient == usual
    assert found.weight_gradient.gradient == recipe(f"int{others}-full").weight_gradient.gradient
