"""A guard gives more bits to a rounded gradient whose noise does not fit, and takes them back when it does."""

import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Guard, Plan
from lograd.errors import LogradWarning
from lograd.training.measuring import TreatedSums, treated

WIDE = "treated, in 8 bits"


def spread(factor):
    """Weights of samples, of mean 1: a larger factor makes the law of gradients wider, and integers coarser."""
    weights = torch.randn(256, 1, generator=torch.Generator().manual_seed(0)).mul(factor).exp()
    return weights / weights.mean()


def small(name, guard, backend="dense"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 4))
    return model, torch.randn(256, 32), lograd.attach(model, Plan.uniform(name, keep=()), backend=backend, guard=guard)


def run(model, x, handle, weight, steps):
    for _ in range(steps):
        model.zero_grad()
        (model(x).square() * weight).mean().backward()
        handle.step()
    return [parameter.grad.clone() for parameter in model.parameters()]


def statuses(handle):
    return {place.status for place in handle.guard.places.values()}


@pytest.mark.parametrize("backend", ["dense", "auto"])
@pytest.mark.parametrize("name", ["int4", "fp5", "int4-full"])
def test_gradients_get_as_many_bits_as_fit_and_are_rounded_to_them(name, backend):
    """The error of the gradients, over many steps, is that of 8 bits."""
    model, x, handle = small(name, Guard(0.02), backend)
    found = []
    for guarded in (handle, None):
        if guarded is None:
            handle.remove()
            model, x, handle = small(name, None, backend)
        run(model, x, handle, 1.0, 8)
        if guarded is not None:
            assert statuses(handle) == {WIDE}
            assert handle.guard.noise <= 0.02
            assert WIDE in str(handle.explain())
            assert {(change.after, change.cause) for change in handle.guard.changes} == {(WIDE, "fits")}
        drawn = torch.stack([run(model, x, handle, 1.0, 1)[0] for _ in range(30)])
        found.append(float(drawn.var(0).sum()))
    handle.remove()
    assert 0 < 30 * found[0] < found[1], "variance of 8 bits and of the plan's"


@pytest.mark.parametrize("name", ["int4-ptq", "int4-psq", "int4-ptq-rht"])
def test_a_layer_that_fits_alone_gets_more_bits_rather_than_none_beside_others(name):
    model, x, handle = small(name, Guard(0.02))
    run(model, x, handle, 1.0, 12)
    assert statuses(handle) == {"treated", WIDE}
    before = handle.cost.steps, handle.guard.references, handle.guard.made
    run(model, x, handle, 1.0, 100)
    after = handle.cost.steps, handle.guard.references, handle.guard.made
    assert after[0] - before[0] < 20, "what stays as it is takes no statistics in each step"
    assert after[1:] == before[1:]
    handle.remove()


def test_bits_of_one_product_leave_the_noise_of_the_other():
    """dX has 4 bits and dW has 8, whatever the guard does."""
    model, x, handle = small("int4-ptq", Guard(1e6))
    run(model, x, handle, 1.0, 4)
    for place in handle.guard.places.values():
        noise, weight_noise = place.noise, place.noise_weight
        place.set_level(1, 1.0)
        assert place.noise_weight == pytest.approx(weight_noise)
        assert place.noise < noise / 50
        place.set_level(0, 1.0)
        assert (place.noise, place.noise_weight) == pytest.approx((noise, weight_noise))
    handle.remove()


def test_widened_elements_are_counted_and_bits_are_those_in_force():
    model, x, handle = small("int4", Guard(0.4))
    run(model, x, handle, spread(0.1), 20)
    first = treated(handle)
    assert first.since(TreatedSums())["bits"] == 4
    with pytest.warns(LogradWarning, match="falling back"):
        run(model, x, handle, spread(3), 30)
    second = treated(handle)
    assert 4 < second.since(first)["bits"] < 8
    total = handle.counters().total
    assert second.bits == 4 * (total.elements - total.widened) + 8 * total.widened
    assert 0 < total.widened == total.to_json()["widened"] < total.elements
    handle.remove()


