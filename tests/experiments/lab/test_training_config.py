"""Settings of a run: an exact inverse in JSON, defaults of the models, refusals in words; schedules in closed form."""

import json
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lograd
from experiments.lab import TASKS, Config, train
from experiments.lab.schedules import learning_rate
from lograd.files.seals import checksum_of_json

counts = st.integers(1, 2**31)
maybe = st.none() | counts
rates = st.floats(1e-12, 1e6)


@st.composite
def configs(draw):
    model = draw(st.sampled_from(sorted(TASKS)))
    multiple = TASKS[model].multiple
    length = draw(st.sampled_from(["epochs", "steps"]))
    return Config(
        model,
        draw(st.text(min_size=1)),
        **draw(st.sampled_from([{}, {"plan": "a/plan.json"}, {"recipe": "fp6"}, {"recipe": "prune85+fp6"}])),
        **{length: draw(maybe)},
        seed=draw(st.integers(0, 2**63 - 1)),
        batch=draw(maybe),
        lr=draw(st.none() | rates),
        optimizer=draw(st.sampled_from([None, "sgd", "adamw"])),
        weight_decay=draw(st.none() | st.just(0) | rates),
        schedule=draw(st.sampled_from(["cosine", "step", "constant"])),
        warmup=draw(st.integers(0, 1000)),
        width=draw(st.none() | st.integers(1, 1000).map(lambda width: width * multiple)),
        augment=draw(st.sampled_from([None, False] + [True] * (TASKS[model].kind == "images"))),
        pixels=draw(st.none() | st.integers(64, 999)) if TASKS[model].kind == "images" else None,
        channels_last=draw(st.booleans()) if TASKS[model].kind == "images" else False,
        threads=draw(st.none() | st.integers(1, 4096)),
        log_every=draw(counts),
        evaluate_every=draw(maybe),
        checkpoint_every=draw(counts),
        tensorboard=draw(st.booleans()),
        **draw(st.sampled_from([{}, {"weights": "int8"}, {"weights": "e4m3fn", "state_bits": 8}])),
    )


@given(configs())
def test_json_is_an_exact_inverse(config):
    assert Config.from_json(json.loads(json.dumps(config.to_json(), allow_nan=False))) == config
    assert replace(config) == config


@pytest.mark.parametrize("model", TASKS)
def test_what_is_not_given_is_settled_at_once(model):
    config = Config(model, "x")
    open_fields = {"plan", "recipe", "steps", "threads", "evaluate_every", "weights", "state_bits", "ranks"}
    open_fields |= {"pipeline", "microbatches", "edges", "activations", "pixels"}
    assert {field.name for field in fields(config) if getattr(config, field.name) is None} == open_fields
    transformer = model in ("charlm", "charlm6", "bert-mini")
    assert config.optimizer == ("adamw" if transformer else "sgd")
    assert config.weight_decay == (0.01 if transformer else 1e-4)
    assert config.augment is not transformer
    other = Config(model, "x", optimizer="sgd" if transformer else "adamw")
    assert other.lr == (0.1 if transformer else 1e-3)  # a rate that suits the optimizer, not the model's own


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "resnet9"}, r"one of resnet8, .*; got 'resnet9'. Did you mean 'resnet8'\?"),
        ({"model": 8}, "model must be one of"),
        ({"data": ""}, "data must be the path"),
        ({"steps": 0}, "steps must be a whole number from 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"epochs": 1, "steps": 1}, "by epochs or by steps; got both"),
        ({"plan": "p", "recipe": "fp6"}, "a plan or a recipe; got both"),
        ({"recipe": "fp66"}, "'fp66' is not a recipe"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"batch": 0}, "batch must be"),
        ({"lr": 0}, "lr must be finite and above 0"),
        ({"lr": math.nan}, "lr must be finite"),
        ({"lr": "0.1"}, "lr must be finite"),
        ({"weight_decay": -1e-4}, "weight_decay must be finite and not below 0"),
        ({"optimizer": "adam"}, r"one of sgd, adamw; got 'adam'. Did you mean 'adamw'\?"),
        ({"schedule": "cosin"}, r"Did you mean 'cosine'\?"),
        ({"warmup": -1}, "warmup must be"),
        ({"model": "charlm", "width": 30}, "width of charlm must be a multiple of 4; got 30"),
        ({"model": "charlm", "augment": True}, "augment is for images, and charlm is trained on text"),
        ({"augment": "yes"}, "augment must be true or false"),
        ({"model": "charlm", "pixels": 16}, "pixels is for images, and charlm is trained on text"),
        ({"model": "charlm", "channels_last": True}, "channels_last is for images, and charlm is trained on text"),
        ({"channels_last": 1}, "channels_last must be true or false"),
        ({"model": "vgg", "pixels": 16}, "pixels of vgg must be 32 or more"),
        ({"pixels": 0}, "pixels must be a whole number from 1"),
        ({"log_every": 0}, "log_every must be"),
        ({"weights": "int88"}, "weights must be int8, e4m3fn, e5m2, another .*, or bfloat16; got 'int88'"),
        ({"weights": "float16"}, "signed format of at most 8 bits, or bfloat16; got 'float16'"),
        ({"weights": "uint8"}, "signed format of at most 8 bits, or bfloat16; got 'uint8'"),
        ({"weights": "mxfp4"}, "signed format of at most 8 bits, or bfloat16; got 'mxfp4'"),
        ({"weights": 8}, "weights must be the name of a format, or nothing; got 8"),
        ({"weights": "int8", "state_bits": 4}, "state_bits must be 8, or nothing for state in float32; got 4"),
        ({"weights": "int8", "state_bits": True}, "state_bits must be 8"),
        ({"state_bits": 8}, "state_bits is for weights in low precision; give weights as well, such as int8"),
    ],
)
def test_wrong_settings_are_refused_in_words(settings, words):
    with pytest.raises(lograd.LogradError, match=words):
        Config(**({"model": "resnet8", "data": "x"} | settings))


