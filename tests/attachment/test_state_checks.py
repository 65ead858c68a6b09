"""States of handles that do not fit: refused in one sentence, with nothing changed."""

import copy
import io

import pytest
import torch
from networks import mlp, vector_batches
from refusals import same
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan

PLAN = "prune85-cosine+fp6/atp85"


def attached(**options):
    model = mlp()
    return model, lograd.attach(model, Plan.uniform(PLAN), **options)


@pytest.fixture(scope="module")
def state():
    model, handle = attached(seed=5)
    for x, labels in vector_batches(4):
        cross_entropy(model(x), labels).backward()
        handle.step()
    made = handle.state_dict()
    handle.remove()
    return made


@pytest.fixture(scope="module")
def handle():
    return attached()[1]


LAYER, STATISTICS = ("layers", "0"), ("statistics", "0", "gradient")
NUMBERS = "input_gradient.gradient.numbers"
WRONG = {
    "version": (("version",), 3, "version 3"),
    "plan": (("plan",), "another", "another plan"),
    "steps": (("steps",), -5, "steps of a handle's state"),
    "collected later": (("last_collected",), 99, "last_collected"),
    "loss scale": (("loss_scale",), float("nan"), "loss_scale"),
    "unknown field": (("more",), 1, "more"),
    "layers": (("layers",), [], "'layers'"),
    "layer": (LAYER, [], "layer '0'"),
    "no tensor": ((*LAYER, "gradient.control"), [0, 0], "gradient.control of layer '0'"),
    "shape": ((*LAYER, "gradient.histogram"), torch.zeros(9, dtype=torch.int64), "histogram of layer '0'"),
    "type": ((*LAYER, "gradient.seen"), torch.zeros(3), "seen of layer '0'"),
    "not finite": ((*LAYER, NUMBERS), torch.tensor([float("nan"), 1.0]), "numbers of layer '0'"),
    "choice": ((*LAYER, "input_gradient.gradient.choice"), torch.tensor([3, 0]), "choice of layer '0'"),
    "unknown tensor": ((*LAYER, "gradient.more"), torch.zeros(1), "gradient.more"),
    "table": ((*STATISTICS, "table"), torch.zeros(7, dtype=torch.int64), "the histogram in the statistics of layer"),
    "its loss scale": ((*STATISTICS, "loss_scale"), 0.0, "the loss scale of the statistics of layer '0'"),
    "allotted": ((*STATISTICS, "allotted"), [], "the statistics of layer '0'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(name, state, handle):
    path, value, words = WRONG[name]
    made = copy.deepcopy(state)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    before = handle.state_dict()
    for load in (handle.check_state_dict, handle.load_state_dict):
        with pytest.raises(InvalidValue, match=words):
            load(made)
    assert same(before, handle.state_dict())


@pytest.mark.parametrize("name", ["plan", "seed", "steps", "cost", "layers", "statistics"])
def test_a_state_without_a_part_is_refused(name, state, handle):
    with pytest.raises(InvalidValue, match=name):
        handle.load_state_dict({key: value for key, value in state.items() if key != name})
    layers = {"0": {key: one for key, one in state["layers"]["0"].items() if key != NUMBERS}}
    with pytest.raises(InvalidValue, match=NUMBERS):
        handle.load_state_dict(state | {"layers": layers})


def test_a_state_goes_through_torch_save(state):
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    _, handle = attached()
    handle.load_state_dict(torch.load(content, weights_only=True, map_location="cpu"))
    assert same(handle.state_dict(), state)
    handle.remove()
