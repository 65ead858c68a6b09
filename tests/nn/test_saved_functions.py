"""Gradients of many functions under saved_activations: exact, bounded or unbiased, and finite where PyTorch's are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lograd

SIZE = 256
"""Matrices of this size have as many elements as the smallest tensors that are coded."""
BITS = (4, 6, 8)
Function = Callable[..., Tensor]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function, **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterDict({name: nn.Parameter(value) for name, value in parameters.items()})

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.weights)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positive() -> Tensor:
    """Numbers over many magnitudes, nearly all of which are 0 in the codes of their row."""
    return numbers(SIZE, SIZE).mul(4).exp()


def signed() -> Tensor:
    """Numbers of both signs, with zeros, ends of ranges and small numbers on both sides of these."""
    x = numbers(SIZE, SIZE) * 3
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 6.0, 3.0, -3.0, 1e-30, -1e-30, 6 + 1e-6, 6 - 1e-6, -3 - 1e-6, -3 + 1e-6]
    )
    x[:, : len(special)] = special
    return x


def gradients(net: Any, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    y = net(x)
    return torch.autograd.grad(y, (x, *net.parameters()), numbers(*y.shape, seed=1))


def kept(net: nn.Module, x: Tensor, bits: int, seed: int = 0) -> tuple[tuple[Tensor, ...], lograd.nn.SavedHandle]:
    with lograd.nn.saved_activations(net, bits, seed) as handle:
        return gradients(net, x), handle


def same_dropout(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(x, 0.3)


AS_IT_IS: dict[str, Function] = {
    "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "pow -1": lambda x: x**-1, "pow 0.5": lambda x: x**0.5, "pow 1.5": lambda x: x**1.5, "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3, "pow of tensors": lambda x: x ** (x + 1).reciprocal(),
    "division": lambda x: x.flip(0) / x, "division of sums": lambda x: x / x.sum(1, keepdim=True),
    "p log p": lambda p: p * torch.log(p), "p log p, from the other side": lambda p: torch.log(p) * p,
    "KL": lambda p: p * (p.log() - p.flip(0).log()), "p log p as a sum": lambda p: torch.einsum("ij,ij->i", p, p.log()),
    "p log p behind a ReLU": lambda p: F.relu(-p.log()) * p,
    "xlogy": lambda x: torch.xlogy(x, x), "norm": lambda x: x.norm(dim=1), "norm 3": lambda x: x.norm(3, dim=1),
    "atan2": lambda x: torch.atan2(x, x.flip(0)), "cumprod": lambda x: (x / x.max()).cumprod(1),
    "prod": lambda x: (x / x.max()).prod(1), "hypot": lambda x: torch.hypot(x, x.flip(1)),
    "root of a square": lambda x: torch.sqrt(x**2 + 1e-6), "logsumexp": lambda x: x.log().logsumexp(1),
}  # fmt: skip
"""Functions of positive numbers that keep what they keep."""

SIGNED: dict[str, Function] = {
    "exp": torch.exp, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1), "elu": F.elu, "softplus": F.softplus, "mish": F.mish,
    "hardswish": F.hardswish, "hardswish in place": lambda x: F.hardswish(x * 1, inplace=True),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(SIZE)), "rms_norm": lambda x: F.rms_norm(x, (SIZE,)),
    "normalize": lambda x: F.normalize(x, dim=1), "sin": torch.sin, "celu": F.celu, "logsigmoid": F.logsigmoid,
}  # fmt: skip
"""Functions of any numbers that keep what they keep."""

PIECEWISE: dict[str, Function] = {
    "relu": F.relu, "relu in place": lambda x: (x * 1).relu_(), "relu6": F.relu6,
    "relu6 in place": lambda x: F.relu6(x * 1, inplace=True), "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "leaky_relu in place": lambda x: F.leaky_relu_(x * 1, 0.1),
    "dropout": same_dropout,
    "max_pool": lambda x: F.max_pool2d(x[None, None], 2), "avg_pool": lambda x: F.avg_pool2d(x[None, None], 2),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x[None, None], 4), "relu of columns": lambda x: F.relu(x.t()),
    "relu of a part": lambda x: F.relu(torch.cat([x, x], 1)[:, 100:400]),
}  # fmt: skip
"""Functions whose gradient reads pieces or shapes, which fewer bits tell exactly."""


@pytest.mark.parametrize("name", [*AS_IT_IS, *SIGNED, "prelu"])
def test_other_functions_keep_tensors_as_they_are(name: str) -> None:
    x = positive() if name in AS_IT_IS else signed()
    net = nn.PReLU(SIZE) if name == "prelu" else Of((AS_IT_IS | SIGNED)[name])
    found, handle = kept(net, x, 4)
    for one, other in zip(found, gradients(net, x), strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert handle.before == 0 or "ReLU" in name


@pytest.mark.parametrize("name", PIECEWISE)
def test_piecewise_linear_functions_keep_exact_pieces(name: str) -> None:
    net = Of(PIECEWISE[name])
    found, handle = kept(net, signed(), 4)
    assert torch.equal(found[0], gradients(net, signed())[0])
    assert handle.before > 0
    assert handle.after <= handle.before / 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PIECEWISE)
def test_pieces_of_nan_and_infinity_in_all_types(name: str, dtype: torch.dtype) -> None:
    x = signed()
    x[3, 20:23] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    net = Of(PIECEWISE[name])
    found, _ = kept(net, x.to(dtype), 8)
    assert torch.equal(found[0].nan_to_num(7.0), gradients(net, x.to(dtype))[0].nan_to_num(7.0))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("name", "curvature"), [("gelu", 0.8), ("silu", 0.5), ("silu in place", 0.5)])
def test_smooth_functions_are_off_by_a_step_times_their_curvature(name: str, curvature: float, bits: int) -> None:
    functions: dict[str, Function] = {
        "gelu": F.gelu,
        "silu": F.silu,
        "silu in place": lambda x: F.silu(x * 1, inplace=True),
    }
    x, net = signed(), Of(functions[name])
    (found,), handle = kept(net, x, bits)
    assert handle.before > 0
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    step = (high - low) / (2**bits - 2)  # zero is a level, which may cost one
    bound = curvature * step * numbers(SIZE, SIZE, seed=1).abs()
    error = (found - gradients(net, x)[0]).abs()
    assert bool((error <= bound + 1e-5).all())
    assert float(error.max()) > 0


IMAGES = (8, 16, 32, 32)
UNBIASED: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (nn.Linear(64, 32), numbers(1024, 64)),
    "linear without bias, of sequences": (nn.Linear(64, 32, bias=False), numbers(8, 128, 64)),
    "conv1d": (nn.Conv1d(16, 8, 3), numbers(8, 16, 512)),
    "conv2d": (nn.Conv2d(16, 8, 3), numbers(*IMAGES)),
    "conv2d, channels last": (nn.Conv2d(16, 8, 3), numbers(*IMAGES).to(memory_format=torch.channels_last)),
    "matmul": (Of(lambda x, w: x @ w, w=numbers(SIZE, SIZE, seed=4)), numbers(SIZE, SIZE)),
    "matmul of two": (Of(lambda x: x @ x.flip(0).t()), numbers(SIZE, SIZE)),
    "bmm": (Of(lambda x: torch.bmm(x, x.flip(0))), numbers(4, 128, 128)),
    "einsum": (Of(lambda x: torch.einsum("bij,bkj->bik", x, x.flip(0))), numbers(4, 128, 128)),
    "product of parameters": (Of(lambda x, w: x * w, w=numbers(SIZE, SIZE, seed=4)), numbers(SIZE, SIZE)),
    "gate": (Of(lambda x, w: torch.sigmoid(x @ w) * (x @ w.t()), w=numbers(SIZE, SIZE) / 16), numbers(SIZE, SIZE)),
    "layer_norm": (nn.LayerNorm(SIZE), numbers(SIZE, SIZE)),
    "batch_norm": (nn.BatchNorm2d(16), numbers(*IMAGES)),
    "group_norm": (nn.GroupNorm(4, 16), numbers(*IMAGES)),
    "sdpa": (Of(lambda x: F.scaled_dot_product_attention(x, x.flip(0), x.flip(1))), numbers(4, 4, 64, 64)),
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", UNBIASED)
def test_products_and_normalizations_are_unbiased(name: str, bits: int) -> None:
    net, x = UNBIASED[name]
    expected, draws = gradients(net, x), 40
    every = []
    for seed in range(draws):
        found, handle = kept(net, x, bits, seed)
        every.append(found)
    assert handle.before > 0
    assert handle.after < (0.3 if bits == 8 else 0.16) * handle.before
    noisy = 0
    for drawn, plain in zip(zip(*every, strict=True), expected, strict=True):
        errors = torch.stack(drawn).double() - plain
        energies = errors.flatten(1).square().sum(1)
        if energies.mean() < 1e-10 * plain.double().square().sum():
            continue  # float32's own rounding
        # The mean of independent errors has 1 / draws of their energy.  Noise that elements share makes both vary.
        ratio = draws * errors.mean(0).square().sum() / energies.mean()
        assert abs(float(ratio) - 1) < 5 * float(energies.std() / energies.mean()) + 0.05
        noisy += 1
    assert noisy > 0


def test_a_row_of_small_deviation_keeps_its_own_range() -> None:
    """One range for a sample would bury the rows whose deviation is small, by which LayerNorm divides."""
    x = numbers(2, 128, SIZE)
    x[:, 5] *= 1e-2
    net = nn.LayerNorm(SIZE)
    found, _ = kept(net, x, 8)
    expected = gradients(net, x)
    error = (found[0] - expected[0]).norm(dim=-1) / expected[0].norm(dim=-1)
    assert float(error.max()) < 0.02


def test_an_operand_with_infinity_is_kept_as_it_is() -> None:
    x = numbers(1024, 64)
    x[7, 3] = torch.inf
    net = nn.Linear(64, 32)
    found, handle = kept(net, x, 8)
    assert handle.before == 0
    torch.testing.assert_close(found, gradients(net, x), rtol=0, atol=0, equal_nan=True)


class Root(nn.Module):
    """The network of the report: an element of sqrt's result near zero is divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(torch.sqrt(self.a(x) ** 2 + 1e-6))
        return result


