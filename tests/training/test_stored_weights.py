"""Runs whose weights are stored in low precision: no float32 copy, resumed to the same bits, readable by anyone."""

import gc
import zipfile
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training_runs import assert_same_run, crashed, settings

import lograd
from lograd.commands.train import _result
from lograd.files.atomic import CannotRead
from lograd.training import TASKS, Config, Session, build_model, compare, load_data, resume, train
from lograd.training.work import BuiltIn
from lograd.weights import LowPrecisionTensor


def net(classes, width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 8 * width), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8 * width, classes)
    )


@pytest.fixture
def small(tiny, monkeypatch):
    """Configs of a network of two layers with dropout, which depends on torch's own random state."""
    monkeypatch.setitem(TASKS, "resnet8", replace(TASKS["resnet8"], build=net))
    usual = {"steps": 10, "log_every": 3, "checkpoint_every": 4, "evaluate_every": 5, "weights": "int8"}
    return lambda **changes: tiny(**(usual | changes))


def state_of(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def assert_same_state(one, other):
    """All of two checkpoints, codes and random numbers included, but for times."""
    first, second = state_of(one), state_of(other)
    assert first["weights"].keys() == second["weights"].keys()
    assert all(torch.equal(first["weights"][name], second["weights"][name]) for name in first["weights"])
    for number, values in first["optimizer"]["state"].items():
        for name, value in values.items():
            twin = second["optimizer"]["state"][number][name]
            assert type(value) is type(twin)
            parts = ("codes", "spacing", "ledger") if isinstance(value, LowPrecisionTensor) else ("data",)
            assert value is twin is None or all(torch.equal(getattr(value, p), getattr(twin, p)) for p in parts)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "int8-full"},
        {"recipe": "prune85+fp6", "weights": "e4m3fn"},
        {"recipe": "int4wa-clips+fp6", "weights": "bfloat16", "state_bits": 8},
    ],
)
def test_a_crash_is_resumed_to_the_same_bits(changes, optimizer, small, tmp_path):
    config = small(optimizer=optimizer, **changes)
    whole = train(config, tmp_path / "whole")
    assert whole.summary["weights"]["steps"] == 10
    crashed(config, tmp_path / "crash", 6)
    run = resume(tmp_path / "crash")
    assert_same_run(tmp_path / "whole", tmp_path / "crash")
    assert_same_state(tmp_path / "whole", tmp_path / "crash")
    assert run.summary["weights"] == whole.summary["weights"]


@pytest.mark.parametrize("name", ["make", "four", "narrow"])
def test_a_model_of_the_users_is_resumed_to_the_same_bits(name, mine, tmp_path):
    """Also one of bfloat16, whose steps are float32, and so is what the optimizer keeps of its weights."""
    mine("""
def narrow():
    data = [(x.bfloat16(), y) for x, y in zip(INPUTS.split(8), LABELS.split(8))]
    return network().bfloat16(), data, cross_entropy, lambda own: torch.optim.SGD(own, lr=0.02, momentum=0.9)
""")
    for state_bits in (None, 8):
        config = settings(f"mine:{name}", weights="int8", state_bits=state_bits)
        whole = tmp_path / f"whole{state_bits}"
        train(config, whole)
        crashed(config, tmp_path / f"crash{state_bits}", 6)
        resume(tmp_path / f"crash{state_bits}")
        assert_same_run(whole, tmp_path / f"crash{state_bits}")
        assert_same_state(whole, tmp_path / f"crash{state_bits}")


def test_a_session_is_the_loop_by_hand_to_the_same_bits(small):
    config = small(weights="e4m3fn", state_bits=8, seed=5, recipe="int8-full", schedule="constant")
    data = load_data(config)
    torch.manual_seed(0)
    with Session(BuiltIn(config, data), config.load_plan()) as session:
        losses = [session.step() for _ in range(4)]
        stored = session.weights.state_dict()

    model = build_model(config, data).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)
    weights = lograd.low_precision_weights(model, "e4m3fn", optimizer=optimizer, state_bits=8, seed=5)
    handle = lograd.attach(model, config.load_plan(), 5, backend=config.backend)
    for step, loss in enumerate(losses):
        inputs, targets = data.batch(0, step)
        optimizer.zero_grad()
        found = cross_entropy(model(inputs), targets)
        assert found.item() == loss
        found.backward()
        optimizer.step()
        handle.step()
    assert all(torch.equal(part, stored[name]) for name, part in weights.state_dict().items())


