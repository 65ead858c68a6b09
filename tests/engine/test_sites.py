"""Sites on all six operands: what is treated, counted and saved there, and what the products make of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, LayerPlan, Plan, native
from lograd.engine.autograd import _Layer
from lograd.ops import Counted
from lograd.treatments import OPERANDS, PRODUCTS, ProductPlan, Quantize, Treated, Treatment, apply, recipe
from lograd.treatments.tensors import counted


@final
@dataclass(frozen=True)
class Same(Treatment):
    """A treatment that changes nothing."""

    apart: bool = False
    kind: ClassVar[str] = "test-same"

    @property
    def per_product(self) -> bool:  # type: ignore[override]
        return self.apart

    def apply(self, g, setting) -> Counted:
        return counted(g.clone())

    def __str__(self) -> str:
        return "same"


def on_all_sites(*treatments: Treatment) -> Treated:
    return Treated(*(ProductPlan(**dict.fromkeys(OPERANDS[name], treatments)) for name in PRODUCTS))


class Rows(nn.Module):
    """Layers of every kind, on images of 1 x 12 x 12."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1, groups=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding="same", groups=2, padding_mode="circular")
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.line = nn.Conv1d(4, 6, 3, dilation=2)
        self.rows, self.head = nn.Linear(140, 9, bias=False), nn.Linear(9, 5)

    def forward(self, x):
        x = self.line(self.up(self.grouped(self.down(x)).relu()).flatten(2))
        return self.head(self.rows(x).relu()).mean(1)


def gradients_of(model, batch):
    x, labels = batch
    x = x.clone().requires_grad_()
    output = model(x)
    found = torch.autograd.grad(cross_entropy(output, labels), [x, *model.parameters()])
    return [output, *found]


@pytest.mark.parametrize("apart", [False, True], ids=["shared", "apart"])
@pytest.mark.parametrize("make", [conv_net, Rows])
def test_six_sites_that_change_nothing_change_no_bit(make, apart):
    torch.manual_seed(0)
    model, batch = make(), image_batches(1)[0]
    plain = gradients_of(model, batch)
    with lograd.attach(model, Plan(every=LayerPlan.of(on_all_sites(Same(apart))))) as handle:
        treated = gradients_of(model, batch)
        sites = handle.counters().sites
    assert all(torch.equal(a, b) for a, b in zip(plain, treated, strict=True))
    names = ["gradient", "weights", "activations"]
    if apart:
        names = [f"{product}.{operand}" for product in PRODUCTS for operand in OPERANDS[product]]
    for found in sites.values():
        assert sorted(found) == sorted(names)
        assert all(count.treated == 1 for count in found.values())


def test_operands_of_the_output_are_treated_straight_through():
    """The output takes rounded operands; gradients are those of that product, and reach the operands as they came."""
    torch.manual_seed(0)
    layer, x = nn.Linear(40, 30), torch.randn(50, 40, requires_grad=True)
    rounding = (Quantize("int4", "2^1", "nearest"),)
    rounded = [apply(rounding, one.detach()).result for one in (x, layer.weight)]
    plan = LayerPlan(output=ProductPlan(activations=rounding, weights=rounding))
    for shared in (False, True):
        if shared:
            plan = LayerPlan(plan.output, ProductPlan(weights=rounding), ProductPlan(activations=rounding))
        with lograd.attach(layer, Plan(every=plan)) as handle:
            y = layer(x)
            g = torch.randn_like(y)
            d_x, d_weight, d_bias = torch.autograd.grad(y, [x, layer.weight, layer.bias], g)
            count = handle.counters().sites[""]
        met = rounded if shared else [x.detach(), layer.weight.detach()]
        assert torch.equal(y, torch.addmm(layer.bias, rounded[0], rounded[1].t()))
        assert torch.equal(d_x, g @ met[1])
        assert torch.equal(d_weight, g.T @ met[0])
        assert torch.equal(d_bias, g.sum(0))
        assert list(count) == (["weights", "activations"] if shared else ["output.weights", "output.activations"])
        assert all(one.treated == 1 for one in count.values()), "one copy serves both products"


def test_an_output_is_treated_without_gradients_too():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    rounding = (Quantize("int4", "2^1", "nearest"),)
    with lograd.attach(layer, Plan(every=LayerPlan(output=ProductPlan(weights=rounding)))), torch.no_grad():
        y = layer(x)
    assert torch.equal(y, torch.addmm(layer.bias, x, apply(rounding, layer.weight.detach()).result.t()))


FORWARD = LayerPlan(
    output=ProductPlan(
        activations=recipe("int8").input_gradient.gradient, weights=recipe("fp6-nearest").input_gradient.gradient
    ),
    input_gradient=recipe("prune50").input_gradient,
)