@pytest.mark.parametrize("way", ["plan", "context"])
@pytest.mark.parametrize("bits", BITS)
def test_the_root_of_a_square_has_finite_gradients(way: str, bits: int) -> None:
    torch.manual_seed(0)
    net, x = Root(), numbers(2048, 64)
    expected = gradients(net, x)
    if way == "plan":
        with lograd.attach(net, replace(lograd.Plan.uniform("identity"), saved=bits)):
            found = gradients(net, x)
    else:
        found, _ = kept(net, x, bits)
    for one, other in zip(found, expected, strict=True):
        assert bool(one.isfinite().all())
        assert float((one - other).norm() / other.norm()) < 0.5 * 2 ** (4 - bits)
    assert torch.equal(found[0], expected[0])  # no product on the way has another operand than weights


def test_memory_that_stays_is_not_coded_beside() -> None:
    """Softmax keeps its result, so the product behind it reads that."""
    net = Of(lambda x, w: x.softmax(1) @ w, w=numbers(SIZE, 8))
    found, handle = kept(net, signed(), 4)
    assert handle.before == 0
    assert torch.equal(found[1], gradients(net, signed())[1])


def test_a_tensor_that_was_overwritten_is_an_error_as_in_pytorch() -> None:
    def overwritten(x: Tensor) -> Tensor:
        y = x * 1
        result = y.exp()
        result.add_(1)
        return result

    for net in (Of(overwritten), nn.Sequential(Of(overwritten))):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(net, signed())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept(net, signed(), 8)


