"""Training a model of the user's: what its function may return, and that a run is resumed to the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from own_models import MINE

import lograd
from lograd.errors import LogradWarning
from lograd.training import Config, Diverged, Run, compare, resume, train
from lograd.training.feeding import Feed, digest
from lograd.training.loading import Made, call_make
from lograd.training.randomness import RandomState, preserved, seed_all


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a module `mine`, of the usual text and some more, into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(more="", name="mine"):
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(MINE + more)
        return tmp_path

    write()
    yield write
    sys.modules.pop("mine", None)


def settings(model="mine:make", **changes):
    usual = {"steps": 10, "log_every": 3, "checkpoint_every": 4, "evaluate_every": 5, "threads": 1}
    return Config(model, **(usual | changes))


def assert_same_run(one, other):
    first, second = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other))
    assert first["model"].keys() == second["model"].keys()
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    runs = [Run.load(folder) for folder in (one, other)]
    lines = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.lines] for run in runs]
    assert lines[0] == lines[1]
    assert runs[0].summary["counters"] == runs[1].summary["counters"]


# -- what a function may return --


@pytest.mark.parametrize("name", ["make", "three", "four", "five"])
@pytest.mark.parametrize("recipe", [None, "prune85"])
def test_every_form_trains(name, recipe, mine, tmp_path):
    run = train(settings(f"mine:{name}", recipe=recipe), tmp_path / "run")
    assert run.status == "finished"
    tested = name in ("make", "five")
    assert [line["step"] for line in run.lines if line["kind"] == "train"] == [3, 6, 9, 10]
    assert [line["step"] for line in run.tests] == ([5, 10] if tested else [])
    final = run.summary["final"]
    assert (final["kind"], final["step"]) == ("test" if tested else "train", 10)
    assert (run.metric.name, run.metric.higher_is_better) == (("accuracy", True) if tested else ("loss", False))
    assert run.summary["best"][run.metric.name] == (max if tested else min)(
        line[run.metric.name] for line in run.judged
    )
    assert (final["sparsity"] is None) == (recipe is None)
    assert run.config == Config.from_json(run.config.to_json())


def test_a_run_learns_in_whole_epochs_of_its_own_batches(mine, tmp_path):
    run = train(Config("mine:make", epochs=20, lr=0.1, threads=1), tmp_path / "run")
    assert run.summary["steps"] == 20 * 6
    assert [line["step"] for line in run.tests] == list(range(6, 121, 6)), "once an epoch"
    assert [line["epoch"] for line in run.tests] == list(range(1, 21))
    assert run.summary["final"]["accuracy"] > 0.8
    assert Config("mine:make").epochs == 1


def test_initial_weights_follow_from_the_seed(mine, tmp_path):
    runs = [train(settings(seed=seed, steps=1, lr=1e-30), tmp_path / str(i)) for i, seed in enumerate((0, 0, 1))]
    weights = [torch.load(run.path / "checkpoint.pt", weights_only=True)["model"]["0.weight"] for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    torch.manual_seed(1)
    assert torch.equal(weights[2], sys.modules["mine"].network()[0].weight), "as if one had seeded by hand"


def test_what_a_module_draws_when_it_is_imported_follows_from_the_seed_and_moves_nothing(mine, tmp_path):
    found = []
    for name in ("first", "second", "anew"):
        if name != "second":  # which finds the module imported
            torch.rand(3)
            mine("\nDRAWN = torch.rand(3)\n")
        run = train(settings(steps=1), tmp_path / name)
        found.append([sys.modules["mine"].DRAWN, torch.load(run.path / "checkpoint.pt", weights_only=True)["model"]])
    for drawn, weights in found[1:]:
        assert torch.equal(drawn, found[0][0])
        assert all(torch.equal(weights[key], found[0][1][key]) for key in weights)


def test_training_leaves_all_random_states_as_they_were(mine, tmp_path):
    before = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # noqa: NPY002
    train(settings(), tmp_path / "run")
    after = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # noqa: NPY002
    assert before == after


# -- resuming --


class Crash(Exception):
    pass


def crashed(config, folder, last):
    def crash(status):
        if status.step == last:
            raise Crash

    with pytest.raises(Crash):
        train(config, folder, progress=crash)
    torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002


BUFFER = """
class Buffer:
    '''Examples out of a buffer that is shuffled as it is filled: order and noise are drawn batch by batch.'''
    def __iter__(self):
        buffer = []
        for place in range(48):
            buffer.append(place)
            if len(buffer) == 20:
                yield self.batch(buffer)
        while len(buffer) >= 8:
            yield self.batch(buffer)
    def batch(self, buffer):
        places = [buffer.pop(random.randrange(len(buffer))) for _ in range(8)]
        return INPUTS[places] + 0.1 * torch.randn(8, 8), LABELS[places]