def test_the_end_of_a_session_gives_plain_parameters_back(small):
    config = small(weights="int8", recipe="int8-full")
    with Session(BuiltIn(config, load_data(config)), config.load_plan()) as session:
        session.step()
        assert isinstance(session.model[1].weight, LowPrecisionTensor)
        expected = session.weights.plain_state_dict()
    assert type(session.model[1]) is nn.Linear
    assert type(session.model[1].weight) is nn.Parameter
    assert all(torch.equal(part, expected[name]) for name, part in session.model.state_dict().items())
    session = Session(BuiltIn(config, load_data(config)), None)
    held = session.model[1](torch.ones(1, 192, requires_grad=True))
    with pytest.raises(ZeroDivisionError), session:  # the graph holds the weights, which must not hide the error
        raise ZeroDivisionError
    assert isinstance(session.model[1].weight, LowPrecisionTensor)
    with pytest.raises(lograd.InvalidValue, match="is held by a graph"):
        session.close()
    del held
    session.close()
    assert type(session.model[1].weight) is nn.Parameter


@pytest.mark.slow  # looks at all objects of Python; weights/test_steps.py does so every day
def test_no_float32_copy_of_a_weight_is_left_between_steps(small, tmp_path):
    """Tensors of the shape of the large weight: only its gradient, and the momentum that nobody asked to store."""
    shape, found = torch.Size([8 * 7, 192]), []

    def look(status):
        if status.step in (4, 10):  # after a checkpoint, too
            gc.collect()
            alive = [x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter) and x.shape == shape]
            found.append(sorted(x.dtype == torch.float32 for x in alive))

    for state_bits, floats in ((None, 2), (8, 1)):
        found.clear()
        train(small(width=7, state_bits=state_bits), tmp_path / str(state_bits), progress=look)
        assert [sum(each) for each in found] == [floats, floats]


def test_weights_and_summary_are_readable(small, tmp_path):
    config = small()
    run = train(config, tmp_path / "run")
    state = state_of(run.path)
    model = build_model(config, load_data(config))
    model.load_state_dict(state["model"])
    for name in ("1.weight", "4.weight"):
        codes, spacing = (state["weights"][f"{name}.{part}"] for part in ("codes", "spacing"))
        assert codes.dtype == torch.uint8
        assert type(state["model"][name]) is torch.Tensor
        assert torch.equal(model.state_dict()[name], codes.view(torch.int8) * spacing)
    with zipfile.ZipFile(run.path / "checkpoint.pt") as archive:  # nothing that a program without lograd cannot read
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    assert b"_rebuild_tensor" in pickled
    assert b"rebuilt" not in pickled
    stored = run.summary["weights"]
    assert stored["weights"] == 192 * 16 + 16 * 4
    assert stored["bytes"] == stored["weights"] + 4 * (16 + 4)
    assert (stored["clipped"], stored["elements"]) == (0, 10 * stored["weights"])
    assert f"int8 weights, {stored['bytes'] / stored['weights']:.2f} bytes each" in _result(run)
    dense = train(small(weights=None), tmp_path / "dense")
    assert dense.summary["weights"] is None
    assert "int8" not in _result(dense)
    family = compare([dense.path, run.path]).families[0]
    assert family.labels() == ["dense", "dense, int8 weights"]
    assert family.differing() == [("weights", ["–", "int8"])]


