"""`lograd.accelerate`: what it leaves alone, what it says, and what it attaches; times are planted, never measured."""

import math
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lograd
from lograd import InvalidType, InvalidValue, acceleration
from lograd.engine.stopwatch import LayerSeconds
from lograd.profiles.methods import method
from lograd.profiles.timing import Compared, Timer, Times


def make_model(width=32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def batches_of(number=4):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 16, generator=generator), torch.randint(0, 4, (32,), generator=generator))
        for _ in range(number)
    ]


def trained(model, handle, steps=6):
    """The losses of some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches_of(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        handle.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture
def planted(monkeypatch):
    """A function that plants the seconds of methods in each layer, and those of plain and planned steps."""

    def plant(seconds, plain=1.0, planned=0.4, fastest=None):
        seen = []
        real = acceleration.profile_timed

        def profile(model, *arguments):
            seen.append([parameter.detach().clone() for parameter in model.parameters()])
            return real(model, *arguments)

        def keep(timer, name, times):
            each = seconds.get(name, 9.0)
            if times.layers:
                timer.times[name] = Times(math.inf, dict.fromkeys(times.layers, LayerSeconds(0.0, each)))
            else:
                each = seconds["dense"] if name == "dense" else min(seconds.values()) if fastest is None else fastest
                timer.times[name] = Times(3 * each, timer.times[name].layers if name in timer.times else {})
            if name == "dense":
                timer.times[name] = Times(3 * seconds["dense"], timer.times[name].layers)

        monkeypatch.setattr(Timer, "_keep", keep)
        monkeypatch.setattr(acceleration, "profile_timed", profile)
        monkeypatch.setattr(acceleration, "compared", lambda *arguments: Compared(plain, planned))
        return seen

    return plant


class Counted:
    """A loss function that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, output, target):
        self.calls += 1
        return cross_entropy(output, target)


def test_a_faster_plan_is_attached_with_a_guard(planted, capsys):
    planted({"dense": 1.0, "int8": 0.2})
    model = make_model()
    with lograd.accelerate(model, batches_of(), cross_entropy) as handle:
        assert handle.guard is not None
        assert list(handle.layers) == ["0", "3", "5"]
        for layer in handle.plan.layers.values():
            assert {layer.output.backend, layer.input_gradient.backend, layer.weight_gradient.backend} == {"integer"}
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert "400.0 ms instead of 1000.0 ms, 2.50 times faster (measured): 3 layers with int8; predicted" in said.err
        assert "of the minibatch's variance" in said.err
        losses = trained(model, handle)
        assert all(0 < loss < 10 for loss in losses)
        assert handle.counters().total.treated > 0


def test_the_model_comes_back_as_it_was(planted):
    planted({"dense": 1.0, "int8": 0.2})
    model = make_model()
    model[4].eval()  # a part that is not in training mode, on purpose
    cross_entropy(model(batches_of()[0][0]), batches_of()[0][1]).backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    handle = lograd.accelerate(model, batches_of(), cross_entropy, quiet=True)
    handle.remove()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in model] == [True, True, True, True, False, True]
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("seconds", [{"dense": 1.0, "int8": 0.99}, {"dense": 1.0}])
def test_where_nothing_is_faster_it_says_so(planted, capsys, seconds):
    planted(seconds)
    model = make_model()
    with lograd.accelerate(model, batches_of(), cross_entropy) as handle:
        assert not handle.layers
        said = capsys.readouterr().err
        assert "no method is faster than dense float32 in any layer that may be treated (3 layers," in said
        plain = make_model()
        with lograd.attach(plain, lograd.Plan()) as other:
            assert trained(model, handle) == trained(plain, other)


def test_where_nothing_is_faster_little_is_run(planted):
    planted({"dense": 1.0})
    loss = Counted()
    lograd.accelerate(make_model(), batches_of(), loss, quiet=True).remove()
    # A step to see what runs, 4 plain ones, 3 for int8, and 4 for prune95, which settles.
    assert loss.calls == 1 + 4 + 3 + 4


@pytest.mark.filterwarnings("ignore:noise of this plan is predicted to multiply")
def test_pruned_gradients_count_where_they_save_much_or_were_asked_for(planted, capsys):
    planted({"dense": 1.0, "prune85": 0.9, "prune95": 0.85})
    loss = Counted()
    lograd.accelerate(make_model(), batches_of(), loss).remove()
    assert loss.calls == 12
    assert "that may be worth its noise in each layer, it takes 3000.0 ms, and dense float32 3000.0" in (
        capsys.readouterr().err
    )
    with lograd.accelerate(make_model(), batches_of(), loss, noise=1e9, quiet=True) as handle:
        assert handle.layers