def test_a_product_without_more_bits_counts_none_of_its_elements_as_widened():
    """dX of int4-ptq has 4 bits and dW has 8, which stay."""
    model, x, handle = small("int4-ptq", Guard(1e6))
    run(model, x, handle, 1.0, 4)
    for place in handle.guard.places.values():
        place.set_level(1, 1.0)
    run(model, x, handle, 1.0, 4)
    counts = handle.counters().gradients("2")
    assert 0 < counts["input_gradient.gradient"].widened < counts["input_gradient.gradient"].elements
    assert counts["weight_gradient.gradient"].widened == 0 < counts["weight_gradient.gradient"].elements
    handle.remove()


def test_a_waiting_layer_is_explained_by_its_plan():
    model, x, handle = small("int4", Guard(1e-9))
    run(model, x, handle, 1.0, 6)
    assert statuses(handle) == {"waiting"}
    assert "int4" in str(handle.explain())
    assert "int8" not in str(handle.explain())
    handle.remove()


def test_without_a_guard_a_state_goes_on_with_the_bits_of_the_plan():
    """The scale of 8 bits would clip nearly all that 4 bits hold."""
    model, x, handle = small("int4", Guard(0.02))
    run(model, x, handle, 1.0, 8)
    assert statuses(handle) == {WIDE}
    _, _, other = small("int4", None)
    other.load_state_dict(handle.state_dict())
    run(other.model, x, other, 1.0, 1)
    assert other.counters().total.clipped - handle.counters().total.clipped < 20
    assert other.counters().total.widened == handle.counters().total.widened
    handle.remove()
    other.remove()


@pytest.mark.parametrize("name", ["fp4", "luq4", "mxfp4", "int8", "int4-interval"])
def test_where_more_bits_would_change_the_products_or_do_not_exist_gradients_stay_as_they_are(name):
    model, x, handle = small(name, Guard(1e-6))
    run(model, x, handle, 1.0, 8)
    assert statuses(handle) == {"waiting"}
    assert handle.counters().total.treated == 0
    handle.remove()


def test_bits_come_and_go_with_the_noise_and_a_fall_is_said():
    model, x, handle = small("int4", Guard(0.4))
    run(model, x, handle, spread(0.1), 20)
    assert statuses(handle) == {"treated"}
    with pytest.warns(LogradWarning, match=r"guard noise is .* above the budget of 0.4; falling back"):
        run(model, x, handle, spread(3), 30)
    assert WIDE in statuses(handle)
    assert handle.guard.noise <= 0.4
    run(model, x, handle, spread(0.1), 150)
    assert statuses(handle) == {"treated"}
    causes = {(change.before, change.after, change.cause) for change in handle.guard.changes}
    assert causes >= {("treated", WIDE, "noise"), (WIDE, "treated", "fits")}
    assert [place.statistics.operand.sites["gradient"].treatments for place in handle.guard.places.values()] == [
        Plan.uniform("int4").every.input_gradient.gradient
    ] * 2
    handle.remove()


def test_with_only_a_warning_no_bits_are_changed():
    model, x, handle = small("int4", Guard(0.4, fall_back=False))
    run(model, x, handle, spread(0.1), 20)
    with pytest.warns(LogradWarning, match="nothing is changed"):
        run(model, x, handle, spread(3), 30)
    assert statuses(handle) == {"treated"}
    handle.remove()


@pytest.mark.parametrize("name", ["int4", "int4-full"])
def test_a_resumed_run_has_the_same_bits(name):
    """Gradients after a resumption are those of the run that was not stopped, to the last bit."""
    model, x, handle = small(name, Guard(0.02))
    run(model, x, handle, 1.0, 8)
    assert statuses(handle) == {WIDE}
    other, _, resumed = small(name, Guard(0.02))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(handle.state_dict())
    assert statuses(resumed) == {WIDE}
    for _ in range(3):
        expected, found = (run(*each, 1.0, 1) for each in ((model, x, handle), (other, x, resumed)))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    handle.remove()
    resumed.remove()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(("name", "backend"), [("int4", "dense"), ("int4-full", "integer")])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_compiled_steps_take_the_bits_of_the_guard_and_nothing_is_compiled_again(name, backend):
    batch, found = image_batches(1)[0], []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = conv_net()
        handle = lograd.attach(model, Plan.uniform(name, keep=()), backend=backend, guard=Guard(0.01))
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for _ in range(6):
            model.zero_grad()
            cross_entropy(forward(batch[0]), batch[1]).backward()
            handle.step()
        assert WIDE in statuses(handle)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
