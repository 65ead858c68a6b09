"""States of handles that do not fit: refused in one sentence, with nothing changed."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlp, vector_batches
from refusals import LEAVES, REFUSED, attempt, nested, same
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Plan
from lograd.attachment.state import digest

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


def changed(state, *path, value, sums=False):
    """The state with another value in one place; without checksums unless they are asked for."""
    made = copy.deepcopy(state)
    place = made
    for step in path[:-1]:
        place = place[step]
    if callable(value):
        place[path[-1]] = value(place[path[-1]])
    else:
        place[path[-1]] = value
    if not sums:
        del made["checksums"]
    return made


def at(index, value):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return change


DX, DW = "input_gradient.gradient.", "weight_gradient.gradient."
LAYER, STATISTICS = ("layers", "0"), ("statistics", "0", "gradient")
WRONG = {
    "version": (("version",), 4, "not a handle's state of version 3; got version 4"),
    "true version": (("version",), True, "not a handle's state of version 3"),
    "steps": (("steps",), -5, "steps of a handle's state must be a whole number from 0"),
    "steps as text": (("steps",), "x", "steps of a handle's state must be a whole number from 0"),
    "collected later": (("last_collected",), 99, "last_collected of a handle's state"),
    "start": (("start",), -1, "start of a handle's state"),
    "seed": (("seed",), 0.5, "seed of a handle's state"),
    "loss scale": (("loss_scale",), float("nan"), "loss_scale of a handle's state must be a finite number"),
    "negative loss scale": (("loss_scale",), -1.0, "loss_scale of a handle's state must be a finite number"),
    "cost": (("cost",), [1, 2], "cost of a handle's state"),
    "negative cost": (("cost",), [1, 2, -1.0], "cost of a handle's state"),
    "growth": (("growth",), ["0"], "growth of a handle's state"),
    "growth of a number": (("growth",), [1, 2, 3, 4], "the layer of the growth must be a text"),
    "layers": (("layers",), [], "'layers' of a handle's state must be an object"),
    "layer": (("layers", "0"), [], "the state of layer '0' must be an object"),
    "unknown field": (("more",), 1, "has no field 'more'"),
    "no tensor": ((*LAYER, "gradient.control"), [0, 0], "control of layer '0' must be a tensor, int64 of shape"),
    "long table": (
        (*LAYER, "gradient.histogram"),
        torch.zeros(9, dtype=torch.int64),
        r"histogram of layer '0' must be int64",
    ),
    "short counters": (
        (*LAYER, DX + "counters"),
        torch.zeros(3, dtype=torch.int64),
        "got int64 of shape",
    ),
    "floats": ((*LAYER, "gradient.seen"), torch.zeros(3), "seen of layer '0' must be int64 of shape .* got float32"),
    "ready": ((*LAYER, "gradient.control"), at(0, 7), "control of layer '0' has a value that cannot be: 7"),
    "stride": ((*LAYER, "gradient.control"), at(1, -1), "control of layer '0' has a value that cannot be: -1"),
    "seen": ((*LAYER, "gradient.seen"), at(0, -1), "seen of layer '0' has a value that cannot be: -1"),
    "histogram": ((*LAYER, "gradient.histogram"), at(77, -1), "histogram of layer '0' has a value that cannot be: -1"),
    "number": (
        (*LAYER, DX + "numbers"),
        at(0, float("nan")),
        "numbers of layer '0' has a value that cannot be",
    ),
    "infinite": (
        (*LAYER, DX + "numbers"),
        at(0, float("inf")),
        "numbers of layer '0' has a value that cannot",
    ),
    "negative": (
        (*LAYER, DX + "numbers"),
        at(0, -1.0),
        "numbers of layer '0' has a value that cannot be",
    ),
    "memory": (
        (*LAYER, DW + "memory"),
        at(0, float("nan")),
        "memory of layer '0' has a value that cannot be",
    ),
    "offset": (
        (*LAYER, DW + "key"),
        at(1, -1),
        "key of layer '0' has a value that cannot be: -1",
    ),
    "counters": (
        (*LAYER, DW + "counters"),
        at(5, -1),
        "counters of layer '0' has a value that cannot be",
    ),
    "zeros": ((*LAYER, DW + "counters"), at(0, 2**40), "counts more zeros or NaN than elements"),
    "mode": (
        (*LAYER, DX + "choice"),
        torch.tensor([3, 0, 0, 0]),
        "choice of layer '0' has a value that cannot",
    ),
    "times": (
        (*LAYER, DX + "choice"),
        torch.tensor([1, -1, 0, 0]),
        "choice of layer '0' has a value that",
    ),
    "shares": (
        (*LAYER, DX + "choice"),
        torch.tensor([1, 5, 5, 10**7]),
        "choice of layer '0' has a value that",
    ),
    "unknown tensor": (
        (*LAYER, DX + "more"),
        torch.zeros(1),
        "has 'input_gradient.gradient.more', which",
    ),
    "table": ((*STATISTICS, "table"), torch.zeros(7, dtype=torch.int64), "the histogram in the statistics of layer"),
    "empty table": ((*STATISTICS, "table"), torch.zeros_like, "is empty"),
    "negative table": ((*STATISTICS, "table"), at(5, -1), "the histogram in the statistics of layer '0' has a value"),
    "step": ((*STATISTICS, "step"), -2, "the step of the statistics of layer '0'"),
    "its loss scale": ((*STATISTICS, "loss_scale"), 0.0, "the loss scale of the statistics of layer '0' must be posit"),
    "passed over": ((*STATISTICS, "passed_over"), 2, "passed_over of the statistics of layer '0'"),
    "allotted": ((*STATISTICS, "allotted"), [], "given 1 numbers there"),
    "all of it": ((*STATISTICS, "allotted"), [1.0], "the allotted sparsity in .* above 0 and below 1"),
    "energies": ((*STATISTICS, "energies"), [1.0, -1.0], "an energy in the statistics of layer '0'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(name, state, handle):
    path, value, words = WRONG[name]
    before = handle.state_dict()
    with pytest.raises(InvalidValue, match=words) as caught:
        handle.load_state_dict(changed(state, *path, value=value))
    assert "\n" not in str(caught.value)
    assert same(before, handle.state_dict())


@pytest.mark.parametrize("name", ["plan", "seed", "steps", "cost", "layers", "statistics"])
def test_a_state_without_a_part_is_refused(name, state, handle):
    broken = copy.deepcopy(state)
    del broken[name]
    with pytest.raises(InvalidValue, match=rf"a handle's state needs its field '{name}'"):
        handle.load_state_dict(broken)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("seed",), 6, "the state was changed or damaged"),
        (("loss_scale",), 2.0, "the state was changed or damaged"),
        ((*LAYER, DW + "key"), at(0, 1), "the state of layer '0' was changed or damaged"),
        (
            (*LAYER, DX + "numbers"),
            lambda tensor: tensor * 1.5,
            "the state of layer '0' was changed or damaged",
        ),
        ((*STATISTICS, "table"), at(800, 12345), "the state of layer '0' was changed or damaged"),
        (("checksums", "layers"), {}, "the state of layer '0' was changed or damaged"),
        (("checksums", "layers"), 5, "the state of layer '0' was changed or damaged"),
        (("checksums",), "x", "the checksums of a handle's state must be an object"),
    ],
)
def test_a_state_with_plausible_changes_is_known_by_its_checksum(path, value, words, state, handle):
    broken = changed(state, *path, value=value, sums=True)
    before = handle.state_dict()
    with pytest.raises(InvalidValue, match=words):
        handle.load_state_dict(broken)
    assert same(before, handle.state_dict())


@given(st.data())
@settings(max_examples=100)
def test_a_flipped_byte_of_any_tensor_is_noticed(state, handle, data):
    name = data.draw(st.sampled_from(sorted(state["layers"])))
    key = data.draw(st.sampled_from(sorted(k for k, t in state["layers"][name].items() if t.numel())))
    broken = copy.deepcopy(state)
    flat = broken["layers"][name][key].reshape(-1).view(torch.uint8)
    flat[data.draw(st.integers(0, flat.numel() - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidValue):
        handle.load_state_dict(broken)


PLAIN = nested(LEAVES | st.just(torch.zeros(3)))


@pytest.mark.filterwarnings("ignore:no gradient came by")  # a state without layers is one of a run that had none
@given(st.data())
@settings(max_examples=150)
def test_anything_in_any_place_of_a_state_is_refused_or_loaded(state, data):
    paths = [(name,) for name in state] + [
        (part, "0", key) for part in ("layers", "statistics") for key in state[part]["0"]
    ]
    broken = changed(state, *data.draw(st.sampled_from(paths)), value=data.draw(PLAIN), sums=True)
    if data.draw(st.booleans()):
        broken.pop("checksums")
    _, handle = attached()
    before = handle.state_dict()
    if attempt(lambda: handle.load_state_dict(broken)) is REFUSED:
        assert same(before, handle.state_dict())
    else:
        handle.step()
        str(handle.explain())
    handle.remove()


def test_a_state_goes_through_torch_save_on_another_device_name_and_sorted(state):
    content = io.BytesIO()
    torch.save({name: state[name] for name in sorted(state)}, content)
    content.seek(0)
    _, handle = attached()
    handle.load_state_dict(torch.load(content, weights_only=True, map_location="cpu"))
    assert same(handle.state_dict(), state)
    handle.remove()


def test_digests_tell_values_apart():
    values = [
        0, 0.0, -0.0, False, None, "", "0", [], {}, [[]], [0, 1], [[0], 1], {"a": 1}, {"b": 1}, "a", ["a", "b"], ["ab"],
        torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).double(), torch.zeros(0), torch.zeros(()), float("nan"),
        torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0.0, -0.0]),
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest((1, 2)) == digest([1, 2])
    assert digest(torch.arange(6.0).reshape(2, 3).t()) == digest(torch.arange(6.0).reshape(2, 3).t().contiguous())
