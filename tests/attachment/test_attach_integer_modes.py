"""Integer products with states, torch.compile, processes, other types and plans that keep layers."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from everyday import daily
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import lograd
from lograd import InvalidValue, LayerPlan, Plan
from lograd.engine.backends import choice as choosing
from lograd.engine.backends.choice import DENSE, SPARSE
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


def state_sites(state):
    return [name.removesuffix(".key") for name in state["layers"]["0"] if name.endswith(".key")]


@pytest.mark.parametrize("name", ["int4-full", "int6-full-rows", "luq4", "fqt5-bhq", "nvfp4-full"])
def test_a_resumed_run_goes_on_to_the_same_bits(name):
    model = network()
    with lograd.attach(model, plan(name), seed=2, backend="auto") as handle:
        train(model, handle, 3)
        state, weights = handle.state_dict(), {name: one.clone() for name, one in model.state_dict().items()}
        expected = train(model, handle, 3, start=3)
    choices = {f"{site}.choice" for site in state_sites(state) if site.endswith("gradient")}
    assert {"output.choice", *choices} <= state["layers"]["0"].keys()
    again = network()
    again.load_state_dict(weights)
    with lograd.attach(again, plan(name), backend="auto") as handle:
        handle.load_state_dict(state)
        found = train(again, handle, 3, start=3)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_choice_that_does_not_serve_here_is_timed_again():
    model = network()
    with lograd.attach(model, plan("int4-full"), backend="auto") as handle:
        state = handle.state_dict()
    state["layers"]["0"]["weight_gradient.gradient.choice"] = torch.tensor([SPARSE, 5, 4, 0, 0])
    with lograd.attach(model, plan("int4-full"), backend="auto") as handle:
        handle.load_state_dict(state)
        assert handle.layers["0"].choices["weight_gradient.gradient"].mode == choosing.UNDECIDED


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


def test_remove_gives_the_model_back():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    classes = [type(one) for one in model.modules()]
    handle = lograd.attach(model, plan("int4-full"), backend="integer")
    model.eval()
    model(torch.randn(4, 16, 8, 8))
    handle.remove()
    assert [type(one) for one in model.modules()] == classes
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any("lograd" in name for one in model.modules() for name in vars(one))


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


@pytest.mark.parametrize("name", ["int8-full", "luq4", "fqt5-bhq"])
def test_gradient_checkpointing_and_empty_batches(name):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40), torch.randn(30, 96, requires_grad=True)
    with lograd.attach(layer, plan(name), backend="integer") as handle:
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).square().sum().backward()
        assert x.grad.isfinite().all()
        assert handle.counters().sites[""]["activations"].treated == 2
        layer(torch.randn(0, 96)).sum().backward()


def _rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    with lograd.attach(model, plan("int6-full"), seed=3, backend="integer") as handle:
        train(model, handle, 2, start=10 * rank)
        key = handle.layers["0"].sites["weight_gradient.gradient"].key.clone()
    torch.save({"weight": model.module[0].weight.detach(), "key": key}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow  # processes that wait for each other; test_attach_training.py starts some every day
def test_two_processes_keep_equal_parameters_and_draw_their_own_noise(tmp_path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first["weight"], second["weight"])
    assert first["key"][0] != second["key"][0]


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


def test_a_plan_says_whether_its_bits_are_real():
    assert "Bits are real in Y and dX and dW of layers that integer products serve" in str(Plan.uniform("int4-full"))
    assert "Bits are simulated: rounding saves neither time nor memory" in str(Plan.uniform("fp6"))
    assert "Bits are" not in str(Plan.uniform("prune85"))


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
