"""Classes that others put on an attached layer, or take off: parametrizations, FSDP, submodules; and what is left."""

import copy
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

import lograd
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning

IDENTITY = Plan.uniform("identity")


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5))


def gradients_of(model):
    model.zero_grad()
    y = model(torch.randn(9, 6, generator=torch.Generator().manual_seed(1)))
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters()), *model.state_dict().values()]


def assert_same(first, second):
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


class Named(nn.Linear):
    """A class of the user's."""


OPERATIONS = {
    "weight_norm": lambda model: parametrizations.weight_norm(model[1]),
    "spectral_norm": lambda model: parametrizations.spectral_norm(model[1]),
    "orthogonal": lambda model: parametrizations.orthogonal(model[1]),
    "twice": lambda model: register_parametrization(model[1], "weight", Twice()),
    "bias twice": lambda model: register_parametrization(model[1], "bias", Twice()),
    "remove": lambda model: remove_parametrizations(model[1], "weight"),
    "remove original": lambda model: remove_parametrizations(model[1], "weight", leave_parametrized=False),
    "remove bias": lambda model: remove_parametrizations(model[1], "bias"),
    "hooked weight_norm": lambda model: nn.utils.weight_norm(model[1]),
    "remove hooked": lambda model: nn.utils.remove_weight_norm(model[1]),
}
SEQUENCES = [
    (["weight_norm"], []),
    (["weight_norm"], ["remove", "spectral_norm"]),
    (["twice"], ["twice", "bias twice", "remove original"]),
    (["spectral_norm"], ["bias twice"]),
    (["hooked weight_norm"], ["remove hooked"]),
    ([], ["weight_norm"]),
    ([], ["spectral_norm", "remove"]),
    ([], ["orthogonal", "remove", "twice"]),
    ([], ["hooked weight_norm"]),
]


def look(model):
    """All that can be seen of a model's layers."""
    return [
        (type(m).__name__, type(m).__module__, type(m).__mro__[1:], sorted(vars(type(m))), sorted(vars(m)))
        for m in model
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("before", "during"), SEQUENCES)
def test_parametrizations_come_and_go_while_attached(before, during):
    plain = network()
    for name in (*before, *during):
        OPERATIONS[name](plain)
    expected = gradients_of(plain)

    model = network()
    for name in before:
        OPERATIONS[name](model)
    classes = [type(module) for module in model]
    handle = lograd.attach(model, IDENTITY)
    for name in during:
        OPERATIONS[name](model)
    assert_same(gradients_of(model), expected)
    assert handle.counters().total.passes == 2
    handle.remove()
    assert look(model) == look(plain)
    if not during:
        assert [type(module) for module in model] == classes
    assert_same(gradients_of(model), gradients_of(plain))
    assert handle.counters().total.passes == 2
    if not any("hooked" in name for name in (*before, *during)):  # torch cannot copy those
        assert_same(gradients_of(copy.deepcopy(model)), gradients_of(plain))


