"""The guard: what it lets in, what falls back and returns, its words, its state, and that it changes nothing else."""

import pickle
import warnings

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
from lograd.attachment import guard as guards
from lograd.attachment.guard import EVERY, Noise, predicted_noise
from lograd.attachment.refresh import OperandStatistics
from lograd.errors import LogradWarning


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "1", None])
def test_a_budget_is_positive_and_finite(budget):
    with pytest.raises((InvalidValue, InvalidType), match="budget of a guard"):
        Guard(budget)


def test_other_arguments_are_refused():
    with pytest.raises(InvalidType, match="guard must be True, False or a Guard"):
        lograd.attach(conv_net(), Plan.uniform("prune80"), guard=0.2)
    assert Guard() == Guard(1.0)
    assert hash(Guard(0.2)) == hash(Guard(budget=0.2))


# -- one step after the other --


def step(model, batch, handle=None, factor=1.0):
    """One step without learning; return the gradients."""
    model.zero_grad()
    (factor * cross_entropy(model(batch[0]), batch[1])).backward()
    if handle is not None:
        handle.step()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["int8-full", "fp6", "prune30"])
def test_what_is_let_in_at_once_has_the_bits_of_a_run_without_a_guard_from_the_second_step_on(name):
    """In the first step, which takes statistics, gradients are those of the forward."""
    plan, batches = Plan.uniform(name, keep=()), image_batches(6)
    runs = []
    for guard in (False, Guard(100.0)):
        handle = lograd.attach(conv_net(), plan, backend="integer" if "full" in name else "dense", guard=guard)
        runs.append([step(handle.model, batch, handle) for batch in batches])
    assert handle.guard.waiting == []
    assert handle.guard.references == 0
    assert [(change.step, change.cause) for change in handle.guard.changes] == [(0, "fits")] * len(handle.layers)
    assert handle.counters().total.treated > 0
    for plain, guarded in zip(*(run[1:] for run in runs), strict=True):
        assert all(map(torch.equal, plain, guarded))


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
    words = f"guard noise {guard.noise:.2g} (the noise-to-signal ratio in the worst layer), budget {budget:g}"
    assert f"Guard: {treated} of {len(handle.layers)} layers treated; {words}" in explained.summary
    if budget < 1e-3:
        assert treated == handle.counters().total.treated == 0
        assert guard.references == 0, "nothing is treated, so nothing is checked"
    handle.remove()


@pytest.mark.parametrize(
    ("name", "exact"), [("prune80", True), ("fp6", True), ("int8-psq", False), ("mxfp4-full", False)]
)
def test_the_noise_of_a_layer_is_the_measured_one(name, exact):
    """The prediction of each recipe is that of a draw within a tenth; rows and blocks have a bound."""
    torch.manual_seed(0)
    g = torch.randn(64, 512) * torch.randn(64, 1).mul(2).exp()
    layer = nn.Linear(8, 512)
    handle = lograd.attach(layer, Plan.uniform(name, keep=()), backend="dense")
    layer(torch.randn(64, 8)).backward(g)
    handle.step()
    found = predicted_noise(handle._statistics[""]["gradient"], 1.0).dx
    treated = handle.layers[""].gradient.at["input_gradient"].treat(g, (1,), torch.tensor([1, 0]))
    measured = float((treated - g).square().sum() / g.square().sum())
    assert found == pytest.approx(measured, rel=0.15) if exact else found >= 0.9 * measured


# -- planted noise and energies: nothing is trained, and nothing is random --


class Planted:
    """A guard over layers whose noise and energies are planted, step by step."""

    def __init__(self, monkeypatch, layers, budget=1.0):
        model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
        self.handle = lograd.attach(model, Plan.uniform("int8", keep=()), backend="dense", guard=Guard(budget))
        self.guard, self.step = self.handle.guard, -1
        self.statistics = self.handle._gradients
        self.noise = {}
        monkeypatch.setattr(guards, "predicted_noise", lambda one, scale: Noise(*(self.noise[id(one)],) * 2))
        monkeypatch.setattr(OperandStatistics, "set_numbers", lambda *given: None)

    def judge(self, noise, growth=1.0, steps=1):
        """Make steps with this noise; the energy of the first layer grows in treated steps.  Return how many wait."""
        noise = noise if isinstance(noise, list) else [noise] * len(self.statistics)
        found = []
        for _ in range(steps):
            self.step += 1
            treated = any(one.operand.ready for one in self.statistics.values())
            for one, n in zip(self.statistics.values(), noise, strict=True):
                self.noise[id(one)] = n
                one.step, one.table = self.step, torch.ones(1)  # so that it may be treated
                one.energy = 1.0
            next(iter(self.statistics.values())).energy = growth if treated else 1.0
            self.guard.judge(self.step, 1.0)
            self.guard.prepare(self.step + 1)
            found.append(len(self.guard.waiting))
        return found


@pytest.mark.parametrize("layers", [1, 20, 50])
def test_layers_with_little_noise_come_in_at_once(monkeypatch, layers):
    planted = Planted(monkeypatch, layers)
    assert planted.judge(0.1 / layers, steps=100) == [0] * 100
    assert planted.guard.references == 0


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