def buffered():
    return network(), Buffer(), cross_entropy, None, accuracy

def seeded():
    return network(), loader(generator=torch.Generator().manual_seed(3)), cross_entropy

def epochs():
    return network(), lambda epoch: (x for x in list(loader())[epoch % 3:]), cross_entropy
"""


@pytest.mark.parametrize("name", ["make", "buffered", "seeded", "epochs"])
@pytest.mark.parametrize("recipe", [None, "prune85+fp6"])
def test_a_crash_anywhere_is_resumed_to_the_same_bits(name, recipe, mine, tmp_path):
    mine(BUFFER)
    config = settings(f"mine:{name}", recipe=recipe)
    train(config, tmp_path / "whole")
    for last in range(1, 11) if recipe is None else (3, 6, 9):
        folder = tmp_path / f"crash{last}"
        crashed(config, folder, last)
        assert resume(folder).status == "finished"
        assert_same_run(tmp_path / "whole", folder)


def test_kill_9_at_a_random_moment_is_resumed_from_another_folder_to_the_same_bits(mine, tmp_path):
    """By the command, whose folder remembers where the module is."""
    mine("""
import time
def slow():
    return {**make(), "loss": lambda x, y: (time.sleep(0.01), cross_entropy(x, y))[1]}
""")
    command = [sys.executable, "-c", "from lograd.cli import main; main()", "train"]
    options = ["--steps", "40", "--log-every", "1", "--checkpoint-every", "7", "--evaluate-every", "10",
               "--recipe", "prune85", "--threads", "1"]  # fmt: skip
    process = subprocess.Popen([*command, "mine:slow", "-o", "killed", *options], stderr=subprocess.PIPE)
    wanted, deadline = random.randrange(1, 35), time.monotonic() + 240
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= wanted):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "elsewhere").mkdir()
    again = subprocess.run(
        [*command, "--resume", "-o", str(tmp_path / "killed")],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert "accuracy" in again.stdout
    run = train(Run.load(tmp_path / "killed").config, tmp_path / "whole")
    assert run.config.model == "mine:slow"
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_changed_source_is_warned_of(mine, tmp_path):
    crashed(settings(), tmp_path / "run", 5)
    mine("\n# a thought\n")
    with pytest.warns(LogradWarning, match=r"the source of mine:make was changed after the run .*run was started"):
        resume(tmp_path / "run")


def test_other_batches_than_before_are_warned_of(mine, tmp_path):
    mine("""
CALLS = []
class Once:
    def __init__(self):
        CALLS.append(0)
        self.random = np.random.default_rng(len(CALLS))  # a generator of its own: nobody can know of it
    def __iter__(self):
        for _ in range(6):
            yield torch.tensor(self.random.random((8, 8)), dtype=torch.float32), LABELS[:8]
def once():
    return network(), Once(), cross_entropy
