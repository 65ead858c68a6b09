"""`lograd.accelerate` on planted times: no outcome depends on the speed of the machine."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lograd
from lograd import InvalidValue, acceleration
from lograd.acceleration import Acceleration, StepTimes
from lograd.errors import LogradWarning
from lograd.treatments import Rows


@pytest.fixture
def wide(monkeypatch):
    """Layers of any size are tried, with 8 bits, whatever the machine."""
    monkeypatch.setattr(acceleration, "LEAST_WORK", 0)
    for name in ("VNNI_LINEAR", "VNNI_CONVOLUTION", "NARROW_LINEAR", "NARROW_CONVOLUTION"):
        monkeypatch.setattr(acceleration, name, ("int8-full",))


@pytest.fixture
def plant(monkeypatch, wide):
    """Plant the seconds of a step: 1 for each plain layer, and a given time for each integer one."""

    def planted(integer: dict[str, float], overhead: float = 0.0, rows: float = 1.0) -> None:
        def times(self, watch):
            attached = {} if self._handle is None else self._handle.plan.layers
            layers = {name: integer.get(name, 2.0) if name in attached else 1.0 for name in self._candidates}
            for name in attached:
                layers[name] *= rows if drops(attached[name]) else 1.0
            step = sum(layers.values()) + overhead * bool(attached)
            return StepTimes(step, layers if watch is not None else {})

        monkeypatch.setattr(Acceleration, "_times", times)

    return planted


def drops(layer: lograd.LayerPlan) -> bool:
    """Return True if a layer drops rows of its gradient."""
    return any(isinstance(one, Rows) for one in layer.input_gradient.gradient)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 5),
    )  # fmt: skip


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 8, 6, 6, generator=random), torch.randint(0, 5, (4,), generator=random)) for _ in range(count)
    ]


def train(model: nn.Module, handle, steps: int, rate: float = 0.01) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if handle is not None:
            handle.step()
        losses.append(float(loss.detach()))
    return losses


ENOUGH = 20
"""More steps than any decision takes."""


def decided(**options) -> tuple[nn.Module, Acceleration]:
    """Return a network and its handle, after the decision."""
    model = network()
    handle = lograd.accelerate(model, quiet=True, **options)
    train(model, handle, ENOUGH)
    return model, handle


def is_plain(model: nn.Module) -> bool:
    """Return True if a network has its own classes and no hook."""
    modules = list(model.modules())
    return not any(one._forward_hooks or one._forward_pre_hooks for one in modules) and all(
        type(model[place]) in (nn.Conv2d, nn.Linear) for place in (0, 3, 6, 8)
    )


def test_layers_that_are_faster_have_integers_and_others_are_untouched(plant, capsys):
    plant({"3": 0.4, "6": 0.5})
    model = network()
    handle = lograd.accelerate(model)
    assert "Measuring" in handle.explain()
    train(model, handle, ENOUGH)
    assert set(handle.plan.layers) == {"3", "6"}
    assert "1.58 times faster" in handle.words
    assert "int8-full in 2 layers" in handle.words
    assert "1 other layer stays float32" in handle.words, "the last one has too short sums for integers"
    assert capsys.readouterr().err == f"lograd: {handle.words}\n"
    assert type(model[0]) is nn.Conv2d, "left untouched, not rounded"
    assert type(model[3]) is not nn.Conv2d
    assert handle.counters().total.treated
    assert "int8 levels" in handle.explain()
    handle.remove()
    assert is_plain(model)


@pytest.mark.parametrize("noise", [0.05, 0.0])
@pytest.mark.parametrize("first", [True, False], ids=["loss of the first token", "loss of all tokens"])
def test_rows_are_dropped_where_few_are_left(plant, first, noise):
    plant({"0": 0.4, "2": 0.4})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    handle = lograd.accelerate(model, noise=noise, quiet=True)
    for _ in range(ENOUGH):
        y = model(torch.randn(8, 16, 64))
        (y[:, 0] if first else y).square().sum().backward()
        handle.step()
    ways = [layer.input_gradient.gradient[0] for layer in handle.plan.layers.values()]
    rows = Rows(noise=acceleration.ROW_NOISE * noise, most=acceleration.MOST_ROWS)
    assert [one == rows for one in ways] == [first, first]
    assert ("of the rows of gradients in 2 layers" in handle.words) == first
    total = handle.counters().total
    assert 0 < total.rows_kept <= total.rows / 16 if first else not total.rows


@pytest.mark.parametrize(("rows", "kept"), [(0.9, True), (1.1, False)])
def test_rows_are_dropped_only_where_the_step_is_faster_for_it(plant, rows, kept):
    plant({"0": 0.4, "2": 0.4}, rows=rows)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    handle = lograd.accelerate(model, quiet=True)
    for _ in range(ENOUGH):
        model(torch.randn(8, 16, 64))[:, 0].square().sum().backward()
        handle.step()
    assert {drops(layer) for layer in handle.plan.layers.values()} == {kept}
    assert ("of the rows" in handle.words) == kept
    assert f"{1 / (0.4 * min(rows, 1.0)):.2f} times faster" in handle.words


def test_where_no_layer_is_faster_everything_stays(plant):
    plant({})
    model, plain = network(), network()
    handle = lograd.accelerate(model, quiet=True)
    train(model, handle, 6)
    assert handle.words.startswith("the step stays as it is: integer products are faster in none of 3 layers")
    assert not handle.plan.layers
    assert type(model[3]) is nn.Conv2d
    assert not handle.counters().total.treated
    # From then on it trains as the plain one does.
    plain.load_state_dict(model.state_dict())
    assert train(model, handle, 3) == train(plain, None, 3)


def test_a_step_that_gains_nothing_as_a_whole_falls_back(plant):
    plant({"3": 0.4, "6": 0.5}, overhead=1.2)
    model, handle = decided()
    assert handle.words.startswith("the step stays as it is: it takes")
    assert "in float32" in handle.words
    assert not handle.plan.layers
    assert type(model[3]) is nn.Conv2d


def test_all_steps_of_the_measurement_learn(plant):
    """Weights that lay channels-last for a while keep what they learned, in their own memory."""
    plant({"3": 0.4, "6": 0.5})
    model = network()
    before = copy.deepcopy(model.state_dict())
    storage = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    handle = lograd.accelerate(model, quiet=True)
    losses = train(model, handle, ENOUGH)
    assert all(torch.isfinite(torch.tensor(losses)))
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == storage
    other = network()
    other.load_state_dict(before)
    reference = train(other, None, ENOUGH)
    assert losses == pytest.approx(reference, rel=0.05)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert (one - two).norm() < 0.1 * (two.norm() + 1)
        assert one.stride() == two.stride()


def test_batches_decide_before_the_training(plant, capsys):
    plant({"3": 0.4, "6": 0.5})
    model = network()
    before = copy.deepcopy(model.state_dict())
    handle = lograd.accelerate(model, batches(3), F.cross_entropy)
    assert set(handle.plan.layers) == {"3", "6"}
    assert handle.steps == 0
    assert "times faster" in capsys.readouterr().err
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    train(model, handle, 2)
    handle.remove()


def test_a_loss_that_raises_leaves_the_model_as_it_was(plant):
    plant({"3": 0.4})
    model, calls = network(), []

    def loss(output, target):
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("mine")
        return F.cross_entropy(output, target)

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="mine"):
        lograd.accelerate(model, batches(3), loss)
    assert is_plain(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("steps", range(ENOUGH))
def test_leaving_at_any_moment_gives_the_model_back(plant, steps):
    plant({"3": 0.4, "6": 0.5})
    model = network()
    strides = {name: parameter.stride() for name, parameter in model.named_parameters()}
    with lograd.accelerate(model, quiet=True) as handle:
        train(model, handle, steps)
        model(batches(1)[0][0])
    assert is_plain(model)
    assert {name: parameter.stride() for name, parameter in model.named_parameters()} == strides


def test_a_decision_is_resumed_to_the_same_bits(plant):
    plant({"3": 0.4, "6": 0.5})
    model, handle = decided()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(handle.state_dict())
    expected = train(model, handle, 4)
    again = network()
    resumed = lograd.accelerate(again, quiet=True)
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.words == handle.words
    assert resumed.plan == handle.plan
    assert train(again, resumed, 4) == expected
    with pytest.raises(InvalidValue, match="state_dict"):
        resumed.load_state_dict({"plan": None})


def test_a_state_without_a_decision_leaves_it_to_the_new_run(plant):
    plant({"3": 0.4})
    first = lograd.accelerate(network(), quiet=True)
    state = first.state_dict()
    model = network()
    second = lograd.accelerate(model, quiet=True)
    second.load_state_dict(state)
    train(model, second, ENOUGH)
    assert set(second.plan.layers) == {"3"}


def test_a_layer_whose_output_would_be_wrong_is_left_alone(plant, monkeypatch):
    """Outliers in the activations of one layer; the limit is between its error and those of others."""
    plant({"0": 0.4, "3": 0.4, "6": 0.4, "8": 0.4})
    for name in ("VNNI_LINEAR", "VNNI_CONVOLUTION", "NARROW_LINEAR", "NARROW_CONVOLUTION"):
        monkeypatch.setattr(acceleration, name, ("int6-full", "int8-full"))
    model = network()
    with torch.no_grad():
        model[3].weight[0] *= 1e4  # one channel is far larger than the others
        model[6].weight[:, :36] *= 1e-4
    handle = lograd.accelerate(model, quiet=True)
    train(model, handle, ENOUGH, rate=0.0)
    widths = {name: layer.output.activations[0].bits for name, layer in handle.plan.layers.items()}
    assert "6" not in widths
    assert widths["0"] == 6


def test_the_error_of_an_output_is_that_of_the_attached_layer():
    torch.manual_seed(0)
    for layer, x in ((nn.Linear(64, 32), torch.randn(4, 8, 64)), (nn.Conv2d(8, 16, 3), torch.randn(2, 8, 9, 9))):
        rounded = acceleration.rounded_output(layer, x, "int6-full")
        with lograd.attach(nn.Sequential(layer), lograd.Plan.uniform("int6-full", keep=())):
            torch.testing.assert_close(layer(x), rounded, rtol=1e-4, atol=1e-5)


def test_a_forgotten_step_is_warned_of_once(plant):
    plant({"3": 0.4})
    model = network()
    with lograd.accelerate(model, quiet=True):
        x = batches(1)[0][0]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(3 * acceleration.FORGOTTEN):
                model(x).sum().backward()
        assert [one.category for one in found] == [LogradWarning]
        assert "call it after each optimizer.step()" in str(found[0].message)


def test_evaluation_does_not_count(plant):
    plant({"3": 0.4, "6": 0.5})
    model = network()
    handle = lograd.accelerate(model, quiet=True)
    for _ in range(ENOUGH):
        train(model, handle, 1)
        model.eval()
        with torch.no_grad():
            model(batches(1)[0][0])
        model.train()
    assert set(handle.plan.layers) == {"3", "6"}


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.slow
def test_compiled_models(plant):
    plant({"3": 0.4, "6": 0.5})
    model = torch.compile(network(), backend="aot_eager")
    handle = lograd.accelerate(model, quiet=True)
    train(model, handle, ENOUGH)
    assert set(handle.plan.layers) == {"3", "6"}
    before = handle.counters().total.treated
    train(model, handle, 2)
    assert handle.counters().total.treated > before
    handle.remove()


BAD = {
    "attached": (lambda: network(), "plan attached already"),
    "float64": (lambda: network().double(), "model.float"),
    "meta": (lambda: network().to("meta"), "on meta"),
    "nothing": (lambda: nn.Sequential(nn.ReLU(), nn.LayerNorm(3)), "no linear layer or convolution"),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(64, 64, 3, groups=64)), "no linear layer or convolution"),
    "no model": (lambda: 3, "a torch.nn.Module"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_models_are_refused_in_one_sentence_and_left_alone(case):
    make, words = BAD[case]
    model = make()
    handle = lograd.attach(model, lograd.Plan.uniform("int8-full")) if case == "attached" else None
    with pytest.raises(lograd.LogradError, match=words):
        lograd.accelerate(model)
    if isinstance(model, nn.Module):
        assert not model._forward_pre_hooks
        assert not any(module._forward_hooks for module in model.modules())
    if handle is not None:
        handle.remove()


def test_bad_arguments():
    for arguments, words in (
        ({"keep": "nope*"}, "pattern of layer names"),
        ({"keep": 3}, "pattern of layer names"),
        ({"noise": 1.5}, "at least 0 and below 1"),
        ({"loss_fn": F.cross_entropy}, "give batches as well"),
        ({"batches": []}, "batches are empty"),
        ({"batches": 3}, "iterable of batches"),
    ):
        model = network()
        with pytest.raises(lograd.LogradError, match=words):
            lograd.accelerate(model, **arguments)
        assert not model._forward_pre_hooks
    model = network()
    with lograd.accelerate(model, quiet=True), pytest.raises(lograd.InvalidValue, match="already"):
        lograd.accelerate(model, quiet=True)
    assert not model._forward_pre_hooks


def test_kept_layers_are_left_alone(plant):
    plant({"3": 0.4, "6": 0.5})
    _, handle = decided(keep="6")
    assert set(handle.plan.layers) == {"3"}


class Viewing(nn.Module):
    """Flattens images by `view`, which channels-last memory refuses."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.last, self.inside = nn.Linear(16 * 36, 5), inside

    def forward(self, x):
        x = self.convolutions(x)
        return self.last(x.view(len(x), -1)) if self.inside else x


