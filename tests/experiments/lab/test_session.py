"""Sessions of work in memory: the loop that one would write by hand, to the same bits; parts of a step, and turns."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from experiments.lab import Diverged, InMemory, Session, in_turns
from experiments.lab.session import needs_loss_scaling
from lograd.errors import InvalidValue


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def batches(count=20):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def work(model=None, steps=20, **options):
    return InMemory(model or network(), batches(steps), cross_entropy, sgd, steps, **options)


def by_hand(plan, steps, rate=None, clip=None, **attaching):
    """The loop that a session stands for."""
    model = network()
    optimizer = sgd(model)
    handle = None if plan is None else lograd.attach(model, plan, **attaching)
    losses = []
    for step, (inputs, targets) in enumerate(batches(steps)):
        if rate is not None:
            optimizer.param_groups[0]["lr"] = rate(0.5, step)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if handle is not None:
            handle.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("recipe", [None, "prune85+fp6"])
@pytest.mark.parametrize("options", [{}, {"rate": lambda peak, step: peak / (1 + step)}, {"clip": 0.1}])
def test_a_session_is_the_loop_by_hand_to_the_same_bits(recipe, options):
    plan = None if recipe is None else lograd.Plan.uniform(recipe)
    attaching = {} if plan is None else {"seed": 3, "backend": "dense"}
    expected, losses = by_hand(plan, 20, **options, **attaching)
    torch.manual_seed(0)
    with Session(work(**options, **attaching), plan) as session:
        assert [session.step() for _ in range(20)] == losses
    assert all(map(torch.equal, expected.state_dict().values(), session.model.state_dict().values()))
    assert type(session.model[0]) is nn.Linear  # the plan is off again


def test_the_parts_of_a_step_are_timed():
    session = Session(work(), None)
    assert session.times.step == 0
    session.step()
    times = session.times
    assert min(times) > 0
    assert times.step == pytest.approx(times.forward + times.backward + times.update)
    assert times.step + times.batch <= session.seconds


def test_sessions_take_turns():
    start, told = network(), []
    sessions = {name: Session(work(copy.deepcopy(start)), None) for name in ("one", "other")}
    for step, name, session, loss in in_turns(sessions, 3):
        told.append((step, name, session.steps))
        assert sessions[name] is session
        assert loss > 0
    assert told == [(step, name, step) for step in (1, 2, 3) for name in ("one", "other")]


def test_an_evaluation_leaves_modes_and_random_states_alone():
    def score(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        return float(torch.rand(()))

    session = Session(work(score=score, higher_is_better=False), None)
    session.model[2].eval()  # a part that is frozen stays so
    state = torch.get_rng_state()
    assert list(session.evaluate()) == ["score"] == [session.metric.name]
    assert torch.equal(torch.get_rng_state(), state)
    assert session.model.training
    assert not session.model[2].training
    assert not session.metric.higher_is_better
    with pytest.raises(InvalidValue, match="without a score"):
        Session(work(), None).evaluate()


def test_what_a_session_in_memory_cannot_do():
    session = Session(work(steps=2), None)
    with pytest.raises(InvalidValue, match="no checkpoint"):
        session.state_dict()
    assert [session.step(), session.step()]
    with pytest.raises(InvalidValue, match="no batch for step 3 of 2"):
        session.step()
    frozen = network().eval()
    assert Session(work(frozen), None).model.training

    def infinite(output, target):
        return output.sum() * float("inf")

    with pytest.raises(Diverged, match="at step 1 of 5"):
        Session(InMemory(network(), batches(), infinite, sgd, 5), None).step()


@pytest.mark.parametrize(
    ("recipe", "scaled"),
    [
        ("fp4-dynamic", True),
        ("fp4-dynamic-rht", True),
        ("prune85+fp4-dynamic", True),
        ("fp6", False),
        ("mxfp4-rht", False),
    ],
)
def test_a_format_that_overflows_gets_a_loss_scale_also_inside_a_transform(recipe, scaled):
    plan = lograd.Plan.uniform(recipe)
    assert needs_loss_scaling(plan) is scaled
    with Session(work(clip=1.0), plan) as session:
        assert (session.scaler is not None) is scaled
        assert min(session.step() for _ in range(3)) > 0


def test_clipping_sees_gradients_without_the_loss_scale():
    """A norm that no gradient reaches changes nothing, however large the scale is."""
    runs = []
    for clip in (None, 1e3):
        torch.manual_seed(0)
        with Session(work(clip=clip), lograd.Plan.uniform("fp8-dynamic")) as session:
            runs.append([session.step() for _ in range(5)])
    assert runs[0] == runs[1]
