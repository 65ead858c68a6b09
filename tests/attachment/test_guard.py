"""The guard: what it lets in, what falls back and returns, its words, its state, and that it changes nothing else."""

import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import lograd
from lograd import Guard, InvalidType, InvalidValue, Plan
from lograd.attachment.place import Place
from lograd.attachment.travel import Bound, Measured, travel_of
from lograd.errors import LogradWarning
from lograd.plan.expected import Expected
from lograd.theory import Propagation


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_budget_is_positive_and_finite(budget):
    with pytest.raises((InvalidValue, InvalidType), match="budget of a guard"):
        Guard(budget)


def test_other_arguments_are_refused():
    with pytest.raises(InvalidType, match="fall_back"):
        Guard(fall_back=1)
    with pytest.raises(InvalidType, match="guard must be True, False or a Guard"):
        lograd.attach(conv_net(), Plan.uniform("prune80"), guard=0.2)
    assert Guard(0.2) == Guard(budget=0.2)
    assert hash(Guard(0.2)) == hash(Guard(0.2))


# -- one step after the other --


def step(model, batch, handle=None, factor=1.0):
    """One step without learning; return the gradients."""
    model.zero_grad()
    (factor * cross_entropy(model(batch[0]), batch[1])).backward()
    if handle is not None:
        handle.step()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["prune30", "topk80", "int8-full", "fp6"])
def test_the_first_step_has_the_gradients_of_the_forward_and_later_ones_are_treated(name):
    """Integer layers have the exact gradient of what their forward computed from codes."""
    plan, batch = Plan.uniform(name, keep=()), image_batches(1)[0]
    model, exact = conv_net(), conv_net()
    handle = lograd.attach(model, plan, backend="integer" if name == "int8-full" else "dense", guard=Guard(1e6))
    layer = plan.every
    forward = Plan(
        every=lograd.LayerPlan(
            layer.output, _without_gradient(layer.input_gradient), _without_gradient(layer.weight_gradient)
        )
    )
    with lograd.attach(exact, forward, backend="dense"):
        expected = step(exact, batch)
    found = step(model, batch, handle)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert handle.counters().total.treated == 0
    assert handle.guard.waiting == []
    treated = step(model, batch, handle)
    assert not all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(treated, expected, strict=True))
    assert handle.counters().total.treated > 0
    handle.remove()


def _without_gradient(product):
    return type(product)(activations=product.activations, weights=product.weights)


def test_a_layer_whose_own_noise_is_beyond_the_budget_gets_fewer_zeros_or_stays_as_it_is():
    batch = image_batches(1, size=32)[0]
    for budget, words in ((1e-6, "waiting"), (0.25, "treated, at most")):
        model = conv_net()
        handle = lograd.attach(model, Plan.uniform("prune80"), backend="dense", guard=Guard(budget))
        for _ in range(8):
            step(model, batch, handle)
        assert any(place.status.startswith(words) for place in handle.guard.places.values())
        assert handle.guard.noise <= budget
        assert "guard: " in handle.explain()
        assert f"budget {budget:g}" in handle.explain().summary
        for name, place in handle.guard.places.items():
            most = place.statistics.most_zeros if place.statistics.treats else 0.0
            assert handle.counters().layers[name].sparsity <= most + 0.05
        handle.remove()


def heavy(count, seed=0):
    """Losses of samples that differ by orders of magnitude: gradients of a wide law, which pruning hardly hurts."""
    return torch.randn(count, 1, generator=torch.Generator().manual_seed(seed)).mul(3).exp()


def chain(layers=8):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32)) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(32, 4)), torch.randn(256, 32)


def run(model, x, handle, weights):
    for weight in weights:
        model.zero_grad()
        (model(x).square() * weight).mean().backward()
        handle.step()


def test_noise_that_grows_is_warned_of_by_name_falls_back_and_returns():
    model, x = chain()
    even = torch.ones(256, 1)
    handle = lograd.attach(model, Plan.uniform("prune70"), backend="dense", guard=True)
    run(model, x, handle, [heavy(256)] * 20)
    assert handle.guard.waiting == []
    words = r"the gradient of '.*' is where most noise arrives: guard noise is .* above the budget of 1; falling"
    with pytest.warns(LogradWarning, match=words):
        run(model, x, handle, [even * heavy(256).mean()] * 20)
    fallen = {change.layer for change in handle.guard.changes if change.cause == "noise"}
    assert fallen
    assert handle.guard.noise <= 1
    assert "fell back" in handle.explain().summary
    assert "step" in str(handle.guard.changes[-1])
    last = handle.steps
    run(model, x, handle, [heavy(256)] * 60)
    back = [change for change in handle.guard.changes if change.cause == "fits" and change.step > last]
    assert back, "layers return as the noise has gone"
    handle.remove()


