"""When an attached plan takes statistics and begins to treat, the numbers that follow, and what is counted."""

import contextlib
import math
import re
from itertools import pairwise

import pytest
import torch
from attached import Block, assert_same, gradients_of
from networks import mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan
from lograd.errors import LogradWarning
from lograd.treatments import apply, mixes, recipe


def test_gradients_pass_through_until_there_are_statistics():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.randn(64, 6)
    plain = gradients_of(model, x)
    handle = lograd.attach(model, Plan.uniform("fp4"))
    assert "waits for its first gradient" in str(handle.explain())
    assert_same(gradients_of(model, x), plain)
    assert_same(gradients_of(model, x), plain)
    assert "passes through until" in str(handle.explain())
    assert (handle.counters().total.passed_through, handle.counters().total.treated) == (2, 0)
    handle.step()
    assert not torch.equal(gradients_of(model, x)[2], plain[2])
    assert handle.counters().total.treated == 1
    handle.remove()


def thresholds(handle):
    return [layer.gradient.sites["gradient"].numbers.item() for layer in handle.layers.values()]


def test_statistics_that_decide_nothing_are_taken_seldom():
    torch.manual_seed(0)
    model, x = nn.Linear(64, 32), torch.randn(256, 64)
    handle = lograd.attach(model, Plan.uniform("int8-full", keep=()))
    taken = []
    for step in range(230):
        before = handle.cost.refreshes
        model(x).square().mean().backward()
        handle.step()
        taken += [step] * (handle.cost.refreshes > before)
    # Where a histogram is due anyhow, at least 100 steps after the one before.
    assert taken[0] == 0
    assert len(taken) == 3
    assert all(100 <= late - early < 110 for early, late in pairwise(taken))
    assert f"statistics of step {taken[-1]}" in str(handle.explain())


def test_statistics_are_taken_every_so_many_steps():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.randn(256, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=4)
    history = []
    for step in range(100):
        gradients_of(model, x * (1 + step))
        handle.step()
        history += thresholds(handle)
    changes = [step for step in range(100) if step == 0 or history[step] != history[step - 1]]
    # In every step at first, at intervals of a twentieth of the run so far then, of 4 in the end.
    assert changes == [*range(40), *range(41, 60, 2), *range(62, 80, 3), *range(81, 100, 4)]
    assert handle.cost.refreshes == handle.cost.steps == len(changes) == 61
    assert handle.cost.milliseconds > 0
    assert re.search(r"61 statistics taken at .* ms each in 61% of the steps", str(handle.explain()))
    handle.remove()


