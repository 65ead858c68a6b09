"""Steps of any optimizer on weights in low precision: computed in float32, rounded once, among others' code."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from low_precision import adamw, batch, network, numbers, same, sgd, stored, train
from torch import nn

import lograd
from lograd.weights import LowPrecisionTensor, stepping

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "SGD, momentum": sgd,
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": adamw,
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}


def gradients(model: nn.Module, seed: int = 0) -> None:
    x, target = batch(seed)
    F.cross_entropy(model(x), target).backward()


def spacing_of(weight: LowPrecisionTensor) -> torch.Tensor:
    """The distance to the next number that could be stored, or more."""
    if weight.bare:
        return weight.decode().abs() * 2**-6
    if "int" in str(weight.format):
        return weight.spacing
    return torch.maximum(weight.decode().abs() * 2**-2, weight.spacing)


@pytest.mark.parametrize("format", ["int8", "e4m3fn", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_float32_but_for_one_rounding(name: str, format: str) -> None:
    model, optimizer, handle = stored(format, OPTIMIZERS[name])
    twin = handle.export()
    beside = OPTIMIZERS[name](twin.parameters())
    for each in (model, twin):
        gradients(each)
    optimizer.step()
    beside.step()
    for (where, weight), exact in zip(model.named_parameters(), twin.parameters(), strict=True):
        if isinstance(weight, LowPrecisionTensor):
            error = (weight.decode() - exact.detach()).abs()
            assert bool((error <= 1.0001 * spacing_of(weight)).all()), where
            assert weight.rounded == weight.numel()
        else:
            assert torch.equal(weight, exact), where
    states = [each.state_dict()["state"] for each in (optimizer, beside)]
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        for part, value in states[1][key].items():
            assert value is None or torch.equal(torch.as_tensor(states[0][key][part]), torch.as_tensor(value))


def test_the_mean_over_seeds_is_the_exact_step() -> None:
    found = []
    for seed in range(120):
        model, optimizer, handle = stored("int8", seed=seed)
        if not seed:
            twin = handle.export()
            gradients(twin)
            sgd(twin.parameters()).step()
            gradients(model)
            given = [p.grad for p in model.parameters()]
        for parameter, gradient in zip(model.parameters(), given, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        found.append(model[3].weight.decode())
    spacing, exact = model[3].weight.spacing.double(), twin[3].weight.detach().double()
    share = (exact / spacing) % 1  # the chance of the upper neighbour
    variance = share * (1 - share)
    z = (torch.stack(found).double().mean(0) - exact) / (spacing * (variance / len(found)).sqrt())
    z = z[len(found) * variance > 5]  # where the mean is near to a normal number
    assert len(z) > 10_000
    # The mean of all z is the sharper test.
    assert abs(float(z.mean())) < 4 / len(z) ** 0.5
    assert float((z.abs() > 4).double().mean()) < 5e-4
    assert 0.95 < float(z.std()) < 1.05


@pytest.mark.parametrize("make", [sgd, adamw], ids=["SGD", "AdamW"])
def test_foreach_slices_and_order_change_no_bit(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _ = stored("int8", make)
    train(model, optimizer, 4)

    def foreach(parameters: Any) -> torch.optim.Optimizer:
        made = make(reversed(list(parameters)))
        for group in made.param_groups:
            group["foreach"] = True
        return made

    other, beside, _ = stored("int8", foreach)
    monkeypatch.setattr(stepping, "AT_ONCE", 1)
    train(other, beside, 4)
    assert same(model, other)


class Counting(torch.optim.Optimizer):
    """An optimizer of one's own, which counts its steps in the group."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["last"] = parameter.grad.clone()
                    parameter.add_(parameter.grad, alpha=-group["lr"])