@pytest.mark.parametrize(
    ("data", "words"),
    [([], "settings of a run must be an object"), ({"model": "resnet8"}, "needs the setting 'data'"),
     ({"model": "resnet8", "data": "x", "lrr": 1}, r"no setting 'lrr'. Did you mean 'lr'\?")],
)  # fmt: skip
def test_wrong_json_is_refused_in_words(data, words):
    with pytest.raises(lograd.LogradError, match=words):
        Config.from_json(data)


RECORDED = {
    "model": "resnet8", "data": "cifar100.npz", "plan": None, "recipe": None, "seed": 0, "epochs": 6, "steps": None,
    "batch": 128, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0.0001, "schedule": "cosine", "warmup": 0, "width": 16,
    "augment": True, "threads": 1, "backend": "dense", "start": 0, "log_every": 10, "evaluate_every": 1000000,
    "checkpoint_every": 200, "tensorboard": False,
}  # fmt: skip
"""Settings in the config.json of a run from before weights could be stored in low precision."""


def test_settings_from_before_weights_in_low_precision_have_their_checksum():
    now = Config.from_json(RECORDED).to_json()
    assert list(now.items()) == list(RECORDED.items())  # in the same order, which the checksum depends on
    del now["data"]
    assert checksum_of_json(now) == "6d0d6eda9f0214d6"  # as that run's checkpoint has it
    stored = Config.from_json(RECORDED | {"weights": "int8"})
    assert (stored.treatment, stored.to_json()) == ("dense, int8 weights", RECORDED | {"weights": "int8"})


def test_ranks_are_noted_only_where_there_are_several():
    assert Config.from_json(RECORDED | {"ranks": 1}).to_json() == RECORDED
    several = Config.from_json(RECORDED | {"ranks": 2})
    assert several.to_json() == RECORDED | {"ranks": 2}
    for wrong in (0, True, 1.5, "2"):
        with pytest.raises(lograd.InvalidValue, match="ranks must be a whole number from 1"):
            replace(several, ranks=wrong)
    with pytest.raises(lograd.InvalidValue, match=r"batch, .*must be a multiple of 3, their number; got 8"):
        replace(several, ranks=3, batch=8)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"ranks": 2}, "the run has 2 ranks and was now started with 1; start it by torchrun --nproc-per-node 2"),
    ({"recipe": "prune85", "common_statistics": True}, "common_statistics are for several ranks, and this run has one"),
])  # fmt: skip
def test_a_process_alone_is_no_run_of_several(changes, sentence, tiny, tmp_path):
    with pytest.raises(lograd.InvalidValue, match=sentence):
        train(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@given(st.integers(1, 500), st.integers(0, 600), rates)
def test_schedules_follow_their_closed_forms(total, warmup, peak):
    for step in range(0, total, max(total // 17, 1)):
        cosine, stepped, constant = (
            learning_rate(peak, schedule, warmup, step, total) for schedule in ("cosine", "step", "constant")
        )
        if step < warmup:
            assert cosine == stepped == constant == peak * (step + 1) / warmup
            continue
        assert constant == peak
        half_angle = math.pi / 2 * (step - warmup) / (total - warmup)
        assert cosine == pytest.approx(peak * math.cos(half_angle) ** 2, rel=1e-9)
        assert stepped == peak * {0: 1, 1: 1, 2: 0.1, 3: 0.01}[4 * step // total]
        assert 0 < cosine <= peak


def test_a_schedule_starts_and_ends_where_it_should():
    assert learning_rate(0.4, "cosine", 0, 0, 100) == 0.4
    assert learning_rate(0.4, "cosine", 0, 50, 100) == pytest.approx(0.2)
    assert learning_rate(0.4, "cosine", 10, 9, 100) == learning_rate(0.4, "cosine", 10, 10, 100) == 0.4
    assert [learning_rate(1.0, "step", 0, step, 8) for step in range(8)] == [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]