def test_without_falling_back_it_only_warns():
    model, x = chain()
    handle = lograd.attach(model, Plan.uniform("prune70"), backend="dense", guard=Guard(fall_back=False))
    run(model, x, handle, [heavy(256)] * 20)
    with pytest.warns(LogradWarning, match="nothing is changed"):
        run(model, x, handle, [torch.ones(256, 1) * heavy(256).mean()] * 20)
    assert handle.guard.waiting == []
    assert {change.cause for change in handle.guard.changes} == {"fits"}
    handle.remove()


def test_gradients_of_another_size_pass_through_and_nan_is_said():
    model, batch = conv_net(), image_batches(1)[0]
    plain = step(conv_net(), batch, factor=1e-4)
    handle = lograd.attach(model, Plan.uniform("prune80"), backend="dense", guard=Guard(1e6), refresh="epoch")
    for _ in range(25):
        step(model, batch, handle)
    with pytest.warns(LogradWarning, match="has another size than in its statistics"):
        found = step(model, batch, handle, factor=1e-4)
    changes = [(change.step, change.cause, change.after) for change in handle.guard.changes if change.cause == "size"]
    assert changes == [(25, "size", "untreated in this step")] * len(handle.layers)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-9) for a, b in zip(found, plain, strict=True))
    step(model, batch, handle, factor=1e-4)
    assert not all(torch.equal(a, b) for a, b in zip(step(model, batch, handle, factor=1e-4), found, strict=True))
    with pytest.warns(LogradWarning, match="has NaN"):
        step(model, batch, handle, factor=float("nan"))
    handle.remove()


# -- saving --


def test_a_resumed_run_goes_on_bit_for_bit():
    model, x = chain()
    weights = [heavy(256, seed) for seed in range(24)]
    handle = lograd.attach(model, Plan.uniform("prune85"), backend="dense", guard=True)
    for cut in (3, 4, 9, 10, 17):
        run(model, x, handle, weights[handle.steps : cut])
        state = pickle.loads(pickle.dumps(handle.state_dict()))
        other, _ = chain()
        resumed = lograd.attach(other, Plan.uniform("prune85"), backend="dense", guard=True)
        resumed.load_state_dict(state)
        other.load_state_dict(model.state_dict())
        for one, net in ((handle, model), (resumed, other)):
            run(net, x, one, weights[cut : cut + 3])
        assert handle.guard.state() == resumed.guard.state()
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
        resumed.remove()
    handle.remove()


def test_states_with_and_without_a_guard_are_exchanged_and_damaged_ones_refused():
    batch = image_batches(1)[0]
    guarded, plain = (
        lograd.attach(conv_net(), Plan.uniform("prune80"), backend="dense", guard=guard) for guard in (True, False)
    )
    for handle in (guarded, plain):
        for _ in range(3):
            step(handle.model, batch, handle)
    state = guarded.state_dict()
    plain.load_state_dict(state)
    step(plain.model, batch, plain)
    without = {name: value for name, value in state.items() if name not in ("guard", "checksums")}
    guarded.load_state_dict(without)
    step(guarded.model, batch, guarded)
    for change in (
        {"layers": {"nobody": {}}}, {"layers": {"0": {}}}, {"schedule": [1]}, {"changes": [[1]]}, {"references": -1},
        {"measured": ["a", 1, 1]},
    ):  # fmt: skip
        damaged = {name: value for name, value in state.items() if name != "checksums"}
        damaged["guard"] = state["guard"] | change
        with pytest.raises(InvalidValue, match="guard"):
            guarded.check_state_dict(damaged)


# -- elsewhere --


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled_and_eager_runs_agree():
    batches, found = image_batches(8), []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = conv_net()
        network = torch.compile(model, backend="aot_eager") if compiled else model
        handle = lograd.attach(model, Plan.uniform("prune80"), backend="dense", guard=True)
        found.append([step(network, batch, handle) for batch in batches])
        found[-1].append(handle.guard.state())
        handle.remove()
    assert found[0][-1] == found[1][-1]
    pairs = [pair for a, b in zip(*(one[:-1] for one in found), strict=True) for pair in zip(a, b, strict=True)]
    assert all(torch.equal(a, b) for a, b in pairs)


