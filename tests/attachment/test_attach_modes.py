"""Attach where a mode is on: meta device, inference mode, another default device or type."""

import copy

import pytest
import torch
from torch import nn

import lograd
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning

PLAN = Plan.uniform("prune80")


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 8, 3, **options), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 16, 12, **options),
        nn.Linear(12, 4, **options),
    )  # fmt: skip


def batch(step):
    return torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(step), device="cpu", dtype=torch.float32)


def train(model, handle, steps=3, device="cpu"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        model(batch(step).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    return list(model.state_dict().values())


def attach(model):
    return lograd.attach(model, PLAN, backend="sparse")


def expected():
    model = network()
    with attach(model) as handle:
        return train(model, handle), handle.counters()


def assert_trains_alike(model, handle):
    with torch.device("cpu"):
        parameters, counters = expected()
    for a, b in zip(train(model, handle), parameters, strict=True):
        assert torch.equal(a, b)
    assert handle.counters() == counters
    assert "predicted cosine" in str(handle.explain())
    handle.load_state_dict(handle.state_dict())
    handle.remove()


def test_a_forward_and_backward_on_meta():
    model = network(device="meta")
    handle = attach(model)
    train(model, handle, device="meta")
    assert all(p.device.type == "meta" for p in model.parameters())
    assert "on the meta device, where nothing is computed" in str(handle.explain())
    with pytest.warns(LogradWarning, match="no gradient came by in 3 steps"):
        handle.remove()


def test_a_model_on_meta_comes_to_the_cpu_after_attach():
    model = network(device="meta")
    handle = attach(model)
    model.to_empty(device="cpu")
    model.load_state_dict(network().state_dict())
    assert_trains_alike(model, handle)


@pytest.mark.parametrize("mode", ["meta device", "inference mode"])
def test_attach_where_a_mode_is_on(mode):
    """What the handle keeps is real, and can be changed afterwards."""
    model = network()
    if mode == "meta device":
        with torch.device("meta"):
            handle = attach(model)
    else:
        with torch.inference_mode():
            handle = attach(model)
            model(batch(0))
    assert_trains_alike(model, handle)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_attach_inside_of_a_transform_is_refused(transform):
    model = network()

    def attached(x):
        lograd.attach(model, PLAN)
        return x

    with pytest.raises(InvalidValue, match=r"attach the plan before torch\.func transforms the model"):
        transform(attached)(torch.tensor(1.0) if transform is torch.func.grad else torch.ones(1))
    assert type(model[0]) is nn.Conv2d


def test_training_with_another_default_type():
    model = network()
    torch.set_default_dtype(torch.float64)
    try:
        handle = attach(model)
        result = train(model, handle)
        str(handle.explain())
        handle.remove()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(result, expected()[0], strict=True))


def test_weights_made_under_inference_mode_are_refused():
    with torch.inference_mode():
        model = network()
    with pytest.raises(InvalidValue, match=r"'0' is not supported: its weight was made under torch\.inference_mode"):
        lograd.attach(model, PLAN)
    assert type(model[0]) is nn.Conv2d
    model[4] = nn.Linear(12, 4)
    with lograd.attach(model, PLAN) as handle:
        assert list(handle.layers) == ["4"]


def test_a_copy_under_inference_mode_is_plain_and_the_original_goes_on():
    model = network()
    handle = attach(model)
    with torch.inference_mode(), pytest.warns(LogradWarning, match="is a plain model"):
        twin = copy.deepcopy(model)
    with torch.inference_mode():
        assert torch.equal(twin(batch(0)), model(batch(0)))
    assert [type(module) for module in twin] == [type(module) for module in network()]
    assert_trains_alike(model, handle)
