"""Sparse layers in every float type and under autocast: they do what torch's own layers do there, and still prune."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lograd import ops, sparse
from lograd.errors import LogradError

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
LAYERS: dict[str, tuple[Callable[..., nn.Module], type[nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (sparse.Linear, nn.Linear, (32, 48), (256, 32)),
    "conv1d": (sparse.Conv1d, nn.Conv1d, (16, 24, 3), (8, 16, 40)),
    "conv2d": (sparse.Conv2d, nn.Conv2d, (16, 24, 3), (4, 16, 12, 12)),
}


def gradient_like(y: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(y.shape, generator=generator) * torch.randn(y.shape, generator=generator).exp()
    return g.to(y.dtype)


def dense_twin(layer: nn.Module, plain: type[nn.Module], sizes: tuple[int, ...]) -> nn.Module:
    twin = plain(*sizes).to(next(layer.parameters()).dtype)
    twin.load_state_dict(layer.state_dict())
    return twin


def in_float64(plain: type[nn.Module], layer: nn.Module, sizes: tuple[int, ...], x: Tensor, g: Tensor) -> list[Tensor]:
    """dX, dW and dbias by torch's own layer in float64."""
    twin = plain(*sizes).double()
    twin.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    wide = x.detach().double().requires_grad_()
    twin(wide).backward(g.double())
    return [tensor.grad for tensor in (wide, *twin.parameters())]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_cast_layer_prunes_to_its_sparsity_and_multiplies_what_is_left(name: str, dtype: torch.dtype) -> None:
    make, plain, sizes, shape = LAYERS[name]
    layer = make(*sizes, sparsity=0.8, seed=3).to(dtype)
    assert layer.threshold.dtype == torch.float32
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    for seed in range(3):
        layer.zero_grad()
        x.grad = None
        y = layer(x)
        g = gradient_like(y, seed)
        y.backward(g)
    narrow = g.float() if dtype == torch.float64 else g
    pruned = ops.stochastic_prune(narrow, layer.threshold, layer.key)
    assert (pruned == 0).float().mean() == pytest.approx(0.8, abs=0.02)
    expected = in_float64(plain, layer, sizes, x, torch.where((pruned == narrow) & (pruned != 0), g, pruned.to(dtype)))
    found = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    # The unit roundoff of the type, times what sums of a few hundred terms and a 16-bit reduction may lose.
    error = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= error * want.norm()


@pytest.mark.parametrize("there", ["half", "bfloat16", "double"])
def test_a_cast_changes_neither_type_nor_value_of_what_is_kept(there: str) -> None:
    layer = sparse.Linear(16, 8, seed=7)
    layer.threshold.fill_(1e-9)  # zero in float16
    layer.passes.fill_(3)
    for cast in (there, "float"):
        getattr(nn.Sequential(layer), cast)()
        assert layer.weight.dtype == {"half": torch.float16, "bfloat16": torch.bfloat16}.get(
            cast, torch.float64 if cast == "double" else torch.float32
        )
        assert layer.threshold.dtype == torch.float32
        assert layer.threshold == torch.tensor(1e-9)
        assert (layer.key.tolist(), int(layer.passes)) == ([7, 0], 3)
    assert set(layer._buffers) == {"threshold", "key", "passes"}
    assert "threshold" not in layer.state_dict()


def test_layers_made_in_another_type_keep_a_float32_threshold() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        made = [sparse.Linear(4, 4), sparse.Conv2d(8, 8, 3)]
    finally:
        torch.set_default_dtype(before)
    for layer in (*made, sparse.Linear(4, 4, dtype=torch.float16), copy.deepcopy(sparse.Linear(4, 4)).half()):
        assert layer.threshold.dtype == torch.float32


def test_a_layer_from_the_meta_device_begins_anew() -> None:
    layer = sparse.Linear(16, 8, seed=5, device="meta")
    layer.to_empty(device="cpu")
    assert (float(layer.threshold), layer.key.tolist(), int(layer.passes)) == (0.0, [5, 0], 0)


def test_a_threshold_of_another_type_is_refused() -> None:
    layer = sparse.Linear(16, 8)
    layer.threshold = layer.threshold.half()
    with pytest.raises(LogradError, match=r"threshold of lograd::follow_gradient must be float32 of 1 element; got fl"):
        layer(torch.randn(4, 16)).sum().backward()


# ------------------------------------------------------------------------------------------------------------- autocast


def run(layer: nn.Module, x: Tensor, dtype: torch.dtype, inside: bool) -> tuple[Tensor, list[Tensor]]:
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
        g = gradient_like(y, 5)
        if inside:
            y.backward(g)
    if not inside:
        y.backward(g)
    return y, [tensor.grad for tensor in (x, *layer.parameters())]


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_autocast_as_torch_does_it(name: str, weights: torch.dtype, dtype: torch.dtype, inside: bool) -> None:
    """With sparsity=0 nothing is pruned, so gradients are torch's own but for the order of sums."""
    make, plain, sizes, shape = LAYERS[name]
    layer = make(*sizes, sparsity=0).to(weights)
    twin = dense_twin(layer, plain, sizes)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(weights)
    y, found = run(layer, x.clone().requires_grad_(), dtype, inside)
    expected_y, expected = run(twin, x.clone().requires_grad_(), dtype, inside)
    assert y.dtype == expected_y.dtype == dtype
    assert torch.equal(y, expected_y)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype == weights
        assert (got.float() - want.float()).norm() <= 2e-2 * want.float().norm()


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_prunes(name: str) -> None:
    make, _, sizes, shape = LAYERS[name]
    layer, x = make(*sizes, sparsity=0.8), torch.randn(shape, requires_grad=True)
    y, gradients = run(layer, x, torch.bfloat16, False)
    pruned = ops.stochastic_prune(gradient_like(y, 5), layer.threshold, layer.key)
    assert (pruned == 0).float().mean() == pytest.approx(0.8, abs=0.03)
    bias = pruned.float().sum([dim for dim in range(y.dim()) if dim != (1 if name != "linear" else y.dim() - 1)])
    assert (gradients[-1] - bias).norm() <= 1e-2 * bias.norm()


def test_functions_under_autocast_round_the_threshold_to_the_type_of_the_gradient() -> None:
    x, weight = torch.randn(64, 16), torch.randn(8, 16)
    bias = torch.zeros(8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = sparse.functional.linear(x, weight, bias, threshold=1.0039, seed=3)
    g = gradient_like(y)
    y.backward(g)
    pruned = ops.stochastic_prune(g, 1.0039, 3)
    assert set(pruned[(pruned != g)].abs().tolist()) <= {0.0, 1.0}
    assert torch.equal(bias.grad, pruned.float().sum(0).bfloat16().float())


def test_autocast_leaves_float64_alone_and_may_be_off() -> None:
    layer = sparse.Linear(16, 8, sparsity=0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        assert layer(torch.randn(4, 16)).dtype == torch.float32
    layer.double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(4, 16, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_autocast_compiles() -> None:
    layer = sparse.Conv2d(16, 24, 3, sparsity=0)
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    expected = run(layer, x, torch.bfloat16, False)[1]
    expected = [gradient.clone() for gradient in expected]
    layer.zero_grad()
    x.grad = None
    found = run(torch.compile(layer, backend="aot_eager"), x, torch.bfloat16, False)[1]
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)
