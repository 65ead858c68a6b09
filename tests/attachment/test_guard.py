"""Noise that spoils a training: the guard, and the warnings of exploding noise, a lossy forward, a forgotten step."""

import pickle
import warnings

import pytest
import torch
from guarded import band, mobile_net, trained
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import ZOO

import lograd
from lograd import Guard, InvalidType, InvalidValue, Plan
from lograd.attachment import guard as guards
from lograd.attachment.guard import EVERY, MOST_LOST, Noise, predicted_noise
from lograd.attachment.refresh import OperandStatistics
from lograd.errors import LogradWarning


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "1", None])
def test_a_budget_is_positive_and_finite(budget):
    with pytest.raises((InvalidValue, InvalidType), match="budget"):
        Guard(budget)


def test_other_arguments_and_plans_without_pruning_are_refused_and_the_model_stays_plain():
    model = conv_net()
    with pytest.raises(InvalidType, match="guard"):
        lograd.attach(model, Plan.uniform("prune80"), guard=0.2)
    with pytest.raises(InvalidValue, match="guard"):
        lograd.attach(model, Plan.uniform("int8-full"), guard=True)
    assert type(model[0]) is nn.Conv2d
    assert Guard() == Guard(1.0)


def step(model, batch, handle=None):
    """One step without learning; return the gradients."""
    model.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    if handle is not None:
        handle.step()
    return [parameter.grad.clone() for parameter in model.parameters()]


def run(model, x, handle, weights):
    for weight in weights:
        model.zero_grad()
        (model(x).square() * weight).mean().backward()
        handle.step()