""")
    crashed(settings("mine:once"), tmp_path / "run", 5)
    with pytest.warns(LogradWarning, match="batch 4 of epoch 0 is another one than before the run was stopped"):
        assert resume(tmp_path / "run").status == "finished"


def test_fewer_batches_than_before_are_refused(mine, tmp_path):
    crashed(settings("mine:three"), tmp_path / "run", 5)
    mine("\ndef three():\n    return network(), list(loader())[:2], cross_entropy\n")
    with (
        pytest.warns(LogradWarning, match="source"),
        pytest.raises(lograd.InvalidValue, match="had taken 4 batches of epoch 0, and mine:three now has only 2"),
    ):
        resume(tmp_path / "run")


def test_a_module_that_is_gone_is_told_with_its_place(mine, tmp_path, monkeypatch):
    crashed(settings(), tmp_path / "run", 5)
    (tmp_path / "mine.py").unlink()
    sys.modules.pop("mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(
        lograd.InvalidValue, match=rf"no module 'mine' in {tmp_path} .*The run was started in {tmp_path}"
    ):
        resume(tmp_path / "run")


def test_a_checkpoint_of_another_kind_is_refused(mine, tmp_path):
    crashed(settings("mine:three"), tmp_path / "run", 5)
    path = tmp_path / "run" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    for change in ({"work": None}, {"work": state["work"] | {"index": -1}}, {"work": state["work"] | {"python": 3}}):
        torch.save(state | change, path)
        with pytest.raises(lograd.LogradError, match=r"built-in|whole number from 0|must be those of NumPy"):
            resume(tmp_path / "run")


# -- batches --


def feed(batches, seed=0):
    return Feed(Made("mine:make", torch.nn.Identity(), batches, None), seed)


class Numbers:
    """Random numbers of three generators, from 3 batches on."""

    def __iter__(self):
        return iter([torch.rand(()).item(), np.random.rand(), random.random()])  # noqa: NPY002


def test_batches_follow_from_seed_and_epoch_whatever_is_drawn_in_between():
    def taken(seed, disturb):
        one, found = feed(Numbers(), seed), []
        for _ in range(6):
            found.append(one.take())
            if disturb:
                torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        return found

    with preserved():
        first = taken(0, False)
        assert first == taken(0, True)
        assert len(set(first + taken(1, False))) == 12, "each epoch and each seed has its own"


def test_the_model_draws_as_if_there_were_no_batches():
    with preserved():
        seed_all(3)
        expected = [(torch.rand(()).item(), np.random.rand(), random.random()) for _ in range(4)]  # noqa: NPY002
        seed_all(3)
        one, found = feed(Numbers()), []
        for _ in range(4):
            one.take()
            found.append((torch.rand(()).item(), np.random.rand(), random.random()))  # noqa: NPY002
        assert found == expected


def test_the_end_of_an_epoch_is_known_when_it_is_reached():
    one, ends = feed([1, 2, 3]), []
    assert one.length() == 3
    for _ in range(7):
        one.take()
        ends.append(one.ends_epoch())
    assert ends == [False, False, True, False, False, True, False]
    assert (one.epoch, one.index) == (2, 1)
    assert feed(lambda epoch: [epoch] * 5).length() == 5
    assert feed(lambda epoch: iter([epoch])).length() is None
    lengths = feed(lambda epoch: [epoch] * (epoch + 1))
    assert [lengths.take() for _ in range(6)] == [0, 1, 1, 2, 2, 2]


def test_samplers_are_told_the_epoch():
    class Sampled:
        def __init__(self):
            self.epochs, self.generator = [], torch.Generator()

        @property
        def sampler(self):
            return self

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

        def __iter__(self):
            return iter([self.generator.initial_seed()])

    batches = Sampled()
    first = [feed(batches).take()]
    one = feed(batches)
    both = [one.take(), one.take()]
    assert first == both[:1]
    assert both[0] != both[1]
    assert set(batches.epochs) == {0, 1}


def test_a_digest_sees_every_element():
    batch = {"x": torch.zeros(3, 2), "y": [np.arange(3), 5, "text", None], "z": (torch.zeros(2, dtype=torch.bfloat16),)}
    assert digest(batch) == digest({**batch, "x": torch.zeros(2, 3).T})
    other = {**batch, "z": (torch.tensor([0, 1e-30], dtype=torch.bfloat16),)}
    assert len({digest(batch), digest(other), digest({**batch, "y": [np.arange(3), 6, "text", None]})}) == 3


def test_random_states_survive_a_checkpoint(tmp_path):
    with preserved():
        seed_all(5)
        random.gauss(0, 1), np.random.randn()  # noqa: NPY002  both keep a second number
        torch.save(RandomState.now().to_plain(), tmp_path / "state.pt")
        expected = [random.gauss(0, 1), random.random(), *np.random.randn(3)]  # noqa: NPY002
        RandomState.from_plain(torch.load(tmp_path / "state.pt", weights_only=True)).restore()
        assert [random.gauss(0, 1), random.random(), *np.random.randn(3)] == expected  # noqa: NPY002


# -- the optimizer --


def rates(run):
    return [line["lr"] for line in run.lines if line["kind"] == "train"]


def test_an_optimizer_of_the_users_keeps_its_rates_unless_others_are_given(mine, tmp_path):
    run = train(settings("mine:four"), tmp_path / "own")
    assert rates(run) == [0.01] * 4
    assert (run.config.lr, run.config.optimizer, run.config.schedule) == (None, None, None)
    assert rates(train(settings("mine:four", lr=0.02), tmp_path / "lr")) == [0.02] * 4
    cosine = rates(train(settings("mine:four", schedule="cosine"), tmp_path / "cosine"))
    assert cosine == sorted(cosine, reverse=True)
    assert 0 < cosine[-1] < cosine[0] < 0.01
    warm = train(settings("mine:four", warmup=10, log_every=1), tmp_path / "warm")
    assert rates(warm) == pytest.approx([0.001 * step for step in range(1, 11)])


def test_groups_keep_their_proportions_under_a_schedule(mine, tmp_path):
    mine("""
