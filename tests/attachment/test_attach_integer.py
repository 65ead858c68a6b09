"""Integer products under attach: the values of the simulated ones, the same counts, codes in memory, and a choice."""

from dataclasses import replace

import pytest
import torch
from everyday import daily
from networks import Conv1D
from torch import nn

import lograd
from lograd import LayerPlan, Plan
from lograd.engine.backends import choice as choosing
from lograd.engine.backends import integer
from lograd.engine.backends.choice import DENSE, INTEGER, SPARSE
from lograd.treatments import Integers, Interval, ProductPlan, Prune, Quantize, StatQuant, recipe

pytestmark = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")


def last(x):
    return x.to(memory_format=torch.channels_last)


def layers():
    return {
        "linear": (nn.Linear(96, 80), torch.randn(70, 96).relu()),
        "linear of a sequence": (nn.Linear(72, 33, bias=False), torch.randn(5, 9, 72)),
        "linear, column-major": (nn.Linear(72, 17), torch.randn(72, 50).t()),
        "Conv1D": (Conv1D(40, 72), torch.randn(5, 9, 72)),
        "conv2d": (nn.Conv2d(16, 20, 3, padding=1), torch.randn(4, 16, 11, 13)),
        "conv2d behind a ReLU": (nn.Conv2d(64, 20, 1), torch.randn(4, 64, 5, 7).relu()),
        "conv2d channels last, stride": (last(nn.Conv2d(16, 24, 3, 2, 1)), last(torch.randn(4, 16, 12, 12))),
        "conv2d grouped, dilated": (nn.Conv2d(32, 24, 3, dilation=2, groups=2, bias=False), torch.randn(3, 32, 9, 9)),
        "conv2d one sample": (nn.Conv2d(8, 6, 5), torch.randn(8, 9, 9)),
        "conv1d": (nn.Conv1d(16, 24, 5, padding=2, stride=2), torch.randn(3, 16, 30)),
    }


def plan(name):
    return Plan(every=LayerPlan.of(recipe(name)))


def per_tensor(bits, *gradients):
    """One scale for each operand, so that nothing is folded, and a gradient of its own for each product."""
    gradients = gradients or [Integers(width, rounding="stochastic") for width in (bits, 8)]
    return planned(Integers(bits), Integers(bits), *gradients)


def met_by(*gradients):
    """A scale for each output of the weights, which is folded into the gradient in dX."""
    return planned(Integers(4, ranges="hindsight"), Integers(4, "channel", symmetric=True), *gradients)


def planned(activations, weights, for_input, for_weight=None):
    return Plan(
        every=LayerPlan(
            ProductPlan(activations=(activations,), weights=(weights,)),
            ProductPlan((for_input,), weights=(weights,)),
            ProductPlan((for_weight or for_input,), activations=(activations,)),
        )
    )


WHOLE_METHODS = [
    "int4-full", "int6-full-po2", "luq4-hindsight", "fqt5-psq", "fqt5-bhq", "prune50+luq4", "int6-full-rows",
]  # fmt: skip
PLANS = {
    **{name: plan(name) for name in WHOLE_METHODS},
    "per tensor, gradients apart": per_tensor(5),
    "pruned": plan("prune50+int6-full"),
    "interval, folded": met_by(Interval(4)),
    "per sample, folded": met_by(StatQuant(6, "psq"), StatQuant(5, "ptq")),
    "mixed samples, folded": met_by(StatQuant(4, "bhq"), Integers(8, rounding="stochastic")),
    "formats with statistics": per_tensor(8, Quantize("int6"), Quantize("1-3-0", "2^2", "nearest")),
}