def chain(layers=60):
    """Linear layers in a row, with a gain that keeps the energy of a gradient: all noise adds up."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32)) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(32, 4)), torch.randn(64, 32)


# -- the guard --


@pytest.mark.parametrize("budget", [1e-6, 0.25, 1.0])
def test_too_much_noise_is_not_let_in(budget):
    batch, model = image_batches(1, size=32)[0], conv_net()
    handle = lograd.attach(model, Plan.uniform("prune80", keep=()), backend="dense", guard=Guard(budget))
    for _ in range(8):
        step(model, batch, handle)
    guard, explained = handle.guard, handle.explain()
    assert guard.noise <= budget
    assert guard.waiting
    for name in handle.layers:
        assert ("guard: " in explained.layers[name]) == (name in guard.waiting)
    treated = len(handle.layers) - len(guard.waiting)
    assert f"Guard: {treated} of {len(handle.layers)} layers treated" in explained.summary
    assert budget > 1e-3 or treated == handle.counters().total.treated == 0
    handle.remove()


@pytest.mark.parametrize(("name", "exact"), [("prune80", True), ("prune85+fp6", True), ("int8-psq", False)])
def test_the_noise_of_a_layer_is_the_measured_one(name, exact):
    """The prediction of each recipe is that of a draw within a tenth; rows and blocks have a bound."""
    torch.manual_seed(0)
    g = torch.randn(64, 512) * torch.randn(64, 1).mul(2).exp()
    layer = nn.Linear(8, 512)
    handle = lograd.attach(layer, Plan.uniform(name, keep=()), backend="dense")
    layer(torch.randn(64, 8)).backward(g)
    handle.step()
    found = predicted_noise(handle.gradients[""], 1.0).dx
    treated = handle.layers[""].gradient.at["input_gradient"].treat(g, (1,), torch.tensor([1, 0]))
    measured = float((treated - g).square().sum() / g.square().sum())
    assert found == pytest.approx(measured, rel=0.15) if exact else found >= 0.9 * measured


class Planted:
    """A guard over layers whose noise and energies are planted, step by step: nothing is trained or random."""

    def __init__(self, monkeypatch, layers, budget=1.0):
        model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
        self.handle = lograd.attach(model, Plan.uniform("prune80", keep=()), backend="dense", guard=Guard(budget))
        self.guard, self.step = self.handle.guard, -1
        self.statistics = self.handle.gradients
        self.noise = {}
        monkeypatch.setattr(guards, "predicted_noise", lambda one, scale: Noise(*(self.noise[id(one)],) * 2))
        monkeypatch.setattr(OperandStatistics, "set_numbers", lambda *given: None)

    def judge(self, noise, growth=1.0, everywhere=1.0, steps=1):
        """Make steps with this noise; the energy of the first layer grows in treated steps.  Return how many wait."""
        noise = noise if isinstance(noise, list) else [noise] * len(self.statistics)
        found = []
        for _ in range(steps):
            self.step += 1
            treated = any(one.operand.ready for one in self.statistics.values())
            for place, (one, n) in enumerate(zip(self.statistics.values(), noise, strict=True)):
                self.noise[id(one)] = n
                one.step, one.table = self.step, torch.ones(1)  # so that it may be treated
                one.energy = everywhere * (growth if treated and not place else 1.0)
            self.guard.judge(self.step, 1.0)
            self.guard.prepare(self.step + 1)
            found.append(len(self.guard.waiting))
        return found


def test_layers_come_in_by_their_noise_as_far_as_there_is_room(monkeypatch):
    planted = Planted(monkeypatch, 4, budget=1.0)
    noise = [0.25, 5.0, 0.1, 0.2]
    assert planted.judge(noise) == [1]
    assert planted.guard.waiting == ["1"]
    assert planted.guard.noise == pytest.approx(1.25 * 1.1 * 1.2 - 1)
    assert [change.layer for change in planted.guard.changes] == ["2", "3", "0"]
    planted = Planted(monkeypatch, 4, budget=0.5)
    assert planted.judge(noise) == [2], "0.1 and 0.2 fit into 0.35, and 0.25 does not besides"
    assert planted.guard.waiting == ["0", "1"]


def test_noise_lets_the_loudest_fall_back_and_the_wait_doubles(monkeypatch):
    planted = Planted(monkeypatch, 2)
    planted.judge([0.2, 0.1])
    for wait in (EVERY, 2 * EVERY, 4 * EVERY):
        planted.judge([3.0, 0.1])
        fell = planted.guard.changes[-1]
        assert (fell.layer, fell.treated, fell.cause) == ("0", False, "noise")
        assert f"until step {fell.step + wait}" in planted.handle.explain()
        waited = planted.judge([0.2, 0.1], steps=fell.step + wait - planted.step)
        assert waited == [1] * (len(waited) - 1) + [0], "it returns when its wait is over"
        assert planted.guard.changes[-1].treated
    assert "fell back 3 times" in planted.handle.explain().summary


def test_growth_beyond_the_prediction_throws_out_one_layer_after_the_other(monkeypatch):
    planted = Planted(monkeypatch, 3)
    with pytest.warns(LogradWarning, match="'0' had grown") as said:
        planted.judge([0.1, 0.2, 0.1], growth=100.0, steps=16)
    assert len(said) == 1, "it is said once"
    fallen = [change.layer for change in planted.guard.changes if change.cause == "explosion"]
    assert fallen == ["1", "2"], "the loudest first, and noise of layer 0 reaches nobody"
    assert planted.guard.waiting == ["1", "2"]


def test_a_loss_that_grows_in_all_layers_is_no_noise(monkeypatch):
    planted = Planted(monkeypatch, 3)
    planted.judge(0.15)
    assert planted.judge(0.15, everywhere=1e6, steps=20) == [0] * 20


def test_an_explosion_that_no_law_tells_of_is_found():
    """The gradient lies in a direction that a layer passes on least, and noise in all others."""
    torch.manual_seed(0)
    u = nn.functional.normalize(torch.randn(32), dim=0)
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False), nn.Linear(32, 1, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(30 * torch.eye(32) - 29.9 * torch.outer(u, u))
        model[2].weight.copy_(u[None])
    x = torch.randn(256, 32)
    handle = lograd.attach(model, Plan.uniform("prune50", keep=()), backend="dense", guard=True)
    with pytest.warns(LogradWarning, match="the energy of the gradient of '0' had grown"):
        run(model, x, handle, [torch.ones(256, 1)] * 12)
    assert handle.guard.waiting == ["1", "2"], "the noise of layer 1 did it, and that of layer 2 is louder"
    handle.remove()


def test_a_deep_narrow_network_pruned_from_its_first_step_stays_in_the_band_of_dense_runs():
    dense = [trained(mobile_net, None, 30, seed) for seed in (1, 2, 3, 4)]
    plain, guarded = (trained(mobile_net, "prune85", 30, guard=guard) for guard in (False, True))
    for first, last in ((10, 20), (20, 30)):
        limit = band(dense, first, last)
        assert guarded.mean(first, last) < limit
        assert plain.mean(first, last) > limit, "else nothing was planted"
    assert 0 < len(guarded.guard.waiting) < 20, "some layers were let in, and not all"
    assert guarded.guard.noise <= 1


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_a_resumed_run_goes_on_bit_for_bit(cut, monkeypatch):
    """Also where the next step is a reference."""
    monkeypatch.setattr(guards, "EVERY", 5)
    model, x = chain(8)
    weights = [torch.randn(64, 1, generator=torch.Generator().manual_seed(seed)).mul(3).exp() for seed in range(16)]
    handle = lograd.attach(model, Plan.uniform("prune85"), backend="dense", guard=True)
    run(model, x, handle, weights[:cut])
    state = pickle.loads(pickle.dumps(handle.state_dict()))
    other, _ = chain(8)
    resumed = lograd.attach(other, Plan.uniform("prune85"), backend="dense", guard=True)
    resumed.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    for one, net in ((handle, model), (resumed, other)):
        run(net, x, one, weights[cut:])
    assert handle.guard.changes
    assert handle.guard.state() == resumed.guard.state()
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_states_with_and_without_a_guard_are_exchanged_and_damaged_ones_refused():
    batch = image_batches(1)[0]
    guarded, plain = (
        lograd.attach(conv_net(), Plan.uniform("prune80"), backend="dense", guard=guard)
        for guard in (Guard(0.01), False)
    )
    for handle in (guarded, plain):
        for _ in range(3):
            step(handle.model, batch, handle)
    assert guarded.guard.waiting
    state = guarded.state_dict()
    plain.load_state_dict(state)
    treated = plain.counters().total.treated
    step(plain.model, batch, plain)
    assert plain.counters().total.treated == treated + len(plain.layers), "nothing keeps them as they are any more"
    guarded.load_state_dict({name: value for name, value in state.items() if name != "guard"})
    step(guarded.model, batch, guarded)
    for change in ({"layers": []}, {"next": "1"}, {"layers": {next(iter(guarded.layers)): [True]}}):
        with pytest.raises(InvalidValue, match="guard"):
            guarded.load_state_dict(state | {"guard": state["guard"] | change})


# -- the warning of noise that explodes --

EXPLODES = "noise of pruning explodes over the .* layers"


def warned(model, x, steps=12, plan="prune85", scales=None, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with lograd.attach(model, Plan.uniform(plan), backend="dense", **options) as handle:
            for at in range(steps):
                model.zero_grad()
                scale, after = (1.0, None) if scales is None else scales[at : at + 2]
                (scale * model(x).square().mean()).backward()
                handle.step(loss_scale=after)
            explained = str(handle.explain())
    return [str(one.message) for one in found if issubclass(one.category, LogradWarning)], explained


def test_a_deep_chain_is_warned_of_once_and_explained():
    said, explained = warned(*chain(), steps=20)
    assert len(said) == 1
    assert "61 layers" in said[0]
    assert f"Warning: {said[0]}" in explained


@pytest.mark.parametrize(
    ("layers", "plan", "options"),
    [
        (60, "identity/prune85", {}), (60, "fp6", {}), (60, "prune20", {}), (4, "prune85", {}),
        (60, "prune85", {"guard": True}),
    ],
)  # fmt: skip
def test_nothing_is_said_where_noise_does_not_add_up(layers, plan, options):
    said, explained = warned(*chain(layers), plan=plan, **options)
    assert said == []
    assert "Warning" not in explained


def test_mobilenet_is_warned_of():
    torch.manual_seed(0)
    model, inputs = ZOO["mobilenet_v2"]()
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle, pytest.warns(match=EXPLODES):
        run(model, inputs["x"], handle, [1.0] * 9)


def test_another_loss_scale_or_a_loss_that_grows_is_no_growth():
    scales = [2.0 ** (4 * step) for step in range(13)]
    assert warned(*chain(4), scales=scales, loss_scale=1.0)[0] == []
    assert len(warned(*chain(), scales=[2.0**-step for step in range(13)], loss_scale=1.0)[0]) == 1
    model, x = chain(4)
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle:
        run(model, x, handle, [10.0**step for step in range(8)])


def test_a_resumed_run_does_not_say_it_again():
    model, x = chain()
    handle = lograd.attach(model, Plan.uniform("prune85"), backend="dense")
    with pytest.warns(LogradWarning, match=EXPLODES):
        run(model, x, handle, [1.0] * 10)
    state, explained = handle.state_dict(), str(handle.explain())
    handle.remove()
    with lograd.attach(model, Plan.uniform("prune85"), backend="dense") as handle:
        handle.load_state_dict(state)
        assert str(handle.explain()) == explained
        run(model, x, handle, [1.0] * 3)


# -- the warning of a forward that loses too much --


def outlying(columns=1, size=100.0):
    """A model whose second layer gets a few activations that are far larger than all others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    with torch.no_grad():
        model[1].weight[:columns] = size
        model[2].weight[:, :columns] /= size  # they matter as much as all others, and not more
    return model, torch.randn(256, 32)