def test_where_the_fastest_plan_gains_nothing_no_noise_is_measured(planted, capsys):
    seen = planted({"dense": 1.0, "int8": 0.2}, fastest=0.95)
    loss = Counted()
    with lograd.accelerate(make_model(), batches_of(), loss) as handle:
        assert not handle.layers
    assert not seen
    said = capsys.readouterr().err
    assert "stays as it is: with the fastest method that may be worth its noise in each layer, it takes 2850" in said
    assert loss.calls == 12 + 3 + 9  # the fastest plan, then in turns with faster normalization
    assert "3000.0 ms; a search for a plan is worth it from 6% on (3 layers," in said


@pytest.mark.parametrize(
    ("seconds", "timed", "bits"),
    [
        ({"int8": 0.2}, 0, 1),  # int4 saves nothing beyond it
        ({"int8": 0.2, "int6": 0.2, "int4": 0.19}, 0, 1),  # too little to look at
        ({"int8": 0.8, "int6": 0.5, "int4": 0.3}, 3, 3),  # int6 is timed too
        ({"int4": 0.3, "int6": 0.5}, 3, 3),
    ],
)
def test_passes_of_a_search_are_few(planted, seconds, timed, bits):
    planted({"dense": 1.0, **seconds})
    loss = Counted()
    given = ["int8", "int6", "int4"]
    with lograd.accelerate(make_model(), batches_of(), loss, methods=given, quiet=True) as handle:
        assert handle.layers
    screened, noise = 11 + timed + 3 + 9, 1
    penalties = bits + 3 * min(bits, 2)  # all layers at each precision, and each of three at the outer ones
    assert loss.calls == screened + acceleration.WARM_UP + 4 + noise + 2 + penalties


def test_layers_that_gain_nothing_have_no_choice(planted, monkeypatch):
    planted({"dense": 1.0, "int8": 0.2})
    found = []
    real = acceleration.profile_timed
    monkeypatch.setattr(acceleration, "profile_timed", lambda *given: found.append(real(*given)) or found[-1])
    lograd.accelerate(make_model(), batches_of(), cross_entropy, keep="first", quiet=True).remove()
    assert [list(menu) for menu in found[0].menus.layers.values()] == [["dense"], ["dense", "int8"], ["dense", "int8"]]
    assert (found[0].noise.energies.own > 0).tolist() == [False, True, True]


def test_where_noise_is_not_worth_it_it_says_that_instead(planted, capsys):
    planted({"dense": 1.0, "int4": 0.2})
    with lograd.accelerate(make_model(), batches_of(), cross_entropy, noise=1e-9, methods=["int4"]) as handle:
        assert not handle.layers
    said = capsys.readouterr().err
    assert "adds too much noise, such as in '0', where int4 would save 800.0 ms and add" in said
    assert "no method is faster" not in said


@pytest.mark.parametrize(("turned", "pictures"), [(True, True), (False, True), (True, False)])
def test_the_faster_layout_is_that_of_a_plan_with_convolutions(planted, monkeypatch, capsys, turned, pictures):
    planted({"dense": 1.0, "int8": 0.2})
    real = acceleration.screen
    monkeypatch.setattr(acceleration, "screen", lambda *given: replace(real(*given), turned=turned))
    layers = nn.Sequential(nn.Unflatten(1, (16, 1, 1)), nn.Conv2d(16, 64, 1), nn.Conv2d(64, 4, 1), nn.Flatten())
    model = layers if pictures else make_model()
    with lograd.accelerate(model, batches_of(), cross_entropy) as handle:
        assert handle.layers
        assert handle.plan.channels_last is (turned and pictures)
    assert ("layers with int8, images channels-last; predicted" in capsys.readouterr().err) is (turned and pictures)


@pytest.mark.parametrize(("plain", "attached"), [(0.41, False), (0.6, True)])
def test_a_plan_must_be_faster_than_dense_in_the_better_layout(planted, monkeypatch, capsys, plain, attached):
    planted({"dense": 1.0, "int8": 0.1}, plain=1.0, planned=0.4)
    real = acceleration.screen
    monkeypatch.setattr(acceleration, "screen", lambda *given: replace(real(*given), shortest=plain))
    with lograd.accelerate(make_model(), batches_of(), cross_entropy) as handle:
        assert bool(handle.layers) is attached
    said = "takes 400.0 ms, and dense float32 1000.0 ms, or 410.0 ms after model.to(memory_format=torch.channels_last)"
    assert (said in capsys.readouterr().err) is not attached


