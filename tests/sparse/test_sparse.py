"""lograd.sparse: functions and modules with a sparse backward, and the choice between the two ways."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bits import assert_all_same_bits
from torch import Tensor, nn

import lograd
from lograd import native, ops
from lograd.engine.backends import choice as choosing
from lograd.engine.backends.choice import DENSE, SPARSE, Times, timed
from lograd.engine.backends.sparse import unserved, unserved_here
from lograd.errors import LogradError
from lograd.sparse import functional

Call = Any

CALLS: dict[str, tuple[Call, Call, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": (functional.linear, F.linear, (3, 4, 20), (9, 20), {}),
    "conv1d": (functional.conv1d, F.conv1d, (3, 8, 15), (9, 8, 3), {"stride": 2, "padding": 1}),
    "conv2d": (functional.conv2d, F.conv2d, (2, 4, 5, 4), (6, 2, 3, 3), {"padding": (1, 2), "groups": 2}),
    "one sample": (functional.conv2d, F.conv2d, (8, 7, 6), (9, 8, 3, 3), {"dilation": 2}),
}


def operands(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    _, _, x, weight, _ = CALLS[name]
    shapes = (x, weight, weight[:1])
    return tuple(torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("name", CALLS)
def test_gradcheck_with_pruning_off(name: str) -> None:
    ours, _, _, _, options = CALLS[name]
    assert torch.autograd.gradcheck(lambda *tensors: ours(*tensors, **options), operands(name, torch.float64))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("threshold", [None, 0.0, 0.7])
def test_gradients_are_those_of_the_pruned_gradient(name: str, threshold: float | None) -> None:
    ours, theirs, _, _, options = CALLS[name]
    tensors = operands(name)
    y = ours(*tensors, **options, threshold=threshold, seed=5)
    expected = theirs(*tensors, **options)
    assert torch.equal(y, expected)
    g = torch.randn_like(y)
    pruned = g if not threshold else ops.stochastic_prune(g, threshold, 5)
    found = torch.autograd.grad(y, tensors, g)
    for result, truth in zip(found, torch.autograd.grad(expected, tensors, pruned), strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-5, atol=1e-5)


def test_only_what_is_needed() -> None:
    x, weight, bias = operands("conv2d")
    y = functional.conv2d(x.detach(), weight, bias.detach(), 1, (1, 2), 1, 2)
    y.sum().backward()  # the gradient is an expanded scalar
    assert weight.grad is not None
    assert x.grad is None
    frozen = functional.conv2d(x, weight.detach(), None, 1, (1, 2), 1, 2)
    frozen.sum().backward()
    assert x.grad is not None


def test_no_second_derivative() -> None:
    x, weight, bias = operands("linear")
    with pytest.raises(LogradError, match="differentiated again"):
        torch.autograd.grad(functional.linear(x, weight, bias).square().sum(), x, create_graph=True)


def test_a_bad_threshold_is_refused() -> None:
    x, weight, _ = operands("linear")
    with pytest.raises(lograd.InvalidValue, match="threshold"):
        functional.linear(x, weight, threshold=-1.0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d"])
def test_compiled_whole(name: str) -> None:
    ours, _, _, _, options = CALLS[name]
    tensors = operands(name)
    threshold, key = torch.tensor(0.7), torch.tensor([3, 0])

    def loss(*arguments: Tensor) -> Tensor:
        result: Tensor = ours(*arguments, **options, threshold=threshold, seed=key).square().sum()
        return result

    expected = torch.autograd.grad(loss(*tensors), tensors)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*tensors), tensors)
    assert_all_same_bits(found, expected)


# --------------------------------------------------------------------------------------------------------- the modules

MODULES: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "Linear": (lograd.sparse.Linear, nn.Linear, (32, 48), {}, (64, 32)),
    "Conv1d": (lograd.sparse.Conv1d, nn.Conv1d, (16, 24, 3), {"padding": "same"}, (8, 16, 50)),
    "Conv2d": (lograd.sparse.Conv2d, nn.Conv2d, (16, 24, 3), {"padding": 1, "padding_mode": "circular"}, (8, 16, 9, 9)),
    "even kernel": (lograd.sparse.Conv2d, nn.Conv2d, (16, 24, 4), {"padding": "same", "bias": False}, (8, 16, 9, 9)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch says that it copies
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_that_of_torch_with_a_sparse_backward(name: str) -> None:
    ours_class, torch_class, arguments, options, shape = MODULES[name]
    ours, theirs = ours_class(*arguments, **options, sparsity=0), torch_class(*arguments, **options)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape)
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    y.backward(g)
    expected.backward(g)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert "sparsity=0" in repr(ours)
    assert isinstance(copy.deepcopy(ours), torch_class)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sparsity_asked_for_is_the_one_that_results(dtype: torch.dtype) -> None:
    layer = lograd.sparse.Linear(32, 256, sparsity=0.85, seed=1).to(dtype)
    layer.threshold, shares = layer.threshold.float(), []
    for _ in range(4):
        y = layer(torch.randn(256, 32, dtype=dtype))
        g = (torch.randn(y.shape) * torch.randn(y.shape).exp()).to(dtype)
        y.backward(g)
        pruned = ops.stochastic_prune(g, layer.threshold, layer.key)
        shares.append(float((pruned == 0).float().mean()))
    assert layer.passes == 4
    # The threshold is that of each gradient itself: 65536 elements, a deviation of sqrt(.85 .15 / 65536).
    assert all(abs(share - 0.85) < 0.01 for share in shares), shares


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
def test_modules_learn_when_compiled() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        lograd.sparse.Conv2d(8, 16, 3, padding=1, sparsity=0.8), nn.ReLU(inplace=True), nn.Flatten(),
        lograd.sparse.Linear(16 * 36, 4, sparsity=0.5),
    )  # fmt: skip
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(32, 8, 6, 6), torch.randint(4, (32,))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert int(model[0].passes) == 30
    assert float(model[0].threshold) > 0


def test_a_gradient_without_a_law_keeps_the_threshold() -> None:
    layer = lograd.sparse.Linear(4, 4, sparsity=0.5)
    layer(torch.randn(8, 4)).sum().backward()
    before = float(layer.threshold)
    layer(torch.randn(8, 4)).backward(torch.zeros(8, 4))
    assert float(layer.threshold) == before > 0


# ---------------------------------------------------------------------------------------------------------- the choice


def test_reasons_to_stay_dense() -> None:
    image = torch.zeros(2, 64, 8, 8)
    if native.status().available:
        assert unserved_here(image) is None
    else:
        assert "native" in str(unserved_here(image))
    assert unserved((32, 64, 3, 3)) is None
    assert unserved((5, 3)) is None
    assert "depthwise" in str(unserved((64, 1, 3, 3), groups=64))
    assert "transposed" in str(unserved((32, 64, 3, 3), transposed=True))
    assert "three dimensions" in str(unserved((2, 64, 3, 3, 3)))
    assert "3 input channels" in str(unserved((32, 3, 3, 3)))
    assert "meta" in str(unserved_here(image.to("meta")))
    assert "float64" in str(unserved_here(image.double()))


class Clock:
    """Time that passes only where a way says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(choosing.time, "perf_counter", lambda: self.now)

    def way(self, *milliseconds: float) -> Call:
        """A way that takes so long, one call after the other, and then always as long as the last one."""
        left = list(milliseconds)

        def call() -> None:
            self.calls += 1
            self.now += 1e-3 * (left.pop(0) if len(left) > 1 else left[0])

        return call


def test_the_smallest_time_counts_but_not_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed(dense=clock.way(1.0, 30.0, 20.0), sparse=clock.way(1.0, 3.0, 4.0))
    assert times[:2] == pytest.approx((20.0, 3.0))
    assert times.integer is None
    assert clock.calls == 6


def test_short_ways_are_timed_often_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert timed(dense=clock.way(*[0.3] * 10, 0.1), sparse=clock.way(0.2))[:2] == pytest.approx((0.1, 0.2))
    assert 40 < clock.calls < 2 * choosing.MOST_TURNS
    clock.calls = 0
    timed(dense=clock.way(0.0), integer=clock.way(0.0))
    assert clock.calls == 2 * (choosing.MOST_TURNS + 1)


def test_sparse_wins_by_a_margin() -> None:
    assert Times(1.0, 0.9).fastest == SPARSE
    assert Times(1.0, 0.97).fastest == DENSE
    assert Times(1.0, 1.1).fastest == DENSE