@pytest.mark.parametrize("name", ["int4-full", "int6-full", "luq4"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_forward_that_loses_too_much_is_warned_of_once_with_its_worst_layer(name, compiled):
    model, x = outlying()
    handle = lograd.attach(model, Plan.uniform(name, keep=()), backend="dense" if compiled else "auto")
    network = torch.compile(model, backend="aot_eager") if compiled else model
    with pytest.warns(LogradWarning, match="'2'") as said:
        run(network, x, handle, [1.0] * 6)
    assert len(said) == 1
    assert "'4'" not in str(said[0].message)
    assert handle.layers["2"].output_error > MOST_LOST > handle.layers["4"].output_error
    state = handle.state_dict()
    handle.remove()
    with lograd.attach(model, Plan.uniform(name, keep=())) as handle:
        handle.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(model, x, handle, [1.0] * 3)


@pytest.mark.parametrize("name", ["int4-full", "int6-full", "int6-full-rows", "int8-full", "luq4", "mxfp4-full"])
def test_nothing_is_said_of_a_healthy_forward(name):
    model, x = outlying(size=1.0)
    with lograd.attach(model, Plan.uniform(name, keep=())) as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, x, handle, [1.0] * 6)
        assert all(0 < layer.output_error < MOST_LOST for layer in handle.layers.values())


def test_the_error_of_a_forward_is_that_of_the_output():
    model, x = outlying()
    plain = model[0](x).detach()
    with lograd.attach(model, Plan.uniform("int6-full", keep=()), backend="integer") as handle:
        rounded = model[0](x).detach()
        error = (rounded - plain).square().sum() / plain.square().sum()
        assert handle.layers["0"].output_error == pytest.approx(float(error), rel=1e-4)
        model[0](2 * x)
        assert handle.layers["0"].output_error == pytest.approx(float(error), rel=1e-4), "it is measured once"


# -- the warning of a forgotten step --


def test_a_forgotten_step_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("lograd.attachment.handle.FORGOTTEN", 5)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8)
    with lograd.attach(model, Plan.uniform("int8-full", keep=())):
        for _ in range(4):
            model(x).sum().backward()
        with pytest.warns(LogradWarning, match=r"handle\.step\(\)") as said:
            model(x).sum().backward()
        assert len(said) == 1
        model(x).sum().backward()
    with lograd.attach(model, Plan.uniform("int8-full", keep=())) as handle:
        for _ in range(12):
            model(x).sum().backward()
            handle.step()