def test_a_removed_parametrization_leaves_the_layer_treated():
    model = network()
    parametrizations.weight_norm(model[1])
    with lograd.attach(model, Plan.uniform("fp4")) as handle:
        gradients_of(model)
        handle.step()
        remove_parametrizations(model[1], "weight")
        gradients_of(model)
        assert {name: count.treated for name, count in handle.counters().layers.items()} == {"0": 1, "1": 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_of_an_attached_parametrized_layer_is_plain(when):
    model = network()
    if when == "before":
        OPERATIONS["weight_norm"](model)
    handle = lograd.attach(model, IDENTITY)
    if when == "after":
        OPERATIONS["weight_norm"](model)
    with pytest.warns(LogradWarning, match="is a plain model"):
        twin = copy.deepcopy(model)
    plain = network()
    OPERATIONS["weight_norm"](plain)
    assert_same(gradients_of(twin), gradients_of(plain))
    assert [type(module).__mro__[1:] for module in twin] == [type(module).__mro__[1:] for module in plain]
    assert handle.counters().total.passes == 0
    with lograd.attach(twin, IDENTITY) as other:
        gradients_of(twin)
        assert other.counters().total.passes == 2
    remove_parametrizations(twin[1], "weight")
    gradients_of(model)
    assert handle.counters().total.passes == 2
    handle.remove()


def test_a_new_layer_of_an_attached_class_is_plain():
    model = nn.Sequential(Named(3, 4))
    with lograd.attach(model, IDENTITY):
        made = type(model[0])(5, 6)
    assert type(made) is Named
    assert made(torch.randn(2, 5)).shape == (2, 6)


# -- nothing is left --


@pytest.mark.parametrize("wrap", [lambda model: None, OPERATIONS["weight_norm"]], ids=["plain", "parametrized"])
def test_twenty_cycles_leave_no_class_behind(wrap):
    def cycle():
        model = network()
        wrap(model)
        with lograd.attach(model, IDENTITY) as handle:
            gradients_of(model)
            return [weakref.ref(one) for one in (handle, handle.layers["0"], model, type(model[1]))]

    def classes():
        gc.collect()
        return sum(issubclass(type(one), type) and nn.Linear in one.__mro__ for one in gc.get_objects())

    cycle()
    before = classes()
    found = [reference for _ in range(20) for reference in cycle()]
    assert classes() == before
    alive = [reference() for reference in found if reference() is not None]
    # A class serves all layers of its kind, so that it lives while any handle in this process does.
    assert all(isinstance(one, type) for one in alive)
    assert len(set(alive)) <= 1


# -- classes on top --


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train(model, handle=None, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        model(torch.randn(9, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle.step()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]


def test_an_output_is_no_view():
    """A hook on a view, such as that of fully_shard, is lost when the view is changed in place."""
    layer = nn.Linear(6, 5)
    inputs = [torch.randn(6), torch.randn(7, 6), torch.randn(3, 7, 6), torch.randn(7, 3, 6).transpose(0, 1)]
    with lograd.attach(layer, IDENTITY):
        assert not any(layer(x)._is_view() for x in inputs)


@pytest.mark.parametrize("backend", ["dense", "sparse"])
@pytest.mark.parametrize("order", ["attach first", "shard first"])
def test_fully_sharded_layers_in_either_order(order, backend, process_group):
    plain = shard(network())
    expected = train(plain)
    treated = network()
    with lograd.attach(treated, Plan.uniform("prune80"), backend=backend) as handle:
        expected_treated = train(treated, handle)

    for plan, goal in ((IDENTITY, expected), (Plan.uniform("prune80"), expected_treated)):
        model = network() if order == "attach first" else shard(network())
        handle = lograd.attach(model, plan, backend=backend)
        if order == "attach first":
            shard(model)
        assert_same(train(model, handle), goal)
        assert handle.counters().total.passes == 6
        handle.remove()
        assert [type(module) for module in model] == [type(module) for module in plain]
        assert type(model) is type(plain)
        train(model)
        assert handle.counters().total.passes == 6
        with lograd.attach(model, plan) as again:
            train(model, again)
            assert again.counters().total.passes == 6


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`", "ignore::FutureWarning")
def test_flattened_parameters_of_the_older_wrapper(process_group):
    device = torch.device("cpu")
    expected = train(FullyShardedDataParallel(network(), device_id=device))
    model = network()
    handle = lograd.attach(model, IDENTITY)
    wrapped = FullyShardedDataParallel(model, device_id=device)
    assert_same(train(wrapped, handle), expected)
    assert handle.counters().total.passes == 6
    handle.remove()
    with pytest.raises(InvalidValue, match="under FullyShardedDataParallel attach first, then wrap"):
        lograd.attach(FullyShardedDataParallel(network(), device_id=device), IDENTITY)


def test_weights_of_tensor_parallelism_are_refused(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = parallelize_module(network(), init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    with lograd.attach(model, IDENTITY) as handle:
        assert "its weight is distributed over processes" in handle.skipped["0"]
        gradients_of(model)
        assert list(handle.counters().layers) == ["1"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_data_parallel_around_an_attached_model(compiled, process_group):
    torch._dynamo.reset()
    model = network()
    handle = lograd.attach(model, Plan.uniform("prune80"))
    forward = torch.compile(model, backend="aot_eager") if compiled else model
    parallel = nn.parallel.DistributedDataParallel(forward)
    train(parallel, handle)
    assert handle.counters().total.treated == 4
    handle.remove()
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
    train(parallel)
    assert handle.counters().total.treated == 4


def test_a_class_that_calls_super_has_to_go_first():
    model = network()
    handle = lograd.attach(model, IDENTITY)
    swapped = type(model[0])

    class Shifted(swapped):
        def forward(self, input):
            return super().forward(input) + 1

    model[0].__class__ = Shifted
    with pytest.raises(InvalidValue, match=r"layer '0' cannot be given back: .* to Shifted, .*; set back its class"):
        handle.remove()
    gradients_of(model)
    assert handle.counters().total.passes == 2, "nothing was undone"
    model[0].__class__ = swapped
    handle.remove()
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]


# -- the model changes --


def test_a_layer_that_is_replaced_is_given_back_and_the_new_one_is_plain():
    model = network()
    handle = lograd.attach(model, IDENTITY)
    old, model[1] = model[1], nn.Linear(5, 5)
    gradients_of(model)
    assert {name: count.passes for name, count in handle.counters().layers.items()} == {"0": 1, "1": 0}
    handle.remove()
    assert type(old) is type(model[1]) is nn.Linear
    assert look([old]) == look([nn.Linear(5, 5)])


@pytest.mark.parametrize("change", ["bfloat16", "share_memory", "half and back"])
def test_the_model_moves_while_attached(change):
    model = network()
    handle = lograd.attach(model, Plan.uniform("fp6"))
    train(model, handle)
    if change == "share_memory":
        model.share_memory()
    elif change == "bfloat16":
        model.bfloat16()
    else:
        model.half().float()
    x = torch.randn(9, 6, dtype=model[0].weight.dtype)
    model(x).float().square().sum().backward()
    assert handle.counters().total.treated == 6
    handle.remove()