def test_a_single_batch_with_another_noise_changes_little(monkeypatch):
    planted = Planted(monkeypatch, 2)
    assert planted.judge(60.0, steps=5) == [2] * 5
    assert planted.judge(0.0) == [2], "one with little noise lets nobody in"
    planted = Planted(monkeypatch, 2)
    assert planted.judge(0.1, steps=5) == [0] * 5
    assert planted.judge(1.0) == [0], "one with much noise throws nobody out"


def test_noise_that_stays_lets_the_loudest_fall_back_and_the_wait_doubles(monkeypatch):
    planted = Planted(monkeypatch, 2)
    planted.judge([0.2, 0.1])
    for wait in (EVERY, 2 * EVERY, 4 * EVERY):
        planted.judge([3.0, 0.1], steps=10)
        fell = planted.guard.changes[-1]
        assert (fell.layer, fell.after, fell.cause) == ("0", "dense", "noise")
        assert planted.guard.noise < 0.2
        assert f"until step {fell.step + wait}" in planted.handle.explain()
        waited = planted.judge([0.2, 0.1], steps=fell.step + wait - planted.step)
        assert waited == [1] * (len(waited) - 1) + [0], "it returns when its wait is over"
        assert planted.guard.changes[-1].before == "dense"
    assert "fell back 3 times" in planted.handle.explain().summary
    assert str(planted.guard.changes[-1]).startswith(f"step {planted.step}: 0 dense -> treated (fits; guard noise 0.")


def test_untreated_steps_become_rare_and_energies_that_grow_as_predicted_change_nothing(monkeypatch):
    planted = Planted(monkeypatch, 3)
    assert planted.judge(0.15, growth=1.3, steps=400) == [0] * 400
    assert 400 / EVERY <= planted.guard.references < 400 / EVERY + 6


def test_growth_beyond_the_prediction_throws_out_one_layer_after_the_other(monkeypatch):
    planted = Planted(monkeypatch, 3)
    words = "'0' had grown 1e\\+02 times, where 1.3 times was predicted; the guard keeps '1' as it is until"
    with pytest.warns(LogradWarning, match=words) as said:
        planted.judge([0.1, 0.2, 0.1], growth=100.0, steps=16)
    assert len(said) == 1, "it is said once"
    fallen = [(change.step, change.layer) for change in planted.guard.changes if change.cause == "explosion"]
    assert fallen[0] == (3, "1"), "the loudest, as soon as two pairs of steps agree"
    assert [layer for _, layer in fallen] == ["1", "2"], "noise of layer 0 reaches nobody"
    assert planted.guard.waiting == ["1", "2"]


def test_growth_in_a_single_pair_of_steps_is_a_difference_of_batches(monkeypatch):
    planted = Planted(monkeypatch, 3)
    planted.judge(0.15, growth=100.0, steps=2)
    planted.judge(0.15, steps=20)
    assert planted.guard.waiting == []


def test_a_loss_that_grows_in_all_layers_is_no_noise(monkeypatch):
    planted = Planted(monkeypatch, 3)
    planted.judge(0.15)
    for one in planted.statistics.values():
        one.energy = 1e6
    planted.guard._check(0, planted.guard._layers)
    assert not planted.guard._suspected


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


def test_where_a_guard_is_at_work_no_other_warning_is_given():
    model, x = chain(20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        handle = lograd.attach(model, Plan.uniform("prune90"), backend="dense", guard=True)
        run(model, x, handle, [torch.ones(256, 1)] * 8)
        handle.remove()
    assert not [one for one in said if issubclass(one.category, LogradWarning)]
    assert handle.guard.noise <= 1


# -- saving --


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_resumed_run_goes_on_bit_for_bit(cut):
    """Also where the next step is a reference, or is held against one."""
    model, x = chain()
    weights = [heavy(256, seed) for seed in range(24)]
    handle = lograd.attach(model, Plan.uniform("prune85"), backend="dense", guard=True)
    run(model, x, handle, weights[:cut])
    state = pickle.loads(pickle.dumps(handle.state_dict()))
    other, _ = chain()
    resumed = lograd.attach(other, Plan.uniform("prune85"), backend="dense", guard=True)
    resumed.load_state_dict(state)
    other.load_state_dict(model.state_dict())
    for one, net in ((handle, model), (resumed, other)):
        run(net, x, one, weights[cut:])
    assert handle.guard.references
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
    without = {name: value for name, value in state.items() if name != "guard"}
    guarded.load_state_dict(without)
    step(guarded.model, batch, guarded)
    name = next(iter(state["guard"]["layers"]))
    for change in (
        {"layers": {"nobody": [0, 0, 0, 0.0]}}, {"layers": {name: {}}}, {"layers": {name: [2, 0, 0, 0.0]}},
        {"layers": {name: [0, 0, 0, float("nan")]}}, {"layers": []}, {"schedule": [1]}, {"changes": [[1]]},
        {"changes": 3}, {"flags": [0, 0, 2]}, {"flags": ["a", 0, 0]}, {"flags": [0]},
    ):  # fmt: skip
        with pytest.raises(InvalidValue, match="guard"):
            guarded.check_state_dict(state | {"guard": state["guard"] | change})


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
    torch.save(
        {"weights": weights, "waiting": handle.guard.waiting, "made": len(handle.guard.changes)}, f"{folder}/{rank}.pt"
    )
    dist.destroy_process_group()


@pytest.mark.slow  # processes that wait for each other
def test_ranks_decide_for_themselves_and_their_weights_agree(tmp_path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(map(torch.equal, first["weights"], second["weights"]))
    assert first["made"]
    assert second["made"]