def test_many_methods_are_summed_up():
    names = ["int8", "int8", "int6", "prune85", "int4", "prune87"]
    plan = lograd.Plan({str(place): method(name).plan for place, name in enumerate(names)})
    assert (
        acceleration._what_is_done(plan)
        == "2 layers with int8, 1 layer with int6, 1 layer with prune85, 2 layers with others"
    )


def test_a_plan_that_is_not_faster_when_timed_is_not_attached(planted, capsys):
    planted({"dense": 1.0, "int8": 0.2}, plain=1.0, planned=0.98)
    with lograd.accelerate(make_model(), batches_of(), cross_entropy) as handle:
        assert not handle.layers
    assert "the best plan takes 980.0 ms, and dense float32 1000.0 ms" in capsys.readouterr().err


def test_layers_can_be_kept_and_methods_restricted(planted):
    planted({"dense": 1.0, "int8": 0.2, "prune85": 0.1})
    with lograd.accelerate(
        make_model(), batches_of(), cross_entropy, keep=["0", "last"], methods=["int8"], quiet=True
    ) as handle:
        assert list(handle.layers) == ["3"]
        assert handle.plan.layers["3"].output.backend == "integer"


def test_a_budget_of_noise_is_kept(planted):
    planted({"dense": 1.0, "int4": 0.2})
    with lograd.accelerate(
        make_model(), batches_of(), cross_entropy, noise=1e-9, methods=["int4"], quiet=True
    ) as handle:
        assert not handle.layers
    with lograd.accelerate(
        make_model(), batches_of(), cross_entropy, noise=1e9, methods=["int4"], quiet=True
    ) as handle:
        assert len(handle.layers) == 3
        assert handle.plan.expected.budget == 1e9


def test_it_measures_after_a_warm_up(planted):
    seen = planted({"dense": 1.0, "int8": 0.2})
    model = make_model()
    for steps in (0, 3):
        lograd.accelerate(model, batches_of(), cross_entropy, warm_up=steps, quiet=True).remove()
    cold, warm = seen
    now = list(model.parameters())
    assert all(torch.equal(one, parameter) for one, parameter in zip(cold, now, strict=True))
    assert not any(torch.equal(one, parameter) for one, parameter in zip(warm, now, strict=True))


def test_a_compiled_model_is_not_compiled_for_the_measurement():
    def never(*_):
        pytest.fail("compiled")

    model = torch.compile(make_model(), backend=never)
    lograd.accelerate(model, batches_of(), cross_entropy, warm_up=2, methods=["int8"], quiet=True).remove()


def test_an_endless_stream_of_batches_is_taken_from_sparingly(planted, capsys):
    planted({"dense": 1.0, "int8": 0.2})
    taken = []

    def stream():
        for number in count():
            taken.append(number)
            yield batches_of(1)[0]

    with lograd.accelerate(make_model(), stream(), cross_entropy, steps=5) as handle:
        assert not handle.layers
    assert len(taken) == 5
    assert "the variance of its minibatches could not be measured" in capsys.readouterr().err  # equal batches have none


def test_the_random_numbers_of_a_loader_are_restored():
    inputs, targets = (torch.cat(several) for several in zip(*batches_of(), strict=True))
    loader = DataLoader(TensorDataset(inputs, targets), 32, shuffle=True)
    before = torch.get_rng_state()
    lograd.accelerate(make_model(), loader, cross_entropy, warm_up=0, methods=["int8"], quiet=True).remove()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {"x": pair[0], "y": pair[1]}, lambda pair: (tuple(pair),)])
def test_the_remainder_of_a_data_set_is_no_usual_batch(form):
    *full, last = batches_of(5)
    remainder = [one[:3] for one in last]
    whole, rest = list(map(form, full)), [form(remainder), form(remainder)]

    def usual(*given):
        return [id(one) for one in acceleration._of_usual_size(list(given))]

    assert usual(*whole, rest[0]) == list(map(id, whole))
    assert usual(*whole[:2], rest[0], *whole[2:], rest[1]) == list(map(id, whole))  # of two epochs
    assert usual(*whole[:2], rest[0]) == [id(rest[0]), *map(id, whole[:2])]
    assert usual(*whole) == list(map(id, whole))
    assert usual() == []