def groups():
    model = network()
    parts = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[4].parameters(), "lr": 0.001}]
    return model, loader(), cross_entropy, torch.optim.SGD(parts, lr=1.0)
""")
    folder = train(settings("mine:groups", schedule="step"), tmp_path / "run").path
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["optimizer"]
    assert [group["lr"] for group in state["param_groups"]] == pytest.approx([0.001, 0.00001])


def test_without_one_there_is_a_usual_optimizer(mine, tmp_path):
    run = train(settings("mine:three"), tmp_path / "run")
    assert (run.config.optimizer, run.config.lr, run.config.schedule) == ("sgd", 0.1, "cosine")
    other = train(settings("mine:three", optimizer="adamw", lr=0.01), tmp_path / "other")
    assert (other.config.optimizer, other.config.lr, other.config.weight_decay) == ("adamw", 0.01, 0.01)


# -- the metric --


def test_an_evaluation_leaves_modes_and_random_states_alone(mine, tmp_path):
    mine("""
SEEN = []
def look(model):
    SEEN.append((model.training, model[1].training))
    return {"score": np.float64(1.5), "perplexity": torch.tensor(float(len(SEEN)))}
def frozen():
    model = network()
    model[1].eval()
    def loss(x, y):
        SEEN.append((model.training, model[1].training))
        return cross_entropy(x, y)
    return model, loader(), loss, None, look
def plain():
    return frozen()[:3]
