"""A step on weights in low precision among others' code: hooks, subclasses, closures, errors, schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from low_precision import adamw, batch, network, numbers, same, sgd, stored, train
from torch import nn

import lograd
from lograd.weights import LowPrecisionTensor


def gradients(model: nn.Module, seed: int = 0) -> None:
    x, target = batch(seed)
    F.cross_entropy(model(x), target).backward()


@pytest.mark.parametrize("first", [True, False], ids=["before bind", "after bind"])
def test_a_hook_that_clips_works_in_either_order(first: bool) -> None:
    def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.01)

    model, other = network(), network()
    optimizer, beside = sgd(model.parameters()), sgd(other.parameters())
    if first:
        optimizer.register_step_pre_hook(clip)
    lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    lograd.low_precision_weights(other, "int8", optimizer=beside)
    if not first:
        optimizer.register_step_pre_hook(clip)
    for each in (model, other):
        gradients(each)
    nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    optimizer.step()
    beside.step()
    assert same(model, other)
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert float(total) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("first", [True, False], ids=["before bind", "after bind"])
def test_a_hook_that_clears_gradients_works_in_either_order(first: bool) -> None:
    model = network()
    optimizer = sgd(model.parameters())
    if first:
        optimizer.register_step_post_hook(lambda *given: optimizer.zero_grad())
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    if not first:
        optimizer.register_step_post_hook(lambda *given: optimizer.zero_grad())
    gradients(model)
    optimizer.step()
    assert all(p.grad is None for p in model.parameters())
    assert handle.counters().elements == handle.counters().weights


def test_a_subclass_may_call_the_step_of_its_base() -> None:
    torch.optim.Adam(network().parameters())  # from here on, PyTorch calls hooks around Adam's step, too

    class Decaying(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.mul_(0.5)
            return found

    model, optimizer, handle = stored("int8", lambda p: Decaying(p, lr=1e-2))
    twin = handle.export()
    beside = Decaying(twin.parameters(), lr=1e-2)
    for each in (model, twin):
        gradients(each)
    optimizer.step()
    beside.step()
    assert handle.steps == 1
    for weight, exact in zip(model.parameters(), twin.parameters(), strict=True):
        if isinstance(weight, LowPrecisionTensor):
            assert weight.counts.writes == 1
            assert bool(((weight.decode() - exact.detach()).abs() <= 1.0001 * weight.spacing).all())
        else:
            assert torch.equal(weight, exact)
    train(model, optimizer, 2)
    assert handle.steps == 3


class Ascending(torch.optim.SGD):
    """Moves the weights, and asks for gradients there."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.01)
        return closure()


class Asking(torch.optim.SGD):
    """Asks for gradients twice."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return closure()


@pytest.mark.parametrize("kind", [Ascending, Asking])
def test_a_closure_that_would_have_to_run_again_is_refused(kind: Any) -> None:
    model, optimizer, _ = stored("int8", lambda p: kind(p, lr=0.1))
    before = {name: weight for name, weight in numbers(model).items() if "weight" in name}

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch()[0]), batch()[1])
        loss.backward()
        return loss

    with pytest.raises(lograd.InvalidValue, match=f"{kind.__name__} moves the weights several times in one step"):
        optimizer.step(closure)
    assert all(torch.equal(value, numbers(model)[name]) for name, value in before.items())


class Failing(torch.optim.SGD):
    """Raises an error where it is told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("out of luck")
        return super().step(closure)


def test_a_failed_step_leaves_nothing_that_the_next_one_could_meet() -> None:
    model, optimizer, _ = stored("int8", lambda p: Failing(p, lr=0.05))
    other, beside, _ = stored("int8", lambda p: Failing(p, lr=0.05))
    train(model, optimizer, 1)
    train(other, beside, 1)
    gradients(model, 7)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.step()
    optimizer.fails = False
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == set(map(id, model.parameters()))
    assert train(model, optimizer, 2, first=1) == train(other, beside, 2, first=1)  # zero_grad reaches the weights
    assert same(model, other)


def test_a_step_that_fails_at_other_parameters_brings_no_old_gradients_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _ = stored("int8")
    gradients(model, 7)
    old = model[3].weight.grad
    model[3].bias.grad.data = torch.ones(3)  # a shape at which the step of the biases fails
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert model[3].weight.grad is old
    for parameter in model.parameters():
        parameter.grad = None
    gradients(model, 8)
    new = model[3].weight.grad
    optimizer.step()
    assert model[3].weight.grad is new


def test_parameter_groups_keep_their_learning_rates() -> None:
    def grouped(model: nn.Sequential) -> torch.optim.Optimizer:
        slow, fast = model[:4].parameters(), model[4:].parameters()
        return torch.optim.SGD([{"params": slow, "lr": 1e-3}, {"params": fast, "lr": 0.5}])

    model = network()
    optimizer = grouped(model)
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    twin = handle.export()
    beside = grouped(twin)
    for each in (model, twin):
        gradients(each)
    optimizer.step()
    beside.step()
    for place in (0, 3, 5):
        error = (model[place].weight.decode() - twin[place].weight.detach()).abs()
        assert bool((error <= 1.0001 * model[place].weight.spacing).all())
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.5]
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 2]


@pytest.mark.parametrize("first", [True, False], ids=["before bind", "after bind"])
def test_schedules_and_the_guard_of_the_step_get_along(first: bool) -> None:
    model = network()
    optimizer = adamw(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if first else None
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    schedule = schedule or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, 1)
    schedule.step()
    assert handle.steps == 1
    assert schedule.get_last_lr() == [5e-4]
    handle.remove()
    train(model, optimizer, 1)
    assert handle.steps == 1


def test_a_removed_handle_leaves_the_step_of_the_class() -> None:
    model = network()
    optimizer = sgd(model.parameters())
    with lograd.low_precision_weights(model, "int8", optimizer=optimizer):
        assert "step" in optimizer.__dict__
    assert "step" not in optimizer.__dict__


@pytest.mark.parametrize("make", [sgd, lambda p: Failing(p, lr=0.05)], ids=["torch.optim", "one's own"])
def test_one_optimizer_may_step_on_the_weights_of_two_handles(make: Any) -> None:
    one, two = network(), network(seed=1)
    optimizer = make([*one.parameters(), *two.parameters()])
    first, second = (lograd.low_precision_weights(each, "int8", optimizer=optimizer) for each in (one, two))
    for step in range(2):
        optimizer.zero_grad()
        gradients(one, step)
        gradients(two, step)
        optimizer.step()
    assert first.steps == second.steps == 2
    assert first.counters().elements == 2 * first.counters().weights
    assert second.counters().elements == 2 * second.counters().weights
    params = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert params == {id(p) for p in (*one.parameters(), *two.parameters())}
    first.remove()
    optimizer.step()
    assert (first.steps, second.steps) == (2, 3)
