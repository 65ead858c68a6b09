"""Integer products with states, torch.compile, processes, other types and plans that keep layers."""

import pytest
import torch
from everyday import daily
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import lograd
from lograd import InvalidValue, LayerPlan, Plan
from lograd.engine.backends import choice as choosing
from lograd.engine.backends.choice import DENSE
from lograd.treatments import recipe

pytestmark = pytest.mark.skipif(not lograd.native.status().available, reason="integer kernels are native")


def plan(name):
    return Plan(every=LayerPlan.of(recipe(name)))


def last(x):
    return x.to(memory_format=torch.channels_last)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, groups=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(model, handle, steps, call=None, start=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(start, start + steps):
        x = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(step))
        (call or model)(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize(
    ("name", "start"),
    daily(
        [("int6-full", 0), ("int6-full", 2), ("int6-full-rows", 0), ("luq4", 0), ("fqt5-psq", 0), ("mxfp4-full", 0)],
        [("int6-full", 2), ("int6-full-rows", 0)],
    ),
)
def test_compiled_gives_the_bits_of_eager_and_a_new_choice_compiles_nothing(name, start):
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = network()
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with lograd.attach(model, plan(name), seed=1, backend="integer", start=start) as handle:
            train(model, handle, 3, call)
            frames = torch._dynamo.utils.counters["frames"]["ok"]
            for choice in handle.layers["0"].choices.values():
                choice.tensor[choosing.MODE] = DENSE
            found.append((train(model, handle, 2, call, start=3), handle.counters()))
            assert torch._dynamo.utils.counters["frames"]["ok"] == frames
    assert found[0][1] == found[1][1]
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


@pytest.mark.parametrize("name", ["int8-full", "fqt8-psq"])
def test_other_types_are_simulated(name):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.randn(30, 96)
    with lograd.attach(layer, plan(name), backend="integer") as handle:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        y.float().sum().backward()
        assert y.dtype == torch.bfloat16
        assert "bits are simulated: the tensors are bfloat16 on cpu" in str(handle.explain())
    with lograd.attach(layer, plan(name), backend="integer"):
        needed = x.clone().requires_grad_()
        with pytest.raises(lograd.LogradError, match="cannot be differentiated again"):
            torch.autograd.grad(layer(needed).square().sum(), needed, create_graph=True)


class Recorder(TorchDispatchMode):
    """Keeps the calls of the layer's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.name().startswith("lograd::layer_"):
            self.calls.append((operator, args))
        return operator(*args, **kwargs or {})


RULES = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Results twice are not alike: random numbers move on."""


@pytest.mark.parametrize("backend", ["dense", "integer"])
@pytest.mark.parametrize("name", daily(["int6-full", "luq4", "pact4", "fp6", "mxfp4-full"], ["mxfp4-full"]))
def test_the_operators_keep_the_rules_of_torch_library(name, backend):
    layers = [nn.Linear(72, 9), nn.Conv1d(8, 9, 3, padding=1)]
    for layer, x in zip(layers, (torch.randn(6, 72), torch.randn(2, 8, 6)), strict=True):
        with lograd.attach(layer, plan(name), backend=backend) as handle, Recorder() as seen:
            for _ in range(2):
                layer(x.clone().requires_grad_()).square().sum().backward()
                handle.step()
        assert seen.calls
        for operator, arguments in seen.calls[-2:]:
            plain = tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
            torch.library.opcheck(operator, plain, test_utils=RULES)


# -- plans --


def test_full_recipes_keep_the_first_convolution_and_the_last_linear_layer(tmp_path):
    made = Plan.uniform("int4-full")
    assert made.keep == ("first", "last")
    assert Plan.load(made.save(tmp_path / "plan.json")) == made
    with lograd.attach(network(), made) as handle:
        assert handle.skipped == {"0": "kept: the first convolution", "8": "kept: the last linear layer"}
        assert list(handle.layers) == ["3", "6"]
    with lograd.attach(network(), Plan.uniform("int4-full", keep=())) as handle:
        assert list(handle.layers) == ["0", "3", "6", "8"]
    with lograd.attach(nn.Linear(4, 4), made) as handle:
        assert list(handle.layers) == [""], "a model of one layer is treated"
    assert Plan.uniform("fp6").keep == ()
    with pytest.raises(InvalidValue, match="keep of a plan must be 'first', 'last' or both"):
        Plan.uniform("int4-full", keep="head")


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("backend", ["dense", "integer", "auto"])
@pytest.mark.parametrize("recipe", ["int4-full", "luq4", "mxfp4-full"])
def test_an_evaluation_changes_nothing(recipe: str, backend: str, steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 32))
    handle = lograd.attach(model, lograd.Plan.uniform(recipe, keep=()), backend=backend)  # type: ignore[arg-type]
    for _ in range(steps):
        model(torch.randn(16, 96)).square().mean().backward()
        handle.step()

    def state() -> dict[str, torch.Tensor]:
        parts = {name: engine.tensors() for name, engine in handle.layers.items()}
        return {f"{name}.{key}": tensor.clone() for name, found in parts.items() for key, tensor in found.items()}

    before = state()
    with torch.no_grad():
        outputs = [model(100 * torch.randn(16, 96, generator=torch.Generator().manual_seed(1))) for _ in range(2)]
    after = state()
    assert torch.equal(*outputs)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_forward_in_another_type_is_forgotten() -> None:
    model = nn.Linear(96, 32)
    handle = lograd.attach(model, lograd.Plan.uniform("int8-full", keep=()), backend="integer")
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(8, 96))
    (layer,) = handle.layers.values()
    assert "bfloat16" in layer.why_simulated
    model(torch.randn(8, 96)).sum().backward()
    assert layer.coded
    assert not layer.why_simulated


LAYERS = {
    "linear": (lambda: nn.Linear(96, 96), (16, 96)),
    "sequence": (lambda: nn.Linear(96, 96), (4, 5, 96)),
    "convolution": (lambda: nn.Conv2d(32, 32, 3, padding=1), (2, 32, 6, 6)),
    "pixel": (lambda: nn.Conv2d(96, 96, 1), (2, 96, 1, 1)),
    "one dimension": (lambda: nn.Conv1d(32, 32, 3, padding=1), (2, 32, 6)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("recipe", ["int8-full", "luq4", "fqt5-bhq", "mxfp4-full", "int4wa-clips"])
def test_outputs_may_be_changed_in_place(recipe: str, layer: str) -> None:
    make, shape = LAYERS[layer]
    gradients = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(make(), nn.ReLU(inplace), make(), nn.ReLU(inplace))
        with lograd.attach(model, Plan.uniform(recipe, keep=()), backend="integer"):
            model(torch.randn(shape)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))  # type: ignore[arg-type]
