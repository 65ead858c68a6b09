"""Rows of a gradient that are zero or dropped: the products are those of a smaller batch, exact or unbiased."""

from __future__ import annotations

import copy

import pytest
import torch
from networks import Conv1D
from torch import Tensor, nn

import lograd
from lograd import InvalidValue, LayerPlan, Plan
from lograd.engine import rows as engine_rows
from lograd.engine.backends import integer
from lograd.engine.backends.integer import OneCall
from lograd.treatments import Rows, both, recipe

native = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")
SAMPLES, LENGTH, INPUTS, OUTPUTS = 16, 32, 128, 160


def tokens(kept: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Activations and a gradient of which some rows are zero, and others differ in size."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, LENGTH, INPUTS, generator=random) * (
        0.2 + torch.rand(SAMPLES, LENGTH, 1, generator=random)
    )
    g = torch.randn(SAMPLES, LENGTH, OUTPUTS, generator=random) * torch.rand(SAMPLES, LENGTH, 1, generator=random) ** 3
    return x, g * (torch.rand(SAMPLES, LENGTH, 1, generator=random) < kept)


def passed(layer: nn.Module, x: Tensor, g: Tensor, name: object = None, seed: int = 3, backend: str = "auto"):
    """Return Y, dX, dW and dbias, and the counters."""
    x = x.detach().clone().requires_grad_()
    if name is None:
        y = layer(x)
        return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], g)], None
    made = Plan(every=LayerPlan.of(recipe(name) if isinstance(name, str) else name))
    with lograd.attach(layer, made, seed=seed, backend=backend) as handle:
        y = layer(x)
        found = [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], g)]
        return found, handle.counters().total


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