def test_a_short_batch_is_passed_over_once():
    """The last batch of an epoch: its gradients are larger, and thresholds from them would be wrong for all others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=1)

    def step(batch):
        model(torch.randn(batch, 8)).square().mean().backward()
        handle.step()
        return {name: statistics.step for name, statistics in handle.gradients.items()}

    assert step(64) == {"0": 0, "1": 0}
    assert step(8) == {"0": 0, "1": 0}, "waits for another"
    assert step(64) == {"0": 2, "1": 2}
    assert step(8) == {"0": 2, "1": 2}
    assert step(8) == {"0": 4, "1": 4}, "batches have become small"
    handle.remove()


def test_useless_statistics_are_said_and_taken_again():
    model, x = nn.Linear(6, 5), torch.randn(64, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"))
    gradients_of(model, x, head=lambda y: y.sum() * math.inf)
    handle.step()
    assert "the gradient had" in str(handle.explain())
    gradients_of(model, x, head=lambda y: y.sum() * 0)
    handle.step()
    assert "were zero" in str(handle.explain())
    assert not handle.layers[""].gradient.control[0]
    gradients_of(model, x)
    handle.step()
    assert handle.layers[""].gradient.control[0]
    gradients_of(model, x, head=lambda y: y.sum() * math.nan)
    assert handle.counters().total.nan > 0
    handle.remove()


def test_numbers_follow_the_loss_scale():
    model, x = nn.Linear(6, 5), torch.randn(256, 6)
    handle = lograd.attach(model, Plan.uniform("prune80"), refresh=1000)
    for _ in range(2):
        gradients_of(model, x, head=lambda y: y.square().sum() * 1024)
        handle.step(loss_scale=1024.0)
    first = thresholds(handle)
    handle.step(loss_scale=512.0)
    assert thresholds(handle) == [first[0] / 2]
    handle.step(loss_scale=4096.0)
    assert thresholds(handle) == [first[0] * 4]
    with pytest.raises(InvalidValue, match="loss_scale must be positive"):
        handle.step(loss_scale=0.0)
    handle.remove()


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9, 0.95])
def test_sparsity_asked_is_sparsity_got(sparsity):
    torch.manual_seed(0)
    model = Block()
    handle = lograd.attach(model, Plan.uniform(f"prune{sparsity * 100:.0f}"), refresh=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = {}
    for step in range(12):
        x, target = torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
        if step == 3:
            before = handle.counters().layers
    for name, count in handle.counters().layers.items():
        elements = count.elements - before[name].elements
        got = (count.zeros_after - before[name].zeros_after) / elements
        band = 4 * math.sqrt(sparsity * (1 - sparsity) / elements)
        assert abs(got - sparsity) < 0.01 + band, name
    handle.remove()


# -- the first step that is treated --


@pytest.mark.parametrize("name", ["prune80", "topk80", "saw80"], ids=["numbers", "no numbers", "operands"])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_nothing_is_treated_before_the_first_step_that_was_asked_for(name, start):
    plain, model = mlp(), mlp()
    handle = lograd.attach(model, Plan.uniform(name), start=start)
    begins = max(start, 1) if name == "prune80" else start
    for step, (x, y) in enumerate(vector_batches(6, size=64)):
        gradients = []
        for network in (plain, model):
            network.zero_grad()
            cross_entropy(network(x), y).backward()
            gradients.append([parameter.grad.clone() for parameter in network.parameters()])
        same = all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
        assert same == (step < begins), step
        if name == "prune80":
            assert handle.gradients["0"].collecting == (step >= begins - 1)
        handle.step()
    handle.remove()


def test_a_run_that_was_saved_before_its_start_begins_at_the_same_step():
    model = mlp()
    handle = lograd.attach(model, Plan.uniform("prune80"), start=4)
    batches = vector_batches(8, size=64)

    def run(network, handle, batches):
        found = []
        for x, y in batches:
            network.zero_grad()
            cross_entropy(network(x), y).backward()
            found.append([parameter.grad.clone() for parameter in network.parameters()])
            handle.step()
        return found

    run(model, handle, batches[:2])
    other = mlp()
    resumed = lograd.attach(other, Plan.uniform("prune80"), start=4)
    resumed.load_state_dict(handle.state_dict())
    for one, again in zip(run(model, handle, batches[2:]), run(other, resumed, batches[2:]), strict=True):
        assert all(map(torch.equal, one, again))
    assert handle.counters().total.passed_through == 2 * 4
    with pytest.raises(InvalidValue, match="start"):
        lograd.attach(mlp(), Plan.uniform("prune80"), start=-1)


def test_a_run_that_ends_before_its_start_is_not_scolded_and_a_forgotten_step_is():
    batches = vector_batches(6, size=64)
    for start, backwards, forgotten in ((6, 1, False), (2, 1, True), (6, 3, False)):
        model = mlp()
        handle = lograd.attach(model, Plan.uniform("prune80"), start=start)
        assert handle.explain().layers["0"].endswith(f"treated from step {start} on")
        for x, y in batches:
            for _ in range(backwards):  # gradients are accumulated
                cross_entropy(model(x), y).backward()
            if not forgotten:
                handle.step()
        with pytest.warns(LogradWarning, match="no gradient was treated") if forgotten else contextlib.nullcontext():
            handle.remove()


# -- counters --


def _attached(name: str, steps: int = 4) -> lograd.Handle:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    handle = lograd.attach(model, lograd.Plan.uniform(name), backend="dense")
    for _ in range(steps):
        model(torch.randn(64, 16)).square().mean().backward()
        handle.step()
    return handle


@pytest.mark.parametrize(
    ("name", "prunes", "rounds"),
    [
        ("prune85", True, False),
        ("topk85", True, False),
        ("atp85", True, False),
        ("fp4", False, True),
        ("fp4-luq", False, True),
        ("prune50+fp4", True, True),
        ("identity", False, False),
    ],
)
def test_zeros_are_counted_by_what_made_them(name: str, prunes: bool, rounds: bool) -> None:
    with _attached(name) as handle:
        total = handle.counters().total
    assert (total.pruned > 0) == prunes
    assert (total.underflowed > 0) == rounds
    assert total.zeros_before + total.pruned + total.underflowed == total.zeros_after


def test_of_a_mixed_sentence_the_pruned_elements_are_those_that_pruning_alone_makes_zero() -> None:
    g = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).mul(4).exp()
    g[:100] = 0
    sentence = recipe("topk20+fp4").input_gradient.gradient
    assert mixes(sentence)
    counts = apply(sentence, g).counts.tolist()
    alone = apply(sentence[:1], g).result
    assert counts[3] == 100
    assert counts[4] == int((alone == 0).sum()) - 100
    assert counts[0] > counts[3] + counts[4]  # and the format has flushed some more