def test_a_run_from_before_goes_on(small, tmp_path):
    """Its checkpoint has no word of weights, and its config.json none of their format."""
    config = small(weights=None)
    train(config, tmp_path / "whole")
    crashed(config, tmp_path / "run", 6)
    assert "weights" not in (tmp_path / "run" / "config.json").read_text()
    path = tmp_path / "run" / "checkpoint.pt"
    state = state_of(tmp_path / "run")
    assert state.pop("weights") is None
    torch.save(state, path)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: None, "written by a run without weights in low precision"),
        (lambda w: 5, "the state must be a dict of tensors"),
        (lambda w: w | {"1.weight.codes": [1]}, "'1.weight.codes' of the state must be a tensor"),
        (lambda w: w | {"1.weight.codes": w["1.weight.codes"][1:]}, "codes of '1.weight' must be torch.uint8 of shape"),
        (lambda w: w | {"1.weight.spacing": -w["1.weight.spacing"]}, "the state of '1.weight' is damaged"),
        (lambda w: w | {"1.weight.format": w["1.weight.format"] + 1}, "'1.weight' is stored as int8 per channel"),
        (
            lambda w: w | {"5.weight.codes": w["1.weight.codes"]},
            "the state has '5.weight.codes', and the weights do not",
        ),
        (lambda w: {name: part for name, part in w.items() if name != "4.weight.ledger"}, "has no '4.weight.ledger'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_changed(change, words, small, tmp_path):
    config = small()
    crashed(config, tmp_path / "run", 6)
    path = tmp_path / "run" / "checkpoint.pt"
    state = state_of(tmp_path / "run")
    torch.save(state | {"weights": change(state["weights"])}, path)
    session = Session(BuiltIn(config, load_data(config)), None)
    before = {name: part.clone() for name, part in session.weights.state_dict().items()}
    with pytest.raises(CannotRead, match=words) as caught:
        session.load(path)
    assert str(caught.value).startswith(f"Cannot go on from the checkpoint {path}: ")
    assert all(torch.equal(part, before[name]) for name, part in session.weights.state_dict().items())
    assert (session.steps, dict(session.optimizer.state)) == (0, {})


def test_a_checkpoint_of_weights_in_low_precision_is_none_of_a_run_without(small, tmp_path):
    crashed(small(), tmp_path / "run", 6)
    state = state_of(tmp_path / "run")
    del state["settings"]  # the first checkpoints did not have it
    session = Session(BuiltIn(small(weights=None), load_data(small())), None)
    with pytest.raises(lograd.InvalidValue, match="written by a run with weights in low precision"):
        session.load_state_dict(state)


def test_other_formats_are_refused_when_a_run_is_resumed(small, tmp_path):
    crashed(small(), tmp_path / "run", 6)
    for given, words in [
        ({"weights": "e4m3fn"}, r"weights \(the run has int8, given is e4m3fn\)"),
        ({"state_bits": 8}, r"state_bits \(the run has None, given is 8\)"),
        ({"weights": None}, r"weights \(the run has int8, given is None\)"),
    ]:
        with pytest.raises(lograd.InvalidValue, match=words):
            resume(tmp_path / "run", expected=given)
    assert resume(tmp_path / "run", expected={"weights": "int8"}).status == "finished"


def test_models_and_optimizers_that_cannot_have_such_weights_are_refused(mine, tmp_path):
    mine("""
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
    def forward(self, x):
        return x[:, :3] * self.scale
def vectors():
    return Scale(), loader(), cross_entropy
def frozen():
    model = network()
    return model, loader(), cross_entropy, torch.optim.SGD([model[0].bias], lr=0.1)
""")
    for name, words in [
        (
            "vectors",
            "the model has no parameter that could be stored in low precision; 'scale' is left alone: a vector",
        ),
        ("frozen", "the optimizer has none of the weights in low precision"),
    ]:
        with pytest.raises(lograd.InvalidValue, match=words):
            train(settings(f"mine:{name}", weights="int8"), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_weights_of_8_bits_learn(data, tmp_path):
    """Classes are rows of bright pixels: chance is a quarter, and float32 finds all of them."""
    config = Config("resnet8", data["images"], width=8, batch=16, epochs=8, threads=1, augment=False, weights="int8")
    assert train(config, tmp_path / "run").summary["final"]["accuracy"] > 0.8