LAYERS = {
    "linear": (lambda: nn.Linear(INPUTS, OUTPUTS), lambda x: x),
    "Conv1D of transformers": (lambda: Conv1D(OUTPUTS, INPUTS), lambda x: x),
    "1x1 convolution": (
        lambda: nn.Conv2d(INPUTS, OUTPUTS, 1), lambda x: x.transpose(1, 2).reshape(SAMPLES, -1, 8, LENGTH // 8),
    ),
    "1x1 convolution of sequences": (lambda: nn.Conv1d(INPUTS, OUTPUTS, 1), lambda x: x.transpose(1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_of_zeros_are_skipped_exactly(kind):
    make, shaped = LAYERS[kind]
    layer, (x, g) = make(), map(shaped, tokens())
    found, counts = passed(layer, x, g, "rows-exact")
    close(found, passed(layer, x, g)[0])
    zero = int((tokens()[1] == 0).all(-1).sum())
    assert (counts.rows, counts.rows_zero) == (SAMPLES * LENGTH, zero)
    assert counts.rows_kept == SAMPLES * LENGTH - zero


@pytest.mark.parametrize("name", ["rows-exact", "rows-noise0"])
def test_whole_samples_of_a_convolution_are_skipped(name):
    torch.manual_seed(0)
    layer, x, g = nn.Conv2d(16, 32, 3, padding=1), torch.randn(16, 16, 16, 16), torch.randn(16, 32, 16, 16)
    g[torch.arange(16) % 3 > 0] = 0
    rows = recipe("rows-exact").map(lambda all: tuple(Rows(noise=0.0, of="sample") for _ in all))
    found, counts = passed(layer, x, g, rows if name.startswith("rows") else name)
    close(found[-1:], passed(layer, x, g)[0][-1:])
    if name.startswith("rows"):
        close(found, passed(layer, x, g)[0])
        assert (counts.rows, counts.rows_kept) == (16, 6)


@pytest.mark.parametrize("zero", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "backend", ["dense", pytest.param("sparse", marks=native), pytest.param("integer", marks=native)]
)
@pytest.mark.parametrize(
    ("dimensions", "last"), [(1, False), (2, False), (2, True)], ids=["sequences", "images", "images, channels last"]
)
def test_pixels_of_zeros_are_skipped_where_they_are_many(dimensions, backend, last, zero, monkeypatch):
    """The same results, in integers the same bits, as with all pixels multiplied; few zeros are not gathered."""
    torch.manual_seed(0)
    kind, shape = (nn.Conv1d, (60,)) if dimensions == 1 else (nn.Conv2d, (6, 10))
    layer, x = kind(136, 130, 1), torch.randn(4, 136, *shape)
    g = torch.randn(4, 130, *shape) * (torch.rand(4, 1, *shape) >= zero)
    if last:
        x, g = (one.to(memory_format=torch.channels_last) for one in (x, g))
    name = {"dense": "int8-ptq", "sparse": "topk10", "integer": "int8-full"}[backend]
    calls: list[int] = []
    original = engine_rows._products_of_pixels
    monkeypatch.setattr(engine_rows, "_products_of_pixels", lambda *given: calls.append(1) or original(*given))
    skipping, _ = passed(layer, x, g, name, backend=backend)
    if backend == "dense":
        assert bool(calls) == (zero >= 0.9)
    monkeypatch.setattr(engine_rows, "LEAST_WORK", float("inf"))
    monkeypatch.setattr(integer, "LEAST_WORK", float("inf"))
    whole, _ = passed(layer, x, g, name, backend=backend)
    assert all(map(torch.equal, skipping, whole)) if backend == "integer" else close(skipping, whole) is None
    assert skipping[1].stride() == whole[1].stride()


@native
@pytest.mark.parametrize(
    "name", ["int8-full", "int6-full", "int6-full-rows", "int8x6-full-rows", "int4-full", "fqt8-ptq"]
)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_integers_skip_rows_of_zeros_with_the_same_bits(kind, name, monkeypatch):
    torch.manual_seed(0)
    if kind == "linear":
        layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens()
    else:
        layer, x, g = nn.Conv2d(16, 32, 3, padding=1), torch.randn(16, 16, 16, 16), torch.randn(16, 32, 16, 16)
        g[torch.arange(16) % 3 > 0] = 0
    monkeypatch.setattr(OneCall, "gradient", lambda *_: None)  # test_one_call.py compares it with the steps
    looked: list[int] = []
    original = engine_rows.nonzero_rows
    monkeypatch.setattr(engine_rows, "nonzero_rows", lambda g: looked.append(1) or original(g))
    skipping, _ = passed(layer, x, g, name, backend="integer")
    assert looked
    monkeypatch.setattr(engine_rows, "LEAST_WORK", float("inf"))
    whole, _ = passed(layer, x, g, name, backend="integer")
    assert all(map(torch.equal, skipping, whole))


def test_where_rows_cannot_be_left_out_they_are_zeros_in_the_tensor():
    """The pixels of a 3 x 3 convolution."""
    torch.manual_seed(0)
    layer, x, g = nn.Conv2d(8, 16, 3, padding=1), torch.randn(4, 8, 12, 12), torch.randn(4, 16, 12, 12)
    found, counts = passed(layer, x, g, "rows75")
    assert (counts.rows, counts.treated) == (0, 1)
    assert counts.zeros_after / counts.elements == pytest.approx(0.75, abs=4 * (0.25 * 0.75 / 576) ** 0.5)
    assert counts.zeros_after % 16 == 0
    assert found[2].any()


def test_nan_in_a_row_is_kept_and_counted():
    layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens()
    g[0, 0, 0] = float("nan")
    found, counts = passed(layer, x, g, "rows-noise0.9")
    assert found[1][0, 0].isnan().all()
    assert found[2][0].isnan().all()
    assert not found[1][1:].isnan().any()
    assert counts.rows_kept >= 1


@pytest.mark.parametrize(
    "name", ["rows-exact", "rows85", "rows-noise0.1", "topk85", pytest.param("int8-full", marks=native)]
)
def test_a_gradient_of_zeros_gives_zeros(name):
    layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens(kept=0.0)
    found, _ = passed(layer, x, g, name)
    assert all(not one.any() for one in found[1:])
    assert [one.shape for one in found[2:]] == [one.shape for one in layer.parameters()]


@pytest.mark.parametrize("name", ["rows85", "rows-noise0.1", "rows-exact"])
def test_a_batch_of_one_row(name):
    layer, x, g = nn.Linear(8, 4), torch.randn(1, 8), torch.randn(1, 4)
    found, counts = passed(layer, x, g, name)
    assert counts.rows == 1
    ratio = found[1] / passed(layer, x, g)[0][1]
    assert float(ratio.max() - ratio.min()) < 1e-5 * max(float(ratio.max()), 1)


UNBIASED = {
    "rows75": both(Rows(0.75)),
    "noise 0.2": both(Rows(noise=0.2)),
    "noise 0.2 by norm x input": both(Rows(noise=0.2, weigh="norm x input")),
    "75 by norm x input": both(Rows(0.75, weigh="norm x input")),
    "samples": both(Rows(noise=0.2, of="sample")),
    "dW alone": recipe("identity/rows-noise0.2"),
    "with int8": recipe("int8-full+rows-noise0.2"),
}


@pytest.mark.parametrize("kind", UNBIASED)
def test_products_are_unbiased_and_their_noise_is_the_predicted_one(kind):
    """Mean of many draws within 4 sigma; added variance within a factor 1.5 of the law's."""
    torch.manual_seed(1)
    layer = nn.Linear(24, 20)
    x = torch.randn(12, 8, 24) * (0.2 + torch.rand(12, 8, 1))
    g = torch.randn(12, 8, 20) * torch.rand(12, 8, 1) ** 3
    g[torch.rand(12, 8) < 0.4] = 0
    plain = passed(layer, x, g)[0]
    seeds, copied = 300, copy.deepcopy(layer)
    draws = [passed(copied, x, g, UNBIASED[kind], seed=seed)[0] for seed in range(seeds)]
    for place in (1, 2):
        all_draws = torch.stack([draw[place] for draw in draws]).double()
        if kind == "with int8":
            exact = passed(layer, x, g, "int8-full+rows-exact")[0][place].double()
        else:
            exact = plain[place].double()
        noise = float((all_draws - exact).square().flatten(1).sum(1).mean())
        off = float((all_draws.mean(0) - exact).square().sum())
        # E|mean - exact|^2 = noise / seeds, with a spread of no more than sqrt(2) of it.
        slack = 1e-3 * float(exact.square().sum()) if kind == "with int8" else 1e-12
        assert off <= noise / seeds * (1 + 4 * 2**0.5) + slack
        if "noise" in kind and place == 2:
            energies = (g.flatten(0, 1).square().sum(1) * x.flatten(0, 1).square().sum(1)).sum()
            assert 0.2 / 1.5 <= noise / float(energies) <= 0.2 * (2.2 if "input" in kind else 1.5)


def test_rows_that_mostly_stay_are_all_kept():
    layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens(kept=1.0)
    found, counts = passed(layer, x, g, both(Rows(noise=0.01, most=0.3)))
    close(found, passed(layer, x, g)[0])
    assert counts.rows_kept == counts.rows


def test_samples_stay_or_go_together():
    layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens(kept=1.0)
    g = g * torch.logspace(0, -3, SAMPLES)[:, None, None]
    found, _ = passed(layer, x, g, "rows50-sample")
    rows = found[1].any(-1)
    assert bool((rows.all(1) | ~rows.any(1)).all())
    assert 0 < int(rows.all(1).sum()) < SAMPLES


def test_rows_stand_in_front_of_integers_wherever_they_are_named():
    assert recipe("int6-full+rows85") == recipe("rows85+int6-full")
    assert recipe("rows-noise0.02").input_gradient.gradient == (Rows(noise=0.02),)
    assert recipe("rows85-sample").weight_gradient.gradient == (Rows(0.85, of="sample"),)


@pytest.mark.parametrize("name", ["rows-noise1.5", "rows-noise1"])
def test_noise_beyond_one_is_refused(name):
    with pytest.raises(InvalidValue, match=r"noise"):
        recipe(name)


@pytest.mark.parametrize("arguments", [{"sparsity": 1.5}, {"noise": -0.1}, {"noise": 0.1, "most": 0.0}, {}])
def test_budgets_outside_are_refused(arguments):
    with pytest.raises(InvalidValue):
        Rows(**arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the tracer
@pytest.mark.parametrize("name", ["rows-noise0.05", pytest.param("int6-full-rows+rows-noise0.05", marks=native)])
def test_compiled_and_resumed_steps_have_the_same_bits(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.GELU(), nn.Linear(OUTPUTS, 8))
    x, _ = tokens()

    def gradients(compiled: bool, resumed: bool) -> list[Tensor]:
        one = copy.deepcopy(model)
        with lograd.attach(one, Plan(every=LayerPlan.of(recipe(name))), seed=1, backend="integer") as handle:
            run = torch.compile(one, backend="aot_eager") if compiled else one
            for step in range(3):
                if resumed and step == 2:
                    state = handle.state_dict()
                    handle.remove()
                    handle = lograd.attach(one, Plan(every=LayerPlan.of(recipe(name))), seed=9, backend="integer")
                    handle.load_state_dict(state)
                one.zero_grad()
                run(x)[:, 0].square().sum().backward()
                handle.step()
            handle.remove()
        return [parameter.grad for parameter in one.parameters()]

    plain = gradients(False, False)
    assert all(map(torch.equal, plain, gradients(True, False)))
    assert all(map(torch.equal, plain, gradients(False, True)))


def test_explain_says_what_is_multiplied():
    layer, (x, g) = nn.Linear(INPUTS, OUTPUTS), tokens()
    with lograd.attach(layer, Plan(every=LayerPlan.of(recipe("rows-noise0.02")))) as handle:
        layer(x).backward(g)
        handle.step()
        assert "of the rows are multiplied" in str(handle.explain())