@pytest.mark.parametrize("inside", [True, False])
def test_a_view_of_images_keeps_them_as_they_are(plant, inside):
    """A view in the model, or of what it gives to the user's own code."""
    plant({"convolutions.0": 0.4, "convolutions.2": 0.4})
    model = Viewing(inside)
    norms = nn.BatchNorm1d(5)
    handle = lograd.accelerate(model, quiet=True)
    for x, y in batches(ENOUGH):
        output = model(x)
        if not inside:
            output = model.last(output.view(len(x), -1))
        F.cross_entropy(norms(output), y).backward()
        handle.step()
    assert {"convolutions.0", "convolutions.2"} <= set(handle.plan.layers)
    assert not handle.plan.channels_last
    handle.remove()


def test_the_proof_of_a_layout_leaves_no_trace(plant):
    """Running means and the random numbers of dropout are those of one forward."""
    plant({"3": 0.4, "6": 0.5})
    model = network()
    model[2] = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    plain = copy.deepcopy(model)
    handle = lograd.accelerate(model, quiet=True)
    found = {}
    for name, one in (("accelerated", model), ("plain", plain)):
        torch.manual_seed(3)
        train(one, handle if one is model else None, 3)
        found[name] = torch.get_rng_state(), int(one[1].num_batches_tracked)
    assert torch.equal(found["accelerated"][0], found["plain"][0])
    assert found["accelerated"][1] == found["plain"][1]
    assert handle._handle is not None or handle._trial is not None