def test_batches_that_all_differ_in_size_stay_as_they_are():
    batches = [torch.zeros(size, 2) for size in (5, 3, 4, 2)]
    assert acceleration._of_usual_size(batches) is batches


def test_times_are_those_of_a_full_batch(planted):
    planted({"dense": 1.0, "int8": 0.2})
    seen = []

    def loss(output, target):
        seen.append(len(target))
        return cross_entropy(output, target)

    *full, last = batches_of(5)
    lograd.accelerate(make_model(), [*full, [one[:3] for one in last]], loss, methods=["int8"], quiet=True).remove()
    assert set(seen) == {32}


def test_sparse_gradients_of_an_embedding_are_warmed_up_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(32, 4))
    batches = [(torch.randint(0, 20, (16, 4)), torch.randint(0, 4, (16,))) for _ in range(4)]
    before = model[0].weight.clone()
    lograd.accelerate(model, batches, cross_entropy, warm_up=2, methods=["int8"], quiet=True).remove()
    assert torch.equal(before, model[0].weight)


def test_layers_that_do_not_learn_are_told(capsys):
    model = make_model()
    for layer in (model[0], model[3], model[5]):
        layer.weight.requires_grad_(False)
    with (
        pytest.warns(lograd.errors.LogradWarning, match="no layer has a weight that learns"),
        lograd.accelerate(model, batches_of(), cross_entropy) as handle,
    ):
        assert not handle.layers
    assert "the step stays as it is: no layer has a weight that learns." in capsys.readouterr().err


def test_gradients_that_are_not_finite_are_told(capsys):
    model = make_model()
    spoilt = [(inputs * float("nan"), targets) for inputs, targets in batches_of()]
    with pytest.warns(lograd.errors.LogradWarning), lograd.accelerate(model, spoilt, cross_entropy) as handle:
        assert not handle.layers
    assert "the step stays as it is" in capsys.readouterr().err
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


class Unlucky(Exception):
    """An error of the user's own."""


@pytest.mark.parametrize("call", [0, 1, 3, 6, 9, 12])
def test_an_error_of_the_loss_is_raised_as_it_is_and_the_model_restored(call):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    batches = [(torch.randn(4, 8, 8, 8), torch.randint(0, 4, (4,))) for _ in range(3)]
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state, places = torch.get_rng_state(), [(one.data_ptr(), one.stride()) for one in model.parameters()]
    calls, error = count(), Unlucky("no luck")

    def loss(output, target):
        if next(calls) == call:  # once: the trial that it fell into must not pass for one of a layout
            raise error
        return cross_entropy(output, target)

    with pytest.raises(Unlucky) as caught:
        lograd.accelerate(model, batches, loss, quiet=True)
    assert caught.value is error
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert [(one.data_ptr(), one.stride()) for one in model.parameters()] == places
    assert all(type(one).__module__.startswith("torch.nn") for one in model.modules())
    assert not any("_lograd_engine" in vars(one) for one in model.modules())


def test_bad_arguments_get_a_sentence():
    model = make_model()
    with pytest.raises(InvalidValue, match="at least 3 batches, for the variance between them; got 2"):
        lograd.accelerate(model, batches_of(2), cross_entropy)
    with pytest.raises(InvalidValue, match="steps must be"):
        lograd.accelerate(model, batches_of(), cross_entropy, steps=2)
    with pytest.raises(InvalidValue, match="warm_up must be"):
        lograd.accelerate(model, batches_of(), cross_entropy, warm_up=-1)
    with pytest.raises(InvalidType, match="batches must be an iterable"):
        lograd.accelerate(model, 5, cross_entropy)
    with pytest.raises(InvalidType, match="guard must be"):
        lograd.accelerate(model, batches_of(), cross_entropy, guard="yes")
    with pytest.raises(InvalidValue, match="'int88' is not a method"):
        lograd.accelerate(model, batches_of(), cross_entropy, methods=["int88"])
    for wrong in ({"methods": ["int88"]}, {"noise": 0}, {"keep": 3}):  # before the first step
        with pytest.raises((InvalidType, InvalidValue)):
            lograd.accelerate(model, batches_of(), lambda *_: pytest.fail("too late"), **wrong)
    with lograd.attach(model, lograd.Plan.uniform("fp6")), pytest.raises(InvalidValue, match="has a plan attached"):
        lograd.accelerate(model, batches_of(), cross_entropy)
    assert not any("lograd" in type(module).__module__ for module in model.modules())