def train(model, handle, batches, scale=1.0):
    for x, labels in batches:
        model.zero_grad()
        (scale * cross_entropy(model(x), labels)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 / scale * parameter.grad
        handle.step(loss_scale=scale)


def test_weights_and_activations_have_statistics_and_resume_to_the_same_bits():
    batches, model = image_batches(6), conv_net()
    with lograd.attach(model, Plan(every=FORWARD), seed=3, backend="dense") as handle:
        train(model, handle, batches[:3])
        state, weights = handle.state_dict(), {name: one.clone() for name, one in model.state_dict().items()}
        train(model, handle, batches[3:])
        for name in ("0", "3", "7"):
            layer = handle.layers[name]
            assert layer.weights.ready
            assert layer.activations.ready
            scale = layer.sites["output.weights"].numbers.item()
            largest = model.get_submodule(name).weight.abs().max().item()
            top = FORWARD.output.weights[0].format.max
            assert 0.7 < scale * largest / top < 1.2, "the largest weight is at the top of the format"
    again = conv_net(seed=1)
    again.load_state_dict(weights)
    with lograd.attach(again, Plan(every=FORWARD), seed=0, backend="dense") as handle:
        handle.load_state_dict(state)
        train(again, handle, batches[3:])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_a_loss_scale_moves_gradients_alone():
    batches, model = image_batches(2), conv_net()
    with lograd.attach(model, Plan(every=FORWARD), backend="dense", loss_scale=1.0) as handle:
        train(model, handle, batches)
        sites = handle.layers["3"].sites
        before = {name: site.numbers.clone() for name, site in sites.items()}
        handle.step(loss_scale=8.0)
        assert torch.allclose(sites["input_gradient.gradient"].numbers, 8 * before["input_gradient.gradient"])
        for name in ("output.weights", "output.activations"):
            assert torch.equal(sites[name].numbers, before[name])


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled_sites_of_the_output_are_those_of_eager_code():
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = conv_net(inplace=False)
        with lograd.attach(model, Plan(every=FORWARD), backend="dense") as handle:
            call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
            for x, labels in image_batches(3):
                model.zero_grad()
                cross_entropy(call(x), labels).backward()
                handle.step()
            found.append(([one.grad for one in model.parameters()], handle.counters()))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


def test_a_plan_with_six_sites_and_backends_survives_its_file(tmp_path):
    plan = Plan(
        {
            "0": LayerPlan.of(on_all_sites(*recipe("fp6").input_gradient.gradient)),
            "3": LayerPlan(
                output=ProductPlan(weights=recipe("int8").input_gradient.gradient, backend="dense"),
                weight_gradient=ProductPlan(recipe("prune85").weight_gradient.gradient, backend="sparse"),
            ),
        }
    )
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert "weights of Y int8 scale max" in plan.layers["3"].words()
    assert "weights of Y" in str(plan.table())
    with lograd.attach(conv_net(), plan, backend="dense") as handle:
        assert handle.layers["3"].choices["weight_gradient.gradient"].fixed, "the plan's backend comes first"
        assert "waits for" in handle.explain().layers["0"]


def test_an_operand_that_a_product_does_not_have_is_refused():
    with pytest.raises(InvalidValue, match="the operands of input_gradient are gradient and weights; activations"):
        LayerPlan(input_gradient=ProductPlan(activations=recipe("int8").input_gradient.gradient))


@pytest.mark.skipif(not native.status().available, reason="there is no native call")
@pytest.mark.parametrize(
    ("name", "backend"), [("prune85", "sparse"), ("prune85", "dense"), ("fp6", "dense"), ("int6-full", "integer")]
)
def test_few_hops_lie_between_a_gradient_and_the_native_call(name, backend):
    """Functions on the stack when the compiled module is entered, from the backward of the layer on."""
    layer, x = nn.Linear(64, 64), torch.randn(32, 64, requires_grad=True)
    hops, arrival, files = [], _Layer.backward.__code__, set()

    def watch(frame, event, argument):
        """Whoever calls the compiled module asks for addresses, or for the number of threads."""
        asks = event == "call" and frame.f_code in (native.address.__code__, native.view_address.__code__)
        if asks or (event == "c_call" and argument is torch.get_num_threads):
            names, on_the_way, frame = [], set(), frame.f_back if asks else frame
            while frame is not None and frame.f_code is not arrival:
                names.append(frame.f_code.co_name)
                on_the_way.add(frame.f_code.co_filename)
                frame = frame.f_back
            if frame is not None:
                hops.append([name for name in names if not name.startswith("<")])
                files.update(on_the_way)

    with lograd.attach(layer, Plan.uniform(name, keep=()), backend=backend) as handle:
        for _ in range(3):
            layer(x).square().sum().backward()
            handle.step()
        sys.setprofile(watch)
        try:
            layer(x).square().sum().backward()
        finally:
            sys.setprofile(None)
    assert hops
    assert all(len(way) < 8 for way in hops), max(hops, key=len)  # and one more into the module
    assert len(files) <= 8, files
