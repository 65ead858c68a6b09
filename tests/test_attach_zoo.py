"""Attach on models that people train: every layer found, no bit changed by the identity, keys kept, all undone."""

import pytest
import torch
from zoo import ZOO, build, loss_of

import lograd
from lograd import Plan

LAYERS = {
    "resnet18": 21, "mobilenet_v2": 53, "densenet121": 121, "vgg16_bn": 15, "squeezenet1_1": 26,
    "convnext": 41, "vit": 10, "bert": 14, "gpt2": 9,
}  # fmt: skip
STEPS = 3


def train(model, inputs, handle=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(1)  # for dropout
    for _ in range(STEPS):
        loss_of(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle.step()


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the packages themselves
@pytest.mark.parametrize("name", ZOO)
def test_models_train_with_a_plan_and_are_given_back(name):
    model, inputs = build(name)
    start = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    classes = [type(module) for module in model.modules()]

    with lograd.attach(model, Plan.uniform("fp6")):
        assert list(model.state_dict()) == list(start)
    assert same(model.state_dict(), start)

    train(model, inputs)
    plain = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    assert all(tensor.isfinite().all() for tensor in plain.values())  # NaN would differ from itself
    model.load_state_dict(start)
    with lograd.attach(model, Plan.uniform("identity")) as handle:
        train(model, inputs, handle)
    assert same(model.state_dict(), plain)
    assert len(handle.layers) == LAYERS[name]
    assert not handle.skipped
    assert all(count.passes == STEPS for count in handle.counters().layers.values())

    model.load_state_dict(start)
    with lograd.attach(model, Plan.uniform("prune80+fp6")) as handle:
        train(model, inputs, handle)
        assert list(model.state_dict()) == list(start)
        assert all("prune 0.8 (threshold" in line for line in handle.explain().layers.values())
    assert not same(model.state_dict(), plain)
    for count in handle.counters().layers.values():
        assert (count.treated, count.passed_through) == (STEPS - 1, 1)
        assert count.zeros_after > count.zeros_before or count.zeros_before > 0.8 * count.elements
    assert [type(module) for module in model.modules()] == classes
    assert all("_lograd_catcher" not in vars(module) for module in model.modules())
