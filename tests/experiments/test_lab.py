"""The training loop of the experiments: settings, data by (seed, epoch, index), a session, a run that resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from experiments.lab import Config, Diverged, Session, in_turns, load_data, loop, session_of, train
from experiments.lab.datasets import augmented
from experiments.papers.sources import embedded_data
from lograd import InvalidValue, Plan


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded_data(tmp_path_factory.mktemp("embedded"))


def small(data: Path, **changes: object) -> Config:
    given = {"width": 4, "batch": 16, "steps": 6, "threads": 1, "evaluate_every": 3} | changes
    return Config("resnet8", str(data / "digits.npz"), **given)  # type: ignore[arg-type]


def test_settings_that_are_not_given_are_those_of_the_model(data: Path) -> None:
    config = small(data, steps=None)
    assert (config.optimizer, config.lr, config.weight_decay, config.epochs, config.augment) == (
        "sgd",
        0.1,
        1e-4,
        30,
        True,
    )
    assert Config("charlm", "play.txt", steps=3).augment is False
    assert config.to_json()["data"] == "digits.npz"
    assert small(data, recipe="prune85").load_plan() == Plan.uniform("prune85")
    with pytest.raises(InvalidValue, match="Did you mean 'resnet8'"):
        Config("resnet9", "x")
    with pytest.raises(InvalidValue, match="epochs or by steps"):
        small(data, epochs=1)


def test_rates_rise_and_fall(data: Path) -> None:
    rates = {name: [small(data, schedule=name, warmup=2).rate(step, 10) for step in range(10)]
             for name in ("cosine", "step", "constant")}  # fmt: skip
    assert all(found[:2] == [0.5, 1.0] for found in rates.values())
    assert rates["constant"][2:] == [1.0] * 8
    assert rates["step"][2:] == [1.0] * 3 + [0.1] * 3 + [0.01] * 2
    assert rates["cosine"][6] == pytest.approx(0.5)


@pytest.mark.parametrize(("model", "name"), [("resnet8", "digits.npz"), ("charlm", "play.txt"), ("bert-mini", "sst2")])
def test_a_batch_follows_from_seed_epoch_and_index(data: Path, model: str, name: str) -> None:
    config = Config(model, str(data / name), batch=8, seed=3)
    one, other = load_data(config), load_data(config)
    other.batch(1, 0)  # whatever was asked for before
    for place in ((0, 0), (0, 1), (2, 0)):
        for mine, theirs in zip(one.batch(*place), other.batch(*place), strict=True):
            assert torch.equal(mine, theirs)
    assert not torch.equal(one.batch(0, 0)[0], one.batch(1, 0)[0])
    seen = {int(number) for index in range(one.steps_per_epoch) for number in one.chosen(0, index)}
    assert len(seen) == one.steps_per_epoch * 8
    assert sum(len(targets) for _, targets in one.test_batches()) > 0
    with pytest.raises(InvalidValue, match="batch must be at most"):
        load_data(replace(config, batch=10**6))


def test_images_are_normalised_moved_and_averaged(data: Path, tmp_path: Path) -> None:
    plain = load_data(small(data, augment=False, batch=320))
    images, _ = plain.batch(0, 0)
    assert images.mean().abs() < 1e-4
    assert images.std(dim=(0, 2, 3)) == pytest.approx(torch.ones(3), abs=1e-2)
    smaller = load_data(small(data, augment=False, batch=320, pixels=4)).batch(0, 0)[0]
    torch.testing.assert_close(smaller, F.avg_pool2d(images, 2))
    pixels = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    moved = augmented(pixels, np.random.default_rng(0))
    assert moved.shape == pixels.shape
    assert set(np.unique(moved)) <= {0, *np.unique(pixels)}
    np.savez(tmp_path / "x.npz", train_images=pixels)
    for bad in ("x.npz", "nowhere.npz"):
        with pytest.raises(InvalidValue, match=r"must be an \.npz file with train_images"):
            load_data(Config("resnet8", str(tmp_path / bad)))
    with pytest.raises(InvalidValue, match="pixels must divide"):
        load_data(small(data, pixels=3))


@pytest.mark.parametrize("recipe", [None, "prune85", "fp5-dynamic", "int4wa-clips"])
def test_a_stopped_run_goes_on_to_the_same_bits(
    data: Path, recipe: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    config = small(data, recipe=recipe, warmup=2)
    whole = train(config, tmp_path / "whole")

    def stop(step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", stop)
    found = train(config, tmp_path / "parts")
    timeless = [[{key: value for key, value in line.items() if key != "seconds"} for line in one["tests"]]
                for one in (whole, found)]  # fmt: skip
    assert timeless[0] == timeless[1]
    assert [line["step"] for line in found["tests"]] == [3, 6]
    assert (found["status"], found["steps"], found["sparsity"]) == ("finished", 6, whole["sparsity"])
    assert [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()] == found["tests"]
    assert train(config, tmp_path / "parts")["tests"] == found["tests"], "a finished run is just returned"


def test_weights_without_a_float32_copy_are_trained_and_given_back(data: Path) -> None:
    config = small(data, weights="int8")
    with session_of(config, load_data(config)) as session:
        assert session.weights is not None
        session.step()
        model = session.model
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


def test_a_run_that_diverges_is_a_result(data: Path, tmp_path: Path) -> None:
    found = train(small(data, lr=1e30, schedule="constant"), tmp_path / "run")
    assert found["status"] == "diverged"
    assert "loss is" in found["reason"]


def test_a_session_trains_what_is_at_hand_and_gives_it_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    before = list(model.state_dict())
    batches = [(torch.randn(16, 8), torch.randint(3, (16,)))] * 30
    sessions = {}
    for name, plan in (("dense", None), ("fp6", Plan.uniform("fp6"))):
        own = nn.Sequential(*(module for module in model)) if plan is None else model
        optimizer = torch.optim.SGD(own.parameters(), 0.1)
        sessions[name] = Session(
            own, batches, F.cross_entropy, optimizer, plan, rate=lambda step: 1 / (1 + step), clip=1.0
        )
    turns = list(in_turns(sessions, 2))
    assert [(turn.step, turn.name) for turn in turns] == [(1, "dense"), (1, "fp6"), (2, "dense"), (2, "fp6")]
    assert sessions["dense"].optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 3)
    assert sessions["dense"].times.step > 0
    for session in sessions.values():
        session.close()
    assert type(model[0]) is nn.Linear
    assert list(model.state_dict()) == before
    with pytest.raises(Diverged, match="step 1"):
        Session(model, [(torch.full((2, 8), float("nan")), torch.zeros(2).long())], F.cross_entropy, optimizer).step()