def _rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = DistributedDataParallel(conv_net())
    handle = lograd.attach(model, Plan.uniform("prune80"), backend="dense", guard=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for batch in image_batches(5, seed=rank):
        step(model, batch, handle)
        optimizer.step()
    weights = [parameter.detach() for parameter in model.parameters()]
    torch.save({"weights": weights, "waiting": handle.guard.waiting, "made": handle.guard.made}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow  # processes that wait for each other
def test_ranks_decide_for_themselves_and_their_weights_agree(tmp_path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(map(torch.equal, first["weights"], second["weights"]))
    assert first["made"]
    assert second["made"]


# -- how noise travels --


def test_the_bound_is_the_product_of_the_noise_behind_a_layer():
    noise = np.array([0.5, 0.0, 1.0, 0.25])
    growth = Bound().growth(noise)
    assert np.exp(growth) == pytest.approx([2.5, 2.5, 1.25, 1.0])
    assert Bound().shares(growth, noise, noise) == pytest.approx([2.75, 1.5, 1.5, 0.25])


def test_measured_factors_of_a_plan_give_its_noise():
    energies = Propagation([2.0, 1.0, 3.0], [0.0, 1.0, 2.0], [[0, 0.5, 0.2], [0, 0, 0.4], [0, 0, 0]])

    class Expecting:
        class expected:
            unit, layers = 4.0, ("c", "a", "b", "d")
            energies = Propagation([9.0, 2.0, 1.0, 3.0], [9.0, 0.0, 1.0, 2.0], np.pad(
                [[0, 0.5, 0.2], [0, 0, 0.4], [0, 0, 0]], ((1, 0), (1, 0))))  # fmt: skip

    travel = travel_of(Expecting, ["a", "b", "d"])
    assert isinstance(travel, Measured)
    n, w = np.array([0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3])
    total = travel.total(travel.shares(travel.growth(n), n, w))
    assert total == pytest.approx(energies.total(n, w) / 4.0)
    assert isinstance(travel_of(Expecting, ["a", "nobody"]), Bound)
    assert isinstance(travel_of(Plan(), ["a"]), Bound)


@pytest.mark.parametrize("measured", [False, True])
def test_what_a_guard_prints_is_not_taken_for_the_noise_that_a_plan_predicts(measured):
    """A plan tells rho + pi, a guard its own measure by its own name, and which of two ratios it is."""
    model, x = chain()
    plan, names = Plan.uniform("prune70", keep=()), [f"{place}.0" for place in range(8)] + ["8"]
    factors = {"layers": tuple(names), "energies": Propagation(np.ones(9), np.zeros(9), np.zeros((9, 9)))}
    plan = replace(plan, expected=Expected(0.01, 100.0, **factors if measured else {}))
    handle = lograd.attach(model, plan, backend="dense", guard=True)
    run(model, x, handle, [heavy(256)] * 20)
    with pytest.warns(LogradWarning) if not measured else nullcontext() as warned:
        run(model, x, handle, [torch.ones(256, 1) * heavy(256).mean()] * 20)
    means = "rho of the backward, without pi" if measured else "the noise-to-signal ratio in the worst layer"
    summary = f"guard noise {handle.guard.noise:.2g} ({means}), budget 1"
    said = [str(handle.guard), str(handle.explain()), *(str(one.message) for one in warned or ())]
    changes = [str(change) for change in handle.guard.changes]
    assert changes
    assert all("; guard noise " in one for one in changes)
    assert all(summary in one for one in said[:2])
    assert all(f"({means})" in one for one in said)
    assert not any("minibatch" in one for one in (*said, *changes)), "these are the words of a plan"
    assert "minibatch's variance" in plan.expected.words()
    handle.remove()


def test_the_noise_of_a_layer_is_the_measured_one():
    """The prediction of each recipe is that of a draw within a tenth; rows and blocks have a bound."""
    torch.manual_seed(0)
    g = torch.randn(64, 512) * torch.randn(64, 1).mul(2).exp()
    for name, exact in (("prune80", True), ("fp6", True), ("int8-psq", False), ("mxfp4-full", False)):
        layer = nn.Linear(8, 512)
        handle = lograd.attach(layer, Plan.uniform(name, keep=()), backend="dense", guard=True)
        layer(torch.randn(64, 8)).backward(g)
        handle.step()
        place = handle.guard.places[""]
        assert isinstance(place, Place)
        site = handle.layers[""].gradient.at["input_gradient"]
        treated = site.treat(g, (1,), torch.tensor([1, 0]))
        measured = float((treated - g).square().sum() / g.square().sum())
        assert place.noise == pytest.approx(measured, rel=0.15) if exact else place.noise >= 0.9 * measured
        handle.remove()
