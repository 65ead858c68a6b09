"""Attached models in the company of compile, autocast, loss scaling, checkpointing, copies and processes."""

import copy
import io
import pickle
import pickletools
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.checkpoint import checkpoint

import lograd
from lograd import Plan
from lograd.errors import LogradWarning

STEPS = 5


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same", bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 4, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 17 * 17, 10),
        nn.ReLU(inplace=True),
        nn.Linear(10, 10),
    )


def batch(step, size=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 3, 8, 8, generator=generator), torch.randint(0, 10, (size,), generator=generator)


def train(model, handle=None, forward=None, steps=STEPS, pieces=1, context=None):
    """Some steps of SGD; the parameters and buffers afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        for x, target in zip(*(part.chunk(pieces) for part in batch(step)), strict=True):
            with context or torch.autocast("cpu", enabled=False):
                output = (forward or model)(x)
            (nn.functional.cross_entropy(output.float(), target) / pieces).backward()
        optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle.step()
    return list(model.state_dict().values())


def assert_same(first, second):
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def attached(name, build=network):
    model = build()
    return model, lograd.attach(model, Plan.uniform(name), seed=3, refresh=2)


WAYS = {
    "plain": lambda model: {},
    "accumulation": lambda model: {"pieces": 2},
    "autocast": lambda model: {"context": torch.autocast("cpu", torch.bfloat16)},
    "checkpoint": lambda model: {"forward": lambda x: checkpoint(model, x, use_reentrant=False)},
    "checkpoint, reentrant": lambda model: {
        "forward": lambda x: model[6:](checkpoint(model[:6], x.requires_grad_(), use_reentrant=True))
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_identity_trains_bit_for_bit_as_without(way):
    plain = network()
    expected = train(plain, **WAYS[way](plain))
    model, handle = attached("identity")
    assert_same(train(model, handle, **WAYS[way](model)), expected)
    assert handle.counters().total.passes == 4 * STEPS * (2 if way == "accumulation" else 1)
    handle.remove()


@pytest.mark.parametrize("way", WAYS)
def test_treatment_trains(way):
    plain = network()
    expected = train(plain, **WAYS[way](plain))
    model, handle = attached("prune80+fp6")
    got = train(model, handle, **WAYS[way](model))
    count, passes = handle.counters().total, 2 if way == "accumulation" else 1
    assert not torch.equal(got[0], expected[0])
    assert (count.treated, count.passed_through) == (4 * (STEPS - 1) * passes, 4 * passes)
    assert 0.7 < count.sparsity < 0.95
    handle.remove()


@pytest.mark.parametrize("way", ["checkpoint", "checkpoint, reentrant"])
def test_a_checkpointed_forward_is_treated_once_and_alike(way):
    results = []
    for name in ("plain", way):
        model, handle = attached("fp4")
        results.append((train(model, handle, **WAYS[name](model))[0], handle.counters()))
        handle.remove()
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_loss_scaling():
    """GradScaler from a scale that overflows float16: the steps that it skips cost no statistics."""
    model, handle = attached("prune80")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    thresholds = []
    for step in range(12):
        x, target = batch(step)
        loss = nn.functional.cross_entropy(model(x), target)
        scaler.scale(loss * 1e3).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        handle.step(loss_scale=scaler.get_scale())
        thresholds.append(handle.layers["8"].gradient.sites["gradient"].numbers.item() / scaler.get_scale())
    assert scaler.get_scale() < 2.0**127  # it did overflow
    first = next(index for index, value in enumerate(thresholds) if value)
    assert first > 0
    assert max(thresholds[first:]) < 4 * min(thresholds[first:])
    assert handle.counters().total.treated > 0
    handle.remove()


# -- compile --


def small():
    """Little to compile, and all that matters: a convolution, a linear layer, a ReLU in place."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10))


inductor = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it uses what torch deprecates


@pytest.mark.slow  # the code generator of inductor takes its time; docs/compatibility.md runs it every day
@inductor
@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models(when):
    """fullgraph, inductor: the same counters and nearly the same weights as eagerly, and no second compilation."""
    torch._dynamo.reset()
    eager, handle = attached("prune80+fp6", small)
    expected, counters = train(eager, handle), handle.counters()
    handle.remove()

    model = small()
    compiled = torch.compile(model, fullgraph=True)
    if when == "after":
        compiled(batch(0)[0]).sum().backward()  # it has run, and its code is there
        model.zero_grad()
        model.load_state_dict(small().state_dict())
    handle = lograd.attach(model if when == "before" else compiled, Plan.uniform("prune80+fp6"), seed=3, refresh=2)
    torch._dynamo.utils.counters.clear()
    got = train(model, handle, forward=compiled)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    count, other = handle.counters().total, counters.total
    handle.remove()

    assert graphs == 1
    assert (count.passes, count.treated, count.elements) == (other.passes, other.treated, other.elements)
    # Rounding of a compiled BatchNorm differs in the last bit, and a random comparison may then fall otherwise.
    assert abs(count.zeros_after - other.zeros_after) < 0.001 * count.elements
    for a, b in zip(got, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-3)


# -- copies --


def test_a_deep_copy_is_plain_and_says_so_once():
    model, handle = attached("fp4")
    with pytest.warns(LogradWarning, match="attach the plan to the copy as well") as caught:
        twin = copy.deepcopy(model)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(model)
    assert [type(module) for module in twin] == [type(module) for module in network()]
    assert [vars(module).keys() for module in twin] == [vars(module).keys() for module in network()]
    assert_same(train(twin), train(network()))
    assert handle.counters().total.passes == 0
    train(model, handle)
    assert handle.counters().total.treated > 0
    handle.remove()


def test_a_pickle_is_that_of_the_plain_model():
    model, handle = attached("fp4")
    with pytest.warns(LogradWarning, match="plain model"):
        content = pickle.dumps(model)
    assert "lograd" not in " ".join(str(argument) for _, argument, _ in pickletools.genops(content))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (pickle.loads(content), torch.load(file, weights_only=False)):
        assert [type(module) for module in twin] == [type(module) for module in network()]
        assert_same(twin.state_dict().values(), model.state_dict().values())
    handle.remove()


# -- processes --


def _rank(rank, folder, name):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    handle = lograd.attach(model, Plan.uniform(name), seed=3, refresh=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        x, target = batch(2 * step + rank)
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    key = handle.layers["8"].gradient.sites["gradient"].key if handle.layers["8"].sites else torch.zeros(2)
    result = {"parameters": list(model.parameters()), "treated": handle.counters().total.treated, "key": key}
    torch.save(result, f"{folder}/{rank}.pt")
    handle.remove()
    dist.destroy_process_group()


@pytest.mark.slow  # processes that wait for each other
def test_two_processes_keep_equal_parameters_and_draw_their_own_noise(tmp_path):
    mp.spawn(_rank, (str(tmp_path), "prune80+fp6"), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert_same(first["parameters"], second["parameters"])
    assert first["treated"] == second["treated"] == 4 * (STEPS - 1)
    assert first["key"][0] != second["key"][0]