def results(layer, x, plan, backend, steps=3):
    """Output and gradients of the last of some passes, counts, backends in force, and the explanation."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with lograd.attach(layer, plan, seed=3, backend=backend) as handle:
        for _ in range(steps):
            x.grad = None
            layer.zero_grad()
            y = layer(x)
            y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
            handle.step()
        found = [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]
        modes = [choice.mode for choice in handle.layers[""].choices.values()]
        return found, handle.counters(), modes, str(handle.explain())


BLOCKS = {name: plan(name) for name in ("mxfp4-full", "nvfp4-full")}
WHOLE = {
    "linear of whole blocks": (nn.Linear(96, 128), torch.randn(64, 96)),
    "Conv1D of whole blocks": (Conv1D(64, 160), torch.randn(2, 96, 160).relu()),
    "column-major, whole blocks": (nn.Linear(72, 64, bias=False), torch.randn(72, 128).t()),
}
CASES = [*((kind, name) for kind in layers() for name in PLANS), *((kind, name) for kind in WHOLE for name in BLOCKS)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_integer_products_are_the_simulated_ones_up_to_rounding(kind, name):
    torch.manual_seed(0)
    layer, x = (layers() | WHOLE)[kind]
    made = (PLANS | BLOCKS)[name]
    dense, dense_counts, none, simulated = results(layer, x, made, "dense")
    found, counts, modes, words = results(layer, x, made, "integer")
    assert not none
    assert set(modes) == {INTEGER}
    assert "bits are simulated: dense products asked for" in simulated
    assert "bits are real" in words
    assert "simulated" not in words
    if name in PLANS:
        assert counts == dense_counts
    for site, count in counts.sites[""].items():  # zeros of blocks under a Hadamard transform are those of its codes
        other = dense_counts.sites[""][site]
        assert (count.treated, count.elements, count.clipped) == (other.treated, other.elements, other.clipped)
    for a, b in zip(dense, found, strict=True):
        assert a.stride() == b.stride()
        assert float((a - b).abs().max()) <= 3e-6 * float(a.abs().max())


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_that_are_not_of_whole_blocks_are_dense_where_they_are_transformed(name):
    torch.manual_seed(0)
    layer, x = layers()["linear"]
    dense, dense_counts, _, _ = results(layer, x, BLOCKS[name], "dense")
    found, counts, _, words = results(layer, x, BLOCKS[name], "integer")
    assert "dense products, as sums are not of whole blocks of the Hadamard transform" in words
    assert f"bits are real in Y {'and dX ' if name == 'nvfp4-full' else ''}only" in words
    assert counts == dense_counts
    for a, b in zip(dense, found, strict=True):
        assert float((a - b).abs().max()) <= 3e-6 * float(a.abs().max())


@pytest.mark.parametrize("operand", ["activations", "weights", "gradient"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_is_not_finite_makes_its_product_dense_and_is_counted(name, operand):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(64, 128), torch.randn(64, 64), torch.randn(64, 128)
    with torch.no_grad():
        {"activations": x, "weights": layer.weight, "gradient": g}[operand][3, 5] = float("inf")
    found = []
    for backend in ("dense", "integer"):
        x = x.detach().requires_grad_()
        layer.zero_grad()
        with lograd.attach(layer, BLOCKS[name], backend=backend) as handle:
            y = layer(x)
            y.backward(g)
            counts = handle.counters().sites[""]
        found.append([y.detach(), x.grad, layer.weight.grad, layer.bias.grad])
    assert all(bool(count.fell_back) == site.endswith(operand) for site, count in counts.items())
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())


@pytest.mark.parametrize("name", ["int6-full", "int4-full", "fqt5-psq"])
@pytest.mark.parametrize("frozen", ["weight", "input"])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_only_what_is_needed(kind, frozen, name):
    torch.manual_seed(0)
    layer, x = layers()[kind]
    x.requires_grad_(frozen == "weight")
    layer.weight.requires_grad_(frozen == "input")
    found = {}
    for backend in ("dense", "integer", "integer, then dense"):
        with lograd.attach(layer, plan(name), seed=3, backend=backend.partition(",")[0]) as handle:
            layer.zero_grad()
            x.grad = None
            y = layer(x)
            if "then" in backend:
                for choice in handle.layers[""].choices.values():
                    choice.tensor[choosing.MODE] = DENSE
            y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
            found[backend] = [one.grad for one in (x, layer.weight, layer.bias) if one.grad is not None]
    for one in found.values():
        assert len(one) == 2
        for a, b in zip(found["dense"], one, strict=True):
            assert float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())


@pytest.mark.parametrize(
    "name",
    daily(
        ["int4-full", "int4-full-po2", "luq4", "luq4-smp2", "fqt5-ptq", "fqt5-psq", "fqt4-bhq", "mxfp4-full"],
        ["int4-full", "fqt4-bhq"],
    ),
)
def test_gradients_of_integer_products_are_unbiased_over_seeds(name):
    """Their mean over 300 draws is what the gradient as it is gives, in units of the mean's own deviation."""
    torch.manual_seed(0)
    layer, x, g = nn.Linear(64, 64), torch.randn(64, 64), torch.randn(64, 64)
    made = plan(name).every
    same = LayerPlan(
        made.output,
        ProductPlan((), () if name == "mxfp4-full" else made.input_gradient.weights),
        ProductPlan((), (), () if name == "mxfp4-full" else made.weight_gradient.activations),
    )
    found = {}
    for backend, of, draws in (("dense", same, 1), ("integer", made, 300)):
        x = x.detach().requires_grad_()
        with lograd.attach(layer, Plan(every=of), seed=7, backend=backend) as handle:
            found[backend] = []
            for _ in range(draws):
                found[backend].append(torch.cat(torch.autograd.grad(layer(x), [x, layer.weight], g)))
                handle.step()
    drawn = torch.stack(found["integer"])
    z = (drawn.mean(0) - found["dense"][0]) / (drawn.std(0) / len(drawn) ** 0.5).clamp(min=1e-5)
    assert 0.8 < float(z.square().mean()) < 1.2
    assert float(z.abs().max()) < 6


