"""What of a user's model cannot be trained is refused in one sentence, before anything is written."""

import sys

import pytest
import torch
from own_models import MINE
from training_runs import settings

import lograd
from experiments.lab import Config, Run, train
from experiments.lab.loading import call_make

WRONG = """
def iterator():
    return network(), iter(loader()), cross_entropy
def no_batch():
    return network(), [], cross_entropy
def no_epoch():
    return network(), lambda: loader(), cross_entropy
def not_iterable():
    return network(), lambda epoch: 3, cross_entropy
def endless():
    return network(), lambda epoch: (x for x in loader()), cross_entropy
def second_is_empty():
    return network(), lambda epoch: [] if epoch else list(loader()), cross_entropy
def fails_in_batches():
    def batches(epoch):
        yield from loader()
        raise RuntimeError("disk is gone")
    return network(), batches, cross_entropy
def six():
    return (*three(), None, None, None)
def misnamed():
    return {"model": network(), "batches": loader(), "los": cross_entropy}
def no_model():
    return {"batches": loader(), "loss": cross_entropy}
def lbfgs():
    model = network()
    return model, loader(), cross_entropy, torch.optim.LBFGS(model.parameters())
def foreign():
    return network(), loader(), cross_entropy, torch.optim.Adam(network().parameters())
def no_optimizer():
    return network(), loader(), cross_entropy, lambda parameters: 3
def bad_optimizer():
    return network(), loader(), cross_entropy, lambda parameters: 1 / 0
def number_as_metric():
    return (*three(), None, 3)
def metric_without_model():
    return (*three(), None, lambda: 3)
def text_as_metric():
    return (*three(), None, lambda model: "good")
def taken_name():
    return (*three(), None, lambda model: {"step": 3})
def no_numbers():
    return (*three(), None, lambda model: {})
def failing_metric():
    return (*three(), None, lambda model: model.missing)
def wrong_loss():
    return network(), loader(), lambda x, y: cross_entropy(x, y[:3])
class Odd(nn.Linear):
    def get_extra_state(self):
        return {"device": slice(3)}
    def set_extra_state(self, state):
        pass
def odd_state():
    return nn.Sequential(Odd(8, 3)), loader(), cross_entropy
def no_parameters():
    return nn.ReLU(), loader(), cross_entropy
def leaves():
    raise SystemExit("usage: make")
"""


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("iterator", {}, "can be iterated only once .*; return a list, a DataLoader, or a function of the number"),
        ("no_batch", {}, "must be at least one; there are none"),
        ("no_epoch", {}, "the function batches of mine:no_epoch must take the number of the epoch; too many"),
        ("not_iterable", {}, "must return an iterable of batches; it returned an object of type int"),
        (
            "endless",
            {"steps": None, "epochs": 2},
            "have no length, so epochs cannot be counted; give the length .* steps",
        ),
        ("six", {}, "it returned 6 of them. An optimizer and a metric may follow"),
        ("misnamed", {}, "it has 'los'. Did you mean 'loss'"),
        ("no_model", {}, "model is missing"),
        ("lbfgs", {}, "LBFGS calls the model several times in a step"),
        ("foreign", {}, "has 6 tensors that are not parameters of the model"),
        ("no_optimizer", {}, "must be one of torch.optim; got an object of type int"),
        (
            "bad_optimizer",
            {},
            r"the optimizer of mine:bad_optimizer raised ZeroDivisionError: division by zero \(.*mine",
        ),
        ("four", {"optimizer": "sgd"}, "mine:four brings its own optimizer; leave out optimizer"),
        ("four", {"weight_decay": 0.1}, "leave out weight_decay"),
        ("number_as_metric", {}, "in place of the metric, a function of the model, it returned an object of type int"),
        ("metric_without_model", {}, "the metric of mine:metric_without_model must take the model"),
        ("text_as_metric", {}, "must be a number; got an object of type str"),
        ("taken_name", {}, "by other names than kind, step"),
        ("no_numbers", {}, "must return a number or several by name; got none"),
        ("failing_metric", {}, r"the metric of mine:failing_metric raised AttributeError: .*\(.*mine.py:\d+\)"),
        ("odd_state", {}, "the state of mine:odd_state must be tensors and plain values"),
        (
            "no_parameters",
            {},
            "the optimizer of mine:no_parameters raised ValueError: optimizer got an empty parameter",
        ),
        ("leaves", {}, "mine:leaves raised SystemExit: usage: make"),
        ("missing", {}, "mine has no function 'missing'"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(name, changes, words, mine, tmp_path):
    mine(WRONG)
    with pytest.raises(lograd.LogradError, match=words):
        train(settings(f"mine:{name}", **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("wrong_loss", r"a step of mine:wrong_loss raised ValueError: Expected input batch_size \(8\)", 0),
        ("fails_in_batches", r"the batches of mine:fails_in_batches raised RuntimeError: disk is gone \(.*mine.py", 4),
        ("second_is_empty", "must be at least one; epoch 1 has none", 4),
    ],
)
def test_an_error_on_the_way_is_one_sentence_and_the_checkpoint_stays(name, words, steps, mine, tmp_path):
    mine(WRONG)
    with pytest.raises(lograd.InvalidValue, match=words):
        train(settings(f"mine:{name}"), tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.pt"
    assert Run.load(tmp_path / "run").status == "unfinished"
    assert (torch.load(path, weights_only=True)["steps"] if path.exists() else 0) == steps


@pytest.mark.parametrize("name", ["data", "batch", "width", "augment", "pixels", "channels_last"])
def test_settings_of_built_in_models_are_refused(name):
    with pytest.raises(lograd.InvalidValue, match=f"{name} belongs to the built-in models; mine:make brings its own"):
        Config("mine:make", **{name: "x" if name == "data" else 1})


def test_no_augmentation_is_a_setting_of_built_in_models_too():
    with pytest.raises(lograd.InvalidValue, match="augment belongs to the built-in models"):
        Config("mine:make", augment=False)


def test_a_module_without_a_file_is_told_apart_by_nothing(monkeypatch, tmp_path):
    """As in a notebook, where a function has no source file."""
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(MINE, space)
    monkeypatch.setattr(sys.modules["__main__"], "make_here", space["make"], raising=False)
    assert train(settings("__main__:make_here"), tmp_path / "run").status == "finished"


def test_what_a_function_returned_is_a_value(mine):
    made = call_make("mine:five")
    assert (made.target, len(list(made.epoch(3)))) == ("mine:five", 6)
    with pytest.raises(AttributeError):
        made.model = None
