"""Layers of lograd.nn: near those of torch, the same state_dict, the sparsity asked for, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lograd
from lograd import InvalidValue, ops
from lograd.nn import Conv1d, Conv2d, Linear

LAYERS: dict[str, tuple[Any, Any, tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "linear": (nn.Linear, Linear, (96, 40), {}, (60, 96)),
    "linear of a sequence": (nn.Linear, Linear, (96, 40), {"bias": False}, (3, 10, 96)),
    "conv1d": (nn.Conv1d, Conv1d, (16, 24, 5), {"padding": "same"}, (4, 16, 20)),
    "conv2d": (nn.Conv2d, Conv2d, (16, 24, 3), {"stride": 2, "padding": 1}, (4, 16, 9, 9)),
    "padded": (nn.Conv2d, Conv2d, (16, 9, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 16, 6, 6)),
    "even kernel": (nn.Conv2d, Conv2d, (16, 24, 4), {"padding": "same", "bias": False}, (8, 16, 9, 9)),
    "one sample": (nn.Conv2d, Conv2d, (16, 24, 3), {}, (16, 9, 9)),
}
NAMES = ("linear", "conv1d", "conv2d")


def pair(name: str, recipe: str, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any, Tensor]:
    """A layer of torch, ours with the same parameters, and an input."""
    torch.manual_seed(0)
    plain_class, our_class, sizes, others, shape = LAYERS[name]
    plain, ours = plain_class(*sizes, **others), our_class(*sizes, **others, recipe=recipe, **options)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    ours.load_state_dict(plain.state_dict())
    return plain.to(dtype), ours.to(dtype), torch.randn(shape, dtype=dtype)


def gradient_like(y: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(y.shape, generator=generator) * torch.randn(y.shape, generator=generator).exp()
    return g.to(y.dtype)


def results(layer: nn.Module, x: Tensor, g: Tensor | None = None) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(gradient_like(y) if g is None else g)
    return [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), 0))


def threshold_and_key(layer: Any) -> tuple[Tensor, Tensor]:
    """The numbers that the pruning of the next gradient takes, where that does not move the threshold."""
    site = next(iter(layer._engine.gradient.sites.values()))
    return site.numbers.reshape(()), site.key.clone()


# ------------------------------------------------------------------------------------------------------------- integers


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch says that it copies
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_eight_bits_is_near_that_of_torch(name: str) -> None:
    plain, layer, x = pair(name, "int8-full")
    g = torch.randn_like(plain(x))
    expected, found = results(plain, x, g), results(layer, x, g)
    assert all(cosine(a, b) > 0.999 for a, b in zip(expected, found, strict=True))
    assert all(a.stride() == b.stride() for a, b in zip(expected, found, strict=True))
    assert "recipe='int8-full'" in repr(layer)
    assert isinstance(layer, type(plain))
    if lograd.native.status().available:
        assert layer.explain() == "Y: integer products; dX: integer products; dW: integer products"


def test_fewer_bits_are_less_exact() -> None:
    errors = []
    for bits in (8, 6, 4, 2):
        plain, layer, x = pair("linear", f"int{bits}-full")
        errors.append(float((layer(x) - plain(x)).detach().norm()))
    assert errors == sorted(errors)
    assert errors[1] > 3 * errors[0]


def test_random_numbers_are_those_of_the_seed() -> None:
    (_, first, x), (_, second, _), (_, other, _) = (pair("conv2d", "int4-full", seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(results(first, x), results(second, x), strict=True))
    assert not torch.equal(results(other, x)[2], results(second, x)[2])


def test_the_mean_of_gradients_is_that_of_the_rounded_operands() -> None:
    torch.manual_seed(0)
    layer, x, g = Linear(72, 8, bias=False, recipe="int4-full"), torch.randn(20, 72), torch.randn(20, 8)
    found = torch.stack([results(layer, x, g)[1] for _ in range(400)])
    rounded = ops.pack_integers(layer.weight.detach(), 4, per="channel", symmetric=True).decode()
    error = (found.mean(0) - g @ rounded) / (found.std(0) / 20)
    assert float(error.abs().max()) < 5.5


# -------------------------------------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_has_the_sparsity_asked_for_and_is_multiplied_as_torch_does(name: str, dtype: torch.dtype) -> None:
    plain, layer, _ = pair(name, "prune80", dtype, seed=3)
    x = torch.randn(LAYERS[name][-1]).to(dtype)
    for seed in range(3):
        _, key = threshold_and_key(layer)
        g = gradient_like(plain(x), seed)
        found = results(layer, x, g)
        threshold, _ = threshold_and_key(layer)
        pruned = ops.stochastic_prune(g, threshold, key)
        # A deviation of sqrt(.8 .2 / n), and up to half a percent of the histogram.
        assert (pruned == 0).float().mean() == pytest.approx(0.8, abs=0.01 + 4 * (0.16 / g.numel()) ** 0.5)
        expected = results(copy.deepcopy(plain).double(), x.double(), pruned.double())
        # The unit roundoff of the type, times what sums of a few hundred terms and a 16-bit reduction may lose.
        error = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
        for got, want in zip(found, expected, strict=True):
            assert got.dtype == dtype
            assert (got.double() - want).norm() <= error * want.norm()


def test_a_gradient_without_a_law_keeps_the_threshold() -> None:
    layer = Linear(4, 4, recipe="prune50")
    results(layer, torch.randn(8, 4))
    before = float(threshold_and_key(layer)[0])
    results(layer, torch.randn(8, 4), torch.zeros(8, 4))
    assert float(threshold_and_key(layer)[0]) == before > 0


def test_only_what_is_needed_and_no_second_derivative() -> None:
    layer, x = Linear(96, 40, recipe="prune80"), torch.randn(8, 96)
    layer(x).sum().backward()  # the gradient is an expanded scalar
    assert layer.weight.grad is not None
    layer.requires_grad_(False)
    layer(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    with pytest.raises(lograd.LogradError, match="differentiated again"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)


# ----------------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("recipe", ["prune10", "int8-full"])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_casts_as_torch_does(name: str, recipe: str, weights: torch.dtype, dtype: torch.dtype) -> None:
    plain, layer, x = pair(name, recipe, weights)
    found = []
    for one in (plain, layer):
        with torch.autocast("cpu", dtype=dtype):
            found.append(results(one, x))
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        assert cosine(got.float(), want.float()) > 0.99


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize("recipe", ["int5-full", "prune80"])
def test_compiled_modules_learn_with_the_bits_of_eager_ones(recipe: str) -> None:
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(
            Conv2d(16, 16, 3, recipe=recipe), nn.ReLU(inplace=True), nn.Flatten(), Linear(256, 8, recipe=recipe)
        )
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, labels, losses = torch.randn(32, 16, 6, 6), torch.randint(8, (32,)), []
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.6 * losses[0]
        found.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("recipe", ["int6-full", "prune85"])
def test_copies_pickles_and_moves_begin_anew(recipe: str) -> None:
    layer = Linear(96, 8, recipe=recipe, seed=5)
    x = torch.randn(4, 96)
    first = results(layer, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert all(torch.equal(a, b) for a, b in zip(results(other, x), first, strict=True))
    assert layer.double()(x.double()).dtype == torch.float64
    empty = Linear(96, 8, recipe=recipe, seed=5, device="meta").to_empty(device="cpu")
    empty.load_state_dict(layer.float().state_dict())
    assert all(torch.equal(a, b) for a, b in zip(results(empty, x), first, strict=True))


@pytest.mark.parametrize("recipe", ["int6-full", "prune85"])
def test_a_layer_without_kernels_says_why_and_trains(recipe: str) -> None:
    layer = Conv2d(8, 8, 3, groups=8, recipe=recipe)
    assert all(one.isfinite().all() for one in results(layer, torch.randn(2, 8, 5, 5)))
    assert layer.explain().startswith("dense products: depthwise")


@pytest.mark.parametrize("recipe", ["fp6", "int9-full", "int6-ful", "prune85-topk"])
def test_other_recipes_are_refused(recipe: str) -> None:
    with pytest.raises(InvalidValue):
        Linear(96, 8, recipe=recipe)


def test_scripting_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"torch\.jit\.script"):
        Linear(96, 8).__prepare_scriptable__()