def saved_bytes(model, x):
    """Bytes that autograd keeps for the backward, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum().backward()
    return kept.values()


@pytest.mark.parametrize(
    ("name", "saved", "share"),
    [
        ("int8-full", None, 0.27),
        ("int4-full", None, 0.27),
        ("int8-full", 4, 0.27),
        ("int4-full", 4, 0.15),
        ("luq4", 8, 0.15),
        ("int4wa-clips", 8, 0.65),  # and x, for the gradient of its clip
    ],
)
def test_codes_are_what_is_saved(name, saved, share):
    model, x = (
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)),
        torch.randn(8, 16, 16, 16),
    )
    plain = sum(size for size, _ in saved_bytes(model, x))
    with lograd.attach(model, replace(plan(name), saved=saved), backend="integer"):
        kept = list(saved_bytes(model, x))
    assert sum(size for size, _ in kept) < share * plain, "codes of weights included"
    assert all(dtype == torch.uint8 for size, dtype in kept if size > 1000)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("operand", ["activations", "weights", "gradient"])
@pytest.mark.parametrize("name", ["int4-full", "luq4-hindsight", "fqt5-bhq", "interval, folded"])
def test_an_operand_that_is_not_finite_makes_its_product_dense_and_is_counted(name, operand, value):
    torch.manual_seed(0)
    layer, x, g = nn.Linear(96, 40), torch.randn(30, 96), torch.randn(30, 40)
    with torch.no_grad():
        {"activations": x, "weights": layer.weight, "gradient": g}[operand][3, 5] = value
    x.requires_grad_()
    with lograd.attach(layer, PLANS[name], backend="integer") as handle:
        y = layer(x)
        y.backward(g)
        counts = handle.counters().sites[""]
    fell_back = [site for site, count in counts.items() if count.fell_back]
    assert fell_back == [site for site in counts if site.rpartition(".")[2] == operand]
    expected = torch.addmm(layer.bias, x, layer.weight.t())
    if operand == "gradient":
        assert y.isfinite().all()
        bad = ~x.grad.isfinite()
        assert bad[3].all(), "the row that the element is multiplied into"
        assert not bad[torch.arange(30) != 3].any()
        assert not layer.bias.grad[5].isfinite()
    else:
        assert torch.equal(y.isfinite(), expected.isfinite()), "the output is that of the tensor as it is"
        assert not (layer.weight.grad if operand == "activations" else x.grad).isfinite().any()


# -- the choice --


@pytest.fixture
def times(monkeypatch):
    """Instead of a clock: what is faster is said here."""
    said = {"dense": 2.0, "sparse": 1.5, "integer": 1.0, "asked": []}

    def faster(**ways):
        said["asked"].append(sorted(ways))
        for way in ways.values():
            way()
        return choosing.Times(**{name: said[name] for name in ways})

    monkeypatch.setattr(integer, "timed", faster)
    monkeypatch.setattr(choosing, "LEAST_WORK", 0)
    return said


@pytest.mark.parametrize("winner", [DENSE, INTEGER])
def test_the_faster_way_is_taken_and_explained(times, winner):
    if winner == DENSE:
        times["dense"] = 0.5
    layer, x = nn.Linear(96, 40), torch.randn(30, 96)
    _, counts, modes, words = results(layer, x, plan("int4-full"), "auto")
    _, dense_counts, _, _ = results(layer, x, plan("int4-full"), "dense")
    assert modes == [winner, winner, winner]
    assert times["asked"] == [["dense", "integer"]] * 3, "for Y, dX and dW"
    densely = f"dense products of the same treated operands {times['dense']:.2f} ms"
    assert f"Y: {choosing.NAMES[winner]} products (integer 1.00 ms, {densely})" in words
    assert ("bits are real in what is saved only" if winner == DENSE else "bits are real") in words
    assert counts == dense_counts, "timing leaves no trace"


def test_three_ways_are_timed_where_a_gradient_is_pruned_and_rounded(times):
    layer, x = nn.Linear(96, 40), torch.randn(30, 96)
    for sparse, winner in ((1.5, INTEGER), (0.5, SPARSE)):
        times["sparse"] = sparse
        _, _, modes, words = results(layer, x, PLANS["pruned"], "auto")
        assert modes == [INTEGER, winner, winner]
        assert times["asked"][-1] == ["dense", "integer", "sparse"]
        assert f"integer 1.00 ms, sparse {sparse:.2f} ms at" in words


def test_each_product_has_the_backend_that_its_plan_asks_for():
    made = LayerPlan.of(recipe("int6-full"))
    made = LayerPlan(made.output.then(ProductPlan(backend="dense")), made.input_gradient, made.weight_gradient)
    _, _, modes, words = results(nn.Linear(96, 40), torch.randn(30, 96), Plan(every=made), "integer")
    assert modes == [DENSE, INTEGER, INTEGER]
    assert "bits are real in what is saved and dX and dW only" in words


REASONS = {
    "in dX is not rounded to levels": (met_by(Prune(0.5), Integers(8, rounding="stochastic")), [DENSE, INTEGER]),
    "the gradient is not rounded to levels": (met_by(Quantize("1-5-2")), [DENSE]),
    "dX sums over the scales of the weights, which the gradient cannot be multiplied by": (
        met_by(Quantize("int8")),
        [DENSE],
    ),
    "the gradient in dW has a range for each sample": (met_by(StatQuant(8, "psq")), [INTEGER, DENSE]),
    "in dW has a range for each sample, and dW sums over samples": (
        met_by(StatQuant(8, "psq"), StatQuant(7, "bhq")),
        [INTEGER, DENSE],
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_plan_whose_gradient_is_not_coded_keeps_codes_and_multiplies_densely(reason):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.randn(30, 96)
    made, expected = REASONS[reason]
    dense, counts, _, _ = results(layer, x, made, "dense")
    found, others, modes, words = results(layer, x, made, "integer")
    assert modes == [INTEGER, *expected]
    assert reason in words
    assert counts == others
    for a, b in zip(dense, found, strict=True):
        assert float((a - b).abs().max()) <= 3e-6 * float(a.abs().max())


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (lambda: nn.ConvTranspose2d(16, 16, 3), (2, 16, 5, 5), "transposed"),
        (lambda: nn.Conv3d(8, 8, 3), (2, 8, 5, 5, 5), "convolutions over three dimensions"),
        (lambda: nn.Conv2d(8, 8, 3, groups=8), (2, 8, 5, 5), "depthwise"),
        (lambda: nn.Conv2d(3, 8, 5), (2, 3, 7, 7), "3 input channels in a group"),
        (lambda: nn.Linear(16, 40), (8, 16), "each output sums over 16 products"),
    ],
)
def test_what_has_no_kernel_is_simulated_and_says_why(layer, x, reason):
    torch.manual_seed(0)
    layer, x = layer(), torch.randn(x)
    dense, counts, _, _ = results(layer, x, plan("int6-full"), "dense")
    auto, others, modes, words = results(layer, x, plan("int6-full"), "integer")
    assert modes == []
    assert f"bits are simulated: {reason}" in words
    assert counts == others
    assert all(torch.equal(a, b) for a, b in zip(dense, auto, strict=True))
