"""Runs side by side: groups of seeds, families of model and data, the table, the page."""

import json
import statistics

import pytest
import training_files as files

import lograd
from experiments.lab import Config, Run, compare, train
from experiments.lab.summary import seconds_per_step


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Dense with two seeds, pruned, on other images, on a text, and one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    images, others = files.images(folder / "images.npz"), files.images(folder / "others.npz", train=65)
    usual = {"batch": 8, "steps": 6, "log_every": 2, "evaluate_every": 3, "threads": 1}
    small = {**usual, "width": 2}
    made = {
        "dense": Config("resnet8", images, **small),
        "dense-1": Config("resnet8", images, seed=1, checkpoint_every=2, **small),
        "pruned": Config("resnet8", images, recipe="prune85", **small),
        "longer": Config("resnet8", images, **{**small, "steps": 8}),
        "others": Config("resnet8", others, **small),
        "text": Config("charlm", files.text(folder / "text.txt"), **{**usual, "width": 8}),
    }
    for name, config in made.items():
        train(config, folder / name)

    def stop(status):
        if status.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Config("resnet8", images, recipe="fp6", **small), folder / "stopped", progress=stop)
    return folder


def test_seeds_become_mean_and_spread(runs):
    (family,) = compare([runs / "dense", runs / "pruned", runs / "dense-1"]).families
    dense, pruned = family.groups
    finals = [Run.load(runs / name).summary["final"]["accuracy"] for name in ("dense", "dense-1")]
    assert (dense.name, dense.seeds) == ("dense (2 runs)", "0, 1")
    assert dense.final.mean == statistics.fmean(finals)
    assert dense.final.deviation == statistics.stdev(finals)
    assert pruned.final.deviation is None
    assert family.difference(dense) is None
    assert family.difference(pruned) == pruned.final.mean - dense.final.mean
    assert family.ratio(dense) == 1
    assert (dense.sparsity, dense.bits.mean, pruned.bits.mean) == (None, 32, 32)
    assert 0.5 < pruned.sparsity.mean < 1


def test_best_is_the_largest_accuracy_and_the_fewest_bits(runs):
    for name, choose in (("dense", max), ("text", min)):
        run = Run.load(runs / name)
        (family,) = compare([runs / name]).families
        assert family.groups[0].best.mean == choose(line[family.metric.name] for line in run.tests)


def test_only_one_model_on_the_same_data_is_compared(runs):
    found = compare([runs / "dense", runs / "text", runs / "others", runs / "pruned"])
    assert [[group.name for group in family.groups] for family in found.families] == [
        ["dense", "pruned"], ["text"], ["others"],
    ]  # fmt: skip
    (note,) = found.notes
    assert "3 different models or data (resnet8 on images.npz; charlm on text.txt; resnet8 on others.npz)" in note
    assert "across them nothing is compared" in note
    assert note.split()[0] in str(found.table())


def test_notes_tell_of_runs_that_ended_early_and_of_other_lengths(runs):
    found = compare([runs / "dense", runs / "stopped", runs / "longer"])
    assert found.notes == [
        "stopped: unfinished at step 4; its last evaluation stands for the final one.",
        "resnet8 on images.npz: runs of different length, 6, 8 steps.",
    ]
    settings = dict(found.families[0].differing())
    assert settings["steps"] == ["6", "6", "8"]
    assert settings["recipe"] == ["–", "fp6", "–"]
    assert "width" not in settings
    assert "seed" not in settings


def test_a_run_without_an_evaluation_is_shown_with_dashes(runs, tmp_path):
    def stop(status):
        raise KeyboardInterrupt

    config = Run.load(runs / "dense").config
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "early", progress=stop)
    found = compare([runs / "pruned", tmp_path / "early"])
    assert found.families[0].groups[1].final is None
    assert "early: unfinished at step 0" in found.notes[0]
    (family,) = compare([runs / "dense", tmp_path / "early", runs / "dense-1"]).families
    assert [group.name for group in family.groups] == ["dense (2 runs)", "early"]  # no mean of a whole and a part
    assert "–" in str(found.table())
    found.page().save(tmp_path / "page.html")


def test_the_page_has_table_curves_and_settings(runs):
    page = compare([runs / "dense", runs / "dense-1", runs / "pruned", runs / "text"]).page("by a test").html()
    assert page.count('<div class="wide"><svg') == 8  # loss and metric over steps and seconds, twice
    for words in ("Training loss over steps", "Test accuracy over time", "Test bits per character over steps",
                  "Settings that differ", "prune85", "by a test", "across them nothing is compared", "±"):  # fmt: skip
        assert words in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_json_is_whole(runs):
    data = json.loads(json.dumps(compare([runs / "dense", runs / "dense-1", runs / "text"]).to_json(), allow_nan=False))
    first, second = data["families"]
    assert (first["model"], first["metric"], second["metric"]) == ("resnet8", "accuracy", "bits_per_character")
    (group,) = first["groups"]
    assert (group["seeds"], group["status"], group["difference"]) == ([0, 1], ["finished"] * 2, None)
    assert group["final"].keys() == {"mean", "deviation"}


@pytest.mark.parametrize(
    ("paths", "words"),
    [([], "at least one run"), (["dense", "dense"], "given twice"), (["."], "it has no config.json")],
)
def test_wrong_folders_are_refused(paths, words, runs):
    with pytest.raises(lograd.LogradError, match=words):
        compare([runs / path for path in paths])


def test_names_are_paths_where_folders_are_called_alike(runs, tmp_path):
    (tmp_path / "dense").symlink_to(runs / "pruned")
    names = [group.name for group in compare([runs / "dense", tmp_path / "dense"]).families[0].groups]
    assert names == [str(runs / "dense"), str(tmp_path / "dense")]


def test_the_time_of_a_step_is_a_median_over_intervals():
    def line(step, seconds, kind="train"):
        return {"kind": kind, "step": step, "seconds": seconds}

    assert seconds_per_step([]) is None
    assert seconds_per_step([line(2, 4.0)]) == 2.0
    assert seconds_per_step([line(2, 90.0), line(4, 92.0), line(6, 94.0), line(6, 94.0, "test"), line(8, 200.0)]) == 1.0