""")
    run = train(settings("mine:frozen"), tmp_path / "run")
    seen = sys.modules["mine"].SEEN
    assert seen.count((False, False)) == 3, "before the first step, to learn the names, and two evaluations"
    assert seen.count((True, False)) == 10, "a part in evaluation mode stays in it"
    assert (run.metric.name, run.tests[0]["score"], run.tests[0]["perplexity"]) == ("score", 1.5, 7.0)
    other = train(settings("mine:plain"), tmp_path / "other")
    first, second = (torch.load(one.path / "checkpoint.pt", weights_only=True)["model"] for one in (run, other))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("text", "higher"),
    [
        ("def score(model): return 1", True),
        ("def test_loss(model): return 1", False),
        ("def score(model): return {'perplexity': 1, 'accuracy': 2}", False),
        ("def score(model): return {'accuracy': 1, 'loss': 2}", True),
        ("def score(model): return 1\nscore.higher_is_better = False", False),
        ("def error(model): return 1\nerror.higher_is_better = True", True),
        ("score = lambda model: 1", True),
    ],
)
def test_the_better_direction(text, higher, mine, tmp_path):
    name = text.split("(")[0].split()[-1] if text.startswith("def") else "score"
    mine(f"\n{text}\ndef judged():\n    return (*three(), None, {name})\n")
    run = train(settings("mine:judged", steps=1), tmp_path / "run")
    assert run.metric.higher_is_better is higher
    assert ("lower is better" in run.metric.words) is not higher


def test_a_metric_that_is_not_finite_stops_the_run(mine, tmp_path):
    mine("\ndef judged():\n    return (*three(), None, lambda model: {'a': 1, 'b': float('nan')})\n"
         "def worse():\n    return (*three(), None, lambda model: {'a': float('inf'), 'b': 1})\n")  # fmt: skip
    run = train(settings("mine:judged"), tmp_path / "run")
    assert run.summary["final"]["b"] is None
    with pytest.raises(Diverged, match="the a of the evaluation is inf after step 5 of 10"):
        train(settings("mine:worse"), tmp_path / "worse")
    assert Run.load(tmp_path / "worse").status == "diverged"


def test_a_model_in_evaluation_mode_is_trained_in_training_mode(mine, tmp_path):
    mine("\ndef loaded():\n    model = network().eval()\n    return model, loader(), cross_entropy\n")
    train(settings("mine:loaded"), tmp_path / "loaded")
    train(settings("mine:three"), tmp_path / "three")
    assert_same_run(tmp_path / "loaded", tmp_path / "three")


# -- comparing --


def test_runs_are_compared_by_the_users_metric(mine, tmp_path):
    for name, changes in {"dense": {}, "dense-1": {"seed": 1}, "pruned": {"recipe": "prune85"}}.items():
        train(settings(**changes), tmp_path / name)
    found = compare([tmp_path / name for name in ("dense", "pruned", "dense-1")])
    (family,) = found.families
    assert [group.name for group in family.groups] == ["dense (2 runs)", "pruned"]
    assert "mine:make" in str(found.table())
    assert "%" not in str(found.table()).split("accuracy")[1].split("–")[0], "only the user knows whether it is a share"
    assert found.notes == []
    text = found.page().html()
    assert "Final and best accuracy." in text
    assert json.loads(json.dumps(found.to_json()))["families"][0]["metric"] == "accuracy"


def test_runs_without_a_metric_are_compared_by_their_training_loss(mine, tmp_path):
    for seed in range(2):
        train(settings("mine:three", seed=seed), tmp_path / str(seed))
    train(settings("mine:three", recipe="fp4"), tmp_path / "fp4")
    found = compare([tmp_path / "0", tmp_path / "fp4"])
    (family,) = found.families
    assert family.metric.words == "training loss"
    lines = [Run.load(tmp_path / name).lines[-1]["loss"] for name in ("0", "fp4")]
    assert family.difference(family.groups[1]) == lines[1] - lines[0]
    assert "Test" not in found.page().html().split("</style>")[-1]


def test_a_source_that_was_changed_and_seeds_that_repeat_are_noted(mine, tmp_path):
    train(settings(), tmp_path / "a")
    train(settings(), tmp_path / "b")
    mine("\n# other\n")
    train(settings(), tmp_path / "c")
    found = compare([tmp_path / name for name in "abc"])
    (family,) = found.families
    assert [len(group.runs) for group in family.groups] == [2, 1]
    assert found.notes == [
        "a (2 runs): several of its runs have the same seed, so ± does not show how far seeds differ.",
        "mine:make: its source was changed between these runs.",
    ]
    assert "hash of the source" in dict(family.differing())


# -- what cannot be trained --

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


@pytest.mark.parametrize("name", ["data", "batch", "width", "augment"])
def test_settings_of_built_in_models_are_refused(name):
    with pytest.raises(lograd.InvalidValue, match=f"{name} belongs to the built-in models; mine:make brings its own"):
        Config("mine:make", **{name: "x" if name == "data" else 1})


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
