"""A handle saves and resumes to the same bits, and gives the model back."""

import pytest
import torch
from attached import IDENTITY, Block, assert_same, gradients_of, ready
from states import same
from torch import nn

import lograd
from lograd import InvalidValue, Plan


def train(model, handle, optimizer, steps, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        x, target = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()


def test_a_killed_run_resumes_with_the_same_bits(tmp_path):
    plan = Plan.uniform("prune80+fp6")

    def start():
        torch.manual_seed(0)
        model = Block()
        handle = lograd.attach(model, plan, seed=3, refresh=3)
        return model, handle, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, handle, optimizer = start()
    train(model, handle, optimizer, 64)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()}
    torch.save(saved, tmp_path / "checkpoint.pt")
    train(model, handle, optimizer, 6, first=64)

    other, resumed, optimizer = start()
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    resumed.load_state_dict(loaded["handle"])
    train(other, resumed, optimizer, 6, first=64)

    assert_same(list(model.state_dict().values()), list(other.state_dict().values()))
    assert handle.counters() == resumed.counters()
    assert handle.steps == resumed.steps == 70
    handle.remove()
    resumed.remove()


def saved(plan="prune85-cosine+fp6/atp85"):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5)), torch.randn(64, 6)
    handle = ready(model, Plan.uniform(plan, keep=()), x)
    state = handle.state_dict()
    handle.remove()
    return model, x, state


WRONG = {
    "version": (("version",), 3),
    "plan": (("plan",), "another"),
    "steps": (("steps",), "5"),
    "layers": (("layers",), []),
    "layer 'more'": (("layers", "more"), {}),
    "layer": (("layers", "0"), []),
    "gradient.control": (("layers", "0", "gradient.control"), [0, 0]),
    "gradient.histogram": (("layers", "0", "gradient.histogram"), torch.zeros(9, dtype=torch.int64)),
    "gradient.seen": (("layers", "0", "gradient.seen"), torch.zeros(3)),
    "numbers": (("layers", "0", "input_gradient.gradient.numbers"), torch.tensor([float("nan"), 1.0])),
    "table": (("statistics", "0", "gradient", "table"), torch.zeros(7, dtype=torch.int64)),
    "allotted": (("statistics", "0", "gradient", "allotted"), [1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name):
    model, _, state = saved()
    (*way, last), value = WRONG[name]
    place = state
    for part in way:
        place = place[part]
    place[last] = value
    with lograd.attach(model, Plan.uniform("prune85-cosine+fp6/atp85", keep=())) as handle:
        before = handle.state_dict()
        with pytest.raises(InvalidValue, match=name):
            handle.load_state_dict(state)
        assert same(before, handle.state_dict())


@pytest.mark.parametrize(
    "lost", ["layers", "statistics", "cost", "last_collected", "a layer", "a tensor", "a histogram"]
)
def test_what_a_state_lacks_costs_a_warm_up(lost):
    model, x, state = saved("fp4")
    if lost == "a layer":
        del state["layers"]["1"], state["statistics"]["1"]
    elif lost == "a tensor":
        del state["layers"]["1"]["gradient.control"]
    elif lost == "a histogram":
        del state["statistics"]["1"]["gradient"]["table"]
    else:
        del state[lost]
    with lograd.attach(model, Plan.uniform("fp4", keep=())) as handle:
        handle.load_state_dict(state)
        for _ in range(2):
            gradients_of(model, x)
            handle.step()
        before = handle.counters()
        gradients_of(model, x)
        after = handle.counters()
        assert all(after.layers[name].treated == before.layers[name].treated + 1 for name in after.layers)


def test_remove_gives_the_model_back():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 3, 8, 8)
    classes = [type(module) for module in model.modules()]
    attributes = [sorted(vars(module)) for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    handle = lograd.attach(model, Plan.uniform("fp4"))
    assert list(model.state_dict()) == list(state)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in Block().named_modules()]
    assert str(model) == str(Block())
    handle.remove()
    handle.remove()
    assert [type(module) for module in model.modules()] == classes
    assert [sorted(vars(module)) for module in model.modules()] == attributes
    assert_same(list(model.state_dict().values()), list(state.values()))
    gradients_of(model, x)
    assert handle.counters().total.passes == 0


def test_remove_also_follows_an_error():
    model = nn.Linear(3, 3)
    with pytest.raises(ZeroDivisionError), lograd.attach(model, IDENTITY):
        raise ZeroDivisionError
    assert type(model) is nn.Linear