class _Watched:
    """Something that a weak reference can point to."""


def test_no_reference_leads_from_what_is_kept_to_the_node_that_keeps_it() -> None:
    net = nn.Tanh()  # keeps its result
    gc.collect()
    gc.disable()
    try:
        for size in (4, SIZE):
            with lograd.nn.saved_activations(net, 8):
                y, watched = net(numbers(size, size).requires_grad_()), _Watched()
            assert y.grad_fn is not None
            y.grad_fn.metadata["watched"] = watched
            alive = weakref.ref(watched)
            del y, watched
            assert alive() is None
    finally:
        gc.enable()


class Checkpointed(nn.Module):
    """A network that is computed again in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    net, x = Checkpointed(reentrant), numbers(2048, 64).requires_grad_()
    found = []
    for bits in (None, 8):
        with nullcontext() if bits is None else lograd.nn.saved_activations(net, bits):
            net(x).square().sum().backward()
        found.append([parameter.grad for parameter in net.parameters()])
        net.zero_grad()
    for plain, other in zip(*found, strict=True):
        assert float((plain - other).norm() / plain.norm()) < 0.02


def test_compiled_code_keeps_tensors_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    x = numbers(2048, 64)
    expected = gradients(net, x)
    with lograd.nn.saved_activations(net, 4):
        found = gradients(torch.compile(net, backend="aot_eager"), x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_second_derivatives() -> None:
    net, x = Of(lambda x: F.gelu(x).square()), signed().requires_grad_()

    def second() -> Tensor:
        (first,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    expected = second()
    with lograd.nn.saved_activations(net, 8):
        found = second()
    assert float((found - expected).norm() / expected.norm()) < 0.1
