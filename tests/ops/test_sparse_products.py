"""The sparse products against a float64 oracle with a computed bound, for any geometry, layout and sparsity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from bits import MACHINES, assert_all_same_bits, layouts, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lograd import native, ops

KEY = torch.tensor([7, 3])
ALL = (True, True, True)
NEEDS = [
    ALL,
    (True, False, False),
    (False, True, False),
    (True, True, False),
    (False, False, True),
    (False, True, True),
]
native_only = pytest.mark.skipif(not native.status().available, reason="plain PyTorch has the dense products")


@dataclass(frozen=True)
class Layer:
    """A convolution, or a linear layer where there is no geometry."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int] | None = None

    def tensors(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """A gradient of lognormal magnitudes, an input and a weight."""
        generator = torch.Generator().manual_seed(seed)
        x, weight = torch.randn(self.x, generator=generator), torch.randn(self.weight, generator=generator)
        shape = self.forward(x.to("meta"), weight.to("meta")).shape
        g = torch.randn(shape, generator=generator).mul(2).exp() * torch.randn(shape, generator=generator).sign()
        return g, x, weight

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.geometry is None:
            return torch.nn.functional.linear(x, weight)
        stride, padding, dilation, groups = self.geometry
        return torch.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)

    def sparse(
        self, g: Tensor, x: Tensor, weight: Tensor, threshold: Tensor | None = None,
        need: tuple[bool, bool, bool] = ALL,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if self.geometry is None:
            return ops.sparse_linear_backward(g, x, weight, threshold, KEY, need)
        return ops.sparse_convolution_backward(g, x, weight, threshold, KEY, self.geometry, need)

    def dense(self, g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By PyTorch, in the type of the tensors."""
        if self.geometry is None:
            rows, columns = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
            return (rows @ weight).view(x.shape), rows.t() @ columns, rows.sum(0)
        stride, padding, dilation, groups = self.geometry
        return torch.ops.aten.convolution_backward.default(
            g, x, weight, [weight.shape[0]], stride, padding, dilation, False, [0] * len(stride), groups, [True] * 3
        )

    def summands(self) -> tuple[int, int]:
        """At most so many products are added up for an element of dX, and of dW or the bias."""
        taps = int(torch.Size(self.weight[2:]).numel())
        g = self.forward(torch.empty(self.x, device="meta"), torch.empty(self.weight, device="meta"))
        return self.weight[0] * taps, g.numel() // self.weight[0] if self.weight[0] else 0


def assert_within_bound(
    layer: Layer, found: tuple[Tensor, ...], g: Tensor, x: Tensor, weight: Tensor, need: tuple[bool, ...] = ALL,
    rounding: float = 0.0,
) -> None:  # fmt: skip
    """|error| <= gamma_n sum |a| |b| for n summands, gamma_n = n u / (1 - n u), and a rounding of the result."""
    exact = layer.dense(g.double(), x.double(), weight.double())
    size = layer.dense(g.double().abs(), x.double().abs(), weight.double().abs())
    for_x, for_w = layer.summands()
    for result, truth, magnitude, n, wanted in zip(
        found, exact, size, (for_x, for_w, for_w), need, strict=False
    ):  # fmt: skip
        if not wanted:
            assert result.numel() == 0
            continue
        unit = (n + 2) * 2.0**-24
        bound = unit / (1 - unit) * magnitude + rounding * truth.abs() + 1e-40
        excess = ((result.double() - truth).abs() / bound).max().item() if result.numel() else 0.0
        assert result.shape == truth.shape
        assert excess <= 1, f"{layer}: {excess:.3g} times the bound"


def with_zeros(g: Tensor, share: float, seed: int = 1) -> Tensor:
    drop = torch.rand(g.shape, generator=torch.Generator().manual_seed(seed)) < share
    return g.masked_fill(drop, 0.0)


@st.composite
def convolutions(draw: st.DrawFn) -> Layer:
    dimensions = draw(st.sampled_from([1, 2, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, outputs = (
        groups * draw(st.sampled_from(sizes)) for sizes in ([1, 3, 8, 16, 35, 70], [1, 5, 16, 66, 130])
    )
    kernel, size, stride, padding, dilation = [], [], [], [], []
    for _ in range(dimensions):
        kernel.append(draw(st.sampled_from([1, 2, 3, 5, 7, 9])))
        stride.append(draw(st.integers(1, 3)))
        padding.append(draw(st.integers(0, 3)))
        dilation.append(draw(st.sampled_from([1, 1, 2])))
        least = max(1, dilation[-1] * (kernel[-1] - 1) + 1 - 2 * padding[-1])
        size.append(least + draw(st.integers(0, 12)))
    batch = draw(st.sampled_from([1, 2, 5]))
    geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return Layer((batch, channels, *size), (outputs, channels // groups, *kernel), geometry)


@st.composite
def linears(draw: st.DrawFn) -> Layer:
    leading = draw(st.lists(st.integers(1, 9), max_size=3))
    inputs, outputs = draw(st.integers(1, 150)), draw(st.integers(1, 150))
    return Layer((*leading, inputs), (outputs, inputs))


def arranged(x: Tensor, last: bool) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x


@pytest.mark.parametrize(("isa", "threads"), MACHINES)
@settings(max_examples=60)
@given(
    layer=st.one_of(convolutions(), convolutions(), linears()), zeros=st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0]),
    last=st.tuples(st.booleans(), st.booleans(), st.booleans()), need=st.sampled_from(NEEDS), prunes=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_within_the_bound_of_the_float64_product(
    isa: str,
    threads: int,
    layer: Layer,
    zeros: float,
    last: tuple[bool, bool, bool],
    need: Any,
    prunes: bool,
    seed: int,
) -> None:
    g, x, weight = (arranged(tensor, where) for tensor, where in zip(layer.tensors(seed), last, strict=True))
    g = with_zeros(g, zeros)
    threshold = torch.tensor(3.0) if prunes else None
    with machine(isa, threads):
        found = layer.sparse(g, x, weight, threshold, need)
    pruned, counts = ops.stochastic_prune(g, 3.0, KEY, counted=True) if prunes else (g, _counts(g))
    assert torch.equal(found[3], counts)
    assert_within_bound(layer, found, pruned, x, weight, need)


def _counts(g: Tensor) -> Tensor:
    zeros = int((g == 0).sum())
    return torch.tensor([zeros, int(g.isnan().sum()), 0, zeros])


# Shapes that are cut in every way: several bands, blocks, strips, runs, sets and tiles; without zeros their
# lists do not fit in 2 MB, so that bands take turns.
LARGE = {
    "linear": Layer((1100, 200), (1100, 200)),
    "wide linear": Layer((130, 70), (4300, 70)),
    "images by row": Layer((3, 40, 40, 40), (70, 40, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    "strided": Layer((5, 36, 41, 39), (70, 36, 3, 3), ((2, 2), (1, 1), (1, 1), 1)),
    "rows that are cut": Layer((3, 40, 3, 700), (24, 40, 3, 5), ((1, 1), (1, 2), (1, 1), 1)),
    "rows that are cut, tall kernel": Layer((4, 40, 5, 300), (24, 40, 3, 1), ((1, 1), (1, 0), (1, 1), 1)),
    "sequence": Layer((2, 40, 3000), (24, 40, 9), ((1,), (4,), (1,), 1)),
    "small images": Layer((150, 40, 4, 4), (600, 40, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    "one tap": Layer((3, 40, 30, 30), (50, 40, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
    "one tap, strided": Layer((12, 40, 30, 30), (50, 40, 1, 1), ((2, 2), (0, 0), (1, 1), 1)),
    "groups": Layer((4, 96, 20, 20), (192, 12, 3, 3), ((1, 1), (1, 1), (1, 1), 8)),
    "seven taps": Layer((6, 24, 50, 50), (40, 24, 7, 7), ((2, 2), (3, 3), (1, 1), 1)),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_large_shapes(name: str, last: bool, zeros: float) -> None:
    layer = LARGE[name]
    g, x, weight = (arranged(tensor, last) for tensor in layer.tensors())
    g = with_zeros(g, zeros)
    assert_within_bound(layer, layer.sparse(g, x, weight), g, x, weight)


@native_only
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("isa", ["generic", native.status().isa])
def test_pruning_on_the_way_is_pruning_first(name: str, last: bool, isa: str) -> None:
    # Large enough for random numbers whose upper bits do not decide.
    layer = LARGE[name]
    g, x, weight = (arranged(tensor, last) for tensor in layer.tensors())
    with machine(isa, 1):
        assert_pruned_alike(layer, g, x, weight, 20.0)


@native_only
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)], ids=str)
def test_random_numbers_of_a_permuted_gradient_belong_to_places_in_memory(order: tuple[int, ...]) -> None:
    layer = SMALL["linear"]
    g, x, weight = layer.tensors()
    back = [order.index(dim) for dim in range(3)]
    assert_pruned_alike(layer, g.permute(order).contiguous().permute(back), x, weight, 2.0)


@native_only
@pytest.mark.parametrize("threshold", [1e-36, 1e-40])
def test_pruning_by_a_threshold_that_has_no_inverse(threshold: float) -> None:
    layer = SMALL["conv2d"]
    g, x, weight = layer.tensors()
    assert_pruned_alike(layer, g * threshold, x, weight, threshold)


def assert_pruned_alike(layer: Layer, g: Tensor, x: Tensor, weight: Tensor, threshold: float) -> None:
    pruned, counts = ops.stochastic_prune(g, threshold, KEY, counted=True)
    found = layer.sparse(g, x, weight, torch.tensor(threshold))
    assert_all_same_bits(found[:3], layer.sparse(pruned, x, weight)[:3])
    assert torch.equal(found[3], counts)


@native_only
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("threshold", [torch.tensor(20.0), None])
def test_equal_bits_for_any_number_of_threads(name: str, last: bool, threshold: Tensor | None) -> None:
    layer = LARGE[name]
    g, x, weight = (arranged(tensor, last) for tensor in layer.tensors())
    with machine(native.status().isa, 1):
        expected = layer.sparse(g, x, weight, threshold)
    for threads in (2, 3, 5):
        with machine(native.status().isa, threads):
            assert_all_same_bits(layer.sparse(g, x, weight, threshold), expected)


SMALL = {
    "linear": Layer((3, 5, 24), (17, 24)),
    "conv1d": Layer((3, 16, 20), (17, 16, 3), ((1,), (1,), (1,), 1)),
    "conv2d": Layer((3, 16, 9, 10), (17, 16, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prunes", [False, True])
def test_16_bit_types(name: str, dtype: torch.dtype, prunes: bool) -> None:
    layer = SMALL[name]
    g, x, weight = (tensor.to(dtype) for tensor in layer.tensors())
    found = layer.sparse(g, x, weight, torch.tensor(3.0) if prunes else None)
    pruned = ops.stochastic_prune(g, 3.0, KEY) if prunes else g
    assert all(result.dtype == dtype for result in found[:3])
    # Dense products in these types may round sums, too; ours round the result once.
    rounding = 1.5 * torch.finfo(dtype).eps
    if native.status().available:
        assert_within_bound(layer, found, pruned, x, weight, rounding=rounding)


@pytest.mark.parametrize("kind", ["contiguous", "channels_last", "transposed", "gaps", "expanded", "unaligned"])
@pytest.mark.parametrize("prunes", [False, True])
def test_any_layout(kind: str, prunes: bool) -> None:
    layer = SMALL["conv2d"]
    g, x, weight = layer.tensors()
    g, x = layouts(g)[kind], layouts(x)[kind]
    found = layer.sparse(g, x, weight, torch.tensor(3.0) if prunes else None)
    pruned = ops.stochastic_prune(g, 3.0, KEY) if prunes else g
    assert_within_bound(layer, found, pruned, x, weight)
    expected = torch.channels_last if kind == "channels_last" else torch.contiguous_format
    assert found[0].is_contiguous(memory_format=expected)
    rows = Layer((9, 24), (17, 24))
    g, x, weight = rows.tensors()
    assert_within_bound(rows, rows.sparse(g.t().contiguous().t(), x[:, ::1], weight.t().contiguous().t()), g, x, weight)


@pytest.mark.parametrize("shape", [(0, 16, 9, 9), (2, 16, 9, 9)])
def test_empty(shape: tuple[int, ...]) -> None:
    layer = Layer(shape, (17, 16, 3, 3), ((1, 1), (1, 1), (1, 1), 1))
    g, x, weight = layer.tensors()
    d_x, d_weight, d_bias, counts = layer.sparse(torch.zeros_like(g), x, weight, torch.tensor(1.0))
    assert d_x.shape == x.shape
    assert not any(result.any() for result in (d_x, d_weight, d_bias))
    assert counts.tolist() == [g.numel(), 0, 0, g.numel()]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("place", ["g", "x", "weight"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_passes_through(name: str, place: str, value: float) -> None:
    layer = SMALL[name]
    tensors = dict(zip(("g", "x", "weight"), layer.tensors(), strict=True))
    tensors["g"] = with_zeros(tensors["g"], 0.8)
    tensors[place].view(-1)[tensors[place].numel() // 2] = value
    found = layer.sparse(*tensors.values())
    # A tap on the padding multiplies a zero that a dense product may leave out, so ours may have more of them.
    exact = layer.dense(*(tensor.double() for tensor in tensors.values()))
    for result, truth in zip(found, exact, strict=False):
        assert not result[~truth.isfinite()].isfinite().any()
    if place == "g":
        assert int(found[3][1]) == int(value != value)
    kept = layer.sparse(*tensors.values(), torch.tensor(3.0))
    pruned = ops.stochastic_prune(tensors["g"], 3.0, KEY)
    exact = layer.dense(pruned.double(), tensors["x"].double(), tensors["weight"].double())
    for result, truth in zip(kept, exact, strict=False):
        assert not result[~truth.isfinite()].isfinite().any()