def test_batches_of_different_sizes_are_compared_by_their_work(wide, monkeypatch):
    """Seconds are planted as half of the work in integers, so any other measure would take a large batch for slow."""
    clock = {"now": 0.0}
    monkeypatch.setattr(acceleration, "seconds", lambda: clock["now"])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    handle = lograd.accelerate(model, quiet=True)
    monkeypatch.setattr(acceleration, "_faster", lambda times, layers: list(layers))
    for _ in range(ENOUGH):
        rows = 8 if handle._handle is None else 64  # plain steps have small batches
        optimizer.zero_grad()
        model(torch.randn(rows, 64)).square().mean().backward()
        optimizer.step()
        clock["now"] += rows * (1.0 if handle._handle is None else 0.5)
        handle.step()
    assert "2.00 times faster" in handle.words


@pytest.mark.parametrize("steps", range(0, 15, 2))
def test_a_decision_is_taken_over_in_the_middle_of_the_measurement(plant, steps):
    plant({"3": 0.4, "6": 0.5})
    _, handle = decided()
    other = network()
    strides = {name: parameter.stride() for name, parameter in other.named_parameters()}
    second = lograd.accelerate(other, quiet=True)
    train(other, second, steps)
    second.load_state_dict(handle.state_dict())
    assert {name: parameter.stride() for name, parameter in other.named_parameters()} == strides
    assert not other._forward_pre_hooks
    assert not any(module._forward_hooks for name, module in other.named_modules() if name in second.plan.layers)
    train(other, second, 2)
    assert second.plan == handle.plan
    second.remove()


def test_a_decision_takes_4_to_15_steps(plant):
    for planted, expected in (({}, 4), ({"3": 0.4, "6": 0.5}, 15)):
        plant(planted)
        model = network()
        handle = lograd.accelerate(model, quiet=True)
        taken = next(step for step in range(1, ENOUGH) if train(model, handle, 1) and handle.words)
        assert taken == expected
