"""Training a model of the user's: what its function may return, its optimizer, its metric."""

import json
import random
import sys

import numpy as np
import pytest
import torch
from training_runs import assert_same_run, settings

from experiments.lab import Config, Diverged, Run, compare, train

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