def test_an_optimizer_of_ones_own_steps_on_all_weights_at_once() -> None:
    model, optimizer, handle = stored("int8", Counting)
    other, beside, _ = stored("int8", lambda p: torch.optim.SGD(p, lr=0.05))
    assert train(model, optimizer, 3) == train(other, beside, 3)
    assert same(model, other)
    assert optimizer.param_groups[0]["steps"] == 3
    assert set(map(id, optimizer.state)) == set(map(id, model.parameters()))
    assert "Counting: all weights in float32 at a time" in handle.explain()


def test_the_closure_runs_once_and_before_any_update() -> None:
    model, optimizer, _ = stored("int8")
    other, beside, _ = stored("int8")
    calls = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        x, target = batch(len(calls))
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        calls.append(loss.item())
        return loss

    losses = [optimizer.step(closure).item() for _ in range(2)] + [optimizer.step(closure=closure).item()]
    assert losses == calls == train(other, beside, 3)
    assert same(model, other)


def memory_of(x: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of a float32 tensor; None for others, also those without memory that a tracer left behind."""
    try:
        storage = x.untyped_storage()
        return (storage.data_ptr(), storage.nbytes()) if x.dtype == torch.float32 else None
    except (RuntimeError, NotImplementedError):
        return None


def float_bytes() -> int:
    """Bytes of all float32 tensors that are alive."""
    gc.collect()
    alive = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    return sum(dict(filter(None, map(memory_of, alive))).values())


def test_no_float32_copy_is_alive_between_steps() -> None:
    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    before = float_bytes()
    model, optimizer, handle = stored("int8", plain)
    train(model, optimizer, 2)
    optimizer.zero_grad()
    biases = 4 * (8 + 32 + 10)
    spacings = biases  # one for each output, like the biases
    assert handle.counters().bytes == handle.counters().weights + spacings
    assert float_bytes() - before <= biases + spacings + 4096 < 4 * handle.counters().weights / 8
    copy = model[3].weight.decode()
    assert float_bytes() - before > copy.nbytes


def test_at_most_a_few_weights_are_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8)))
    optimizer = sgd(model.parameters())
    lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    monkeypatch.setattr(stepping, "AT_ONCE", 2500)  # two weights of 1,024
    seen = []
    own = stepping._own_step(optimizer)

    def watched(optimizer: Any) -> None:
        given = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        seen.append(sum(p.numel() for p in given))
        own(optimizer)

    monkeypatch.setattr(stepping, "_own_step", lambda optimizer: watched)
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    assert seen == [2048] * 4 + [0]  # at last the parameters that are not in low precision: none


def test_gradients_may_accumulate_and_be_clipped() -> None:
    model, optimizer, handle = stored("int8")
    twin = handle.export()
    for each in (model, twin):
        for seed in range(3):
            gradients(each, seed)
        nn.utils.clip_grad_norm_(each.parameters(), 0.1)
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
    optimizer.step()
    assert all(p.grad is not None for p in model.parameters())
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())


def test_a_model_in_bfloat16_has_gradients_in_bfloat16_and_steps_in_float32() -> None:
    model, optimizer, _ = stored("int8")
    model.to(torch.bfloat16)
    x, target = batch(0)
    F.cross_entropy(model(x.bfloat16()).float(), target).backward()
    assert model[3].weight.grad.dtype == torch.bfloat16
    before = model[3].weight.decode(torch.float32)
    optimizer.step()
    moved = model[3].weight.decode(torch.float32) - before
    expected = -0.05 * model[3].weight.grad.float()
    assert float((moved * expected).sum()) > 0
    assert bool(((moved - expected).abs() <= 1.0001 * 17 / 16 * model[3].weight.spacing).all())


def test_an_optimizer_that_is_not_bound_rounds_at_each_operator() -> None:
    model = network()
    handle = lograd.low_precision_weights(model, "int8")
    optimizer = adamw(model.parameters())
    train(model, optimizer, 2)
    assert handle.steps == 0
    assert model[3].weight.rounded == 4 * model[3].weight.numel()  # the decay, then the step
    assert "no optimizer is bound" in handle.explain()


def test_neither_a_copy_nor_a_freed_optimizer_has_another_step() -> None:
    _, optimizer, handle = stored("int8")
    twin = copy.deepcopy(optimizer)
    assert "step" not in twin.__dict__
    handle.remove()
    assert "step" not in optimizer.__dict__
    assert not optimizer._optimizer_load_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


# -- among others' code --


@pytest.mark.parametrize("first", [True, False], ids=["before bind", "after bind"])
def test_hooks_and_schedules_of_the_user_run_around_the_step_in_either_order(first: bool) -> None:
    """A hook before the step clips gradients, one behind it clears them, and a schedule halves the learning rate."""
    seen: list[int] = []

    def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.01)

    def clear(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(optimizer.param_groups[0]["params"]))
        optimizer.zero_grad()

    def watch(optimizer: Any) -> Any:
        optimizer.register_step_pre_hook(clip)
        optimizer.register_step_post_hook(clear)
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    model, other = network(), network()
    optimizer, beside = sgd(model.parameters()), sgd(other.parameters())
    schedule = watch(optimizer) if first else None
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    lograd.low_precision_weights(other, "int8", optimizer=beside)
    schedule = schedule or watch(optimizer)
    for step in range(3):
        for each in (model, other):
            gradients(each, step)
        nn.utils.clip_grad_norm_(other.parameters(), 0.01)
        optimizer.step()
        schedule.step()
        beside.step()
        beside.zero_grad()
        beside.param_groups[0]["lr"] /= 2
        assert all(p.grad is None for p in model.parameters())
        assert same(model, other)
    assert seen == [6, 6, 6]
    assert (handle.steps, schedule.get_last_lr()) == (3, [0.05 / 8])
    handle.remove()
    assert ("step" in optimizer.__dict__) is True, "that of the schedule"
    train(model, optimizer, 1)
    assert handle.steps == 3


class Failing(torch.optim.SGD):
    """Raises an error where it is told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("out of luck")
        return super().step(closure)


@pytest.mark.parametrize("own", [False, True], ids=["torch.optim", "one's own"])
def test_a_step_that_fails_leaves_weights_state_and_gradients(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = (lambda p: Failing(p, lr=0.05, momentum=0.9)) if own else sgd
    (model, optimizer, _), (other, beside, _) = stored("int8", make), stored("int8", make)
    for each, one in ((model, optimizer), (other, beside)):
        train(each, one, 1)
    before, parameters = numbers(model), list(model.parameters())
    gradients(model, 9)
    kept = [p.grad for p in parameters]
    if own:
        optimizer.fails = True
    else:  # a gradient of a shape at which the step of the biases fails, after that of the weights
        model[0].bias.grad.data = torch.ones(3)
    with pytest.raises(RuntimeError):
        optimizer.step()
    if own:
        optimizer.fails = False
        assert all(torch.equal(value, numbers(model)[name]) for name, value in before.items())
        assert train(model, optimizer, 2, first=1) == train(other, beside, 2, first=1)
        assert same(model, other)
    else:
        assert all(p.grad is gradient for p, gradient in zip(parameters, kept, strict=True))
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == list(map(id, parameters))
    assert set(map(id, optimizer.state)) <= set(map(id, parameters))


def test_an_optimizer_whose_step_was_replaced_is_refused() -> None:
    model = network()
    optimizer = sgd(model.parameters())
    optimizer.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(lograd.InvalidValue, match="was replaced"):
        lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    assert not any(isinstance(p, LowPrecisionTensor) for p in model.parameters())


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
            assert weight.rounded == weight.numel()
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


def test_an_optimizer_steps_on_the_weights_of_one_handle() -> None:
    one, two = network(), network(seed=1)
    optimizer = sgd([*one.parameters(), *two.parameters()])
    lograd.low_precision_weights(one, "int8", optimizer=optimizer)
    with pytest.raises(lograd.InvalidValue, match="another handle already"):
        lograd.low_precision_weights(two, "int8", optimizer=optimizer)
    assert not any(isinstance(p, LowPrecisionTensor) for p in two.parameters())
