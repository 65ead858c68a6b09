"""A layer's products in one native call each have the bits of the steps that define them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import lograd
from lograd import native
from lograd.engine.backends.integer import OneCall

pytestmark = pytest.mark.skipif(not native.status().available, reason="needs the native kernels")

LAYERS = {
    "linear": (lambda: nn.Linear(72, 40), (96, 72)),
    "linear without bias": (lambda: nn.Linear(67, 17, bias=False), (70, 67)),
    "tokens": (lambda: nn.Linear(64, 96), (4, 20, 64)),
    "one row": (lambda: nn.Linear(64, 65), (1, 64)),
    "one output": (lambda: nn.Linear(65, 1), (30, 65)),
    "Conv1D": (lambda: Conv1D(40, 64), (3, 10, 64)),
    "3 x 3": (lambda: nn.Conv2d(16, 24, 3, padding=1), (6, 16, 9, 7)),
    "3 x 3, stride 2, no bias": (lambda: nn.Conv2d(16, 24, 3, 2, 1, bias=False), (6, 16, 9, 8)),
    "1 x 1": (lambda: nn.Conv2d(72, 20, 1), (5, 72, 6, 6)),
    "groups": (lambda: nn.Conv2d(48, 32, (3, 1), groups=2, dilation=2), (4, 48, 9, 5)),
    "one dimension": (lambda: nn.Conv1d(24, 32, 5, padding=2), (4, 24, 33)),
}
RECIPES = (
    "int8-full",
    "int8-full-rows",
    "int6-full",
    "int6-full-rows",
    "int8x6-full-rows",
    "int4-full",
    "int5-full-po2",
)


def trained(layer: nn.Module, xs: list[Tensor], gs: list[Tensor], recipe: str) -> list[Tensor]:
    """Return all results of some steps of a layer, with the counters, keys and memories of its sites."""
    model = nn.Sequential(copy.deepcopy(layer))
    found = []
    with lograd.attach(model, lograd.Plan.uniform(recipe), seed=3, backend="integer") as handle:
        for x, g in zip(xs, gs, strict=True):
            x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            y = model(x)
            y.backward(g)
            with torch.no_grad():
                found += [y.detach(), x.grad, model.eval()(x)]
            model.train()
            handle.step()
        found += [parameter.grad for parameter in model.parameters()]
        (engine,) = handle.layers.values()
        found += [tensor.clone() for name, tensor in engine.tensors().items() if "seen" not in name]
    return found


def both_ways(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[list[Tensor], list[Tensor], int]:
    """Return the results by one call and in steps, and how many products one call has computed."""
    served = 0
    with monkeypatch.context() as patch:
        for name in ("output", "gradient"):
            original = getattr(OneCall, name)

            def counted(*given: object, original: object = original) -> object:
                nonlocal served
                result = original(*given)  # type: ignore[operator]
                served += result is not None
                return result

            patch.setattr(OneCall, name, counted)
        fast = trained(*arguments)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        for name in ("output", "gradient"):
            patch.setattr(OneCall, name, lambda *_: None)
        slow = trained(*arguments)  # type: ignore[arg-type]
    return fast, slow, served


def check_equal(fast: list[Tensor], slow: list[Tensor]) -> None:
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("name", "channels_last"),
    [(name, last) for name, (_, shape) in LAYERS.items() for last in (False, True)[: 1 + (len(shape) == 4)]],
)
def test_one_call_has_the_bits_of_the_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, recipe: str, channels_last: bool
) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    if channels_last:
        layer.to(memory_format=torch.channels_last)
    memory = torch.channels_last if channels_last else torch.contiguous_format
    xs = [torch.randn(shape).exp().to(memory_format=memory), torch.randn(shape).to(memory_format=memory)]
    gs = [torch.randn_like(layer(x)) * 1e-5 for x in xs]
    fast, slow, served = both_ways(monkeypatch, layer, xs, gs, recipe)
    check_equal(fast, slow)
    assert served >= (4 if recipe.endswith("po2") else 8)


def test_zeros_and_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    for name in ("linear", "3 x 3"):
        make, shape = LAYERS[name]
        layer = make()
        with torch.no_grad():
            layer.weight[3] = 0
        x = torch.randn(shape)
        g = torch.randn_like(layer(x))
        zero_rows, some = g.clone(), g.clone()
        zero_rows[::2] = 0
        some[:, 5] = 0
        some[2] = 0
        bad_x, bad_g, zero_x = x.clone(), g.clone(), x.clone()
        bad_x.view(-1)[7], bad_g.view(-1)[9], zero_x[1] = torch.nan, torch.inf, 0
        for recipe in ("int8-full", "int6-full-rows", "int8-full-rows"):
            gs = [zero_rows, some, g, bad_g, torch.zeros_like(g), g * 1e-38, g * 1e30]
            xs = [x, zero_x, bad_x, x, x, x * 1e-30, torch.zeros_like(x)]
            fast, slow, served = both_ways(monkeypatch, layer, xs, gs, recipe)
            check_equal(fast, slow)
            assert served > 14


@pytest.mark.parametrize("name", ["linear", "3 x 3"])
def test_many_zero_rows_of_large_layers_are_left_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    torch.manual_seed(2)
    layer, x = (nn.Linear(256, 256), torch.randn(128, 256)) if name == "linear" else (
        nn.Conv2d(32, 32, 3, padding=1), torch.randn(8, 32, 16, 16)
    )  # fmt: skip
    g = torch.randn_like(layer(x))
    g[1::2] = 0
    fast, slow, served = both_ways(monkeypatch, layer, [x], [g], "int8-full-rows")
    check_equal(fast, slow)
    assert served == 4
