"""What a run tells of itself: steps that the loss scale skipped, classes that nobody can learn, seeds that repeat."""

import io

import numpy as np
import pytest
import torch
import training_files as files

from lograd.commands.train import _result
from lograd.errors import LogradWarning
from lograd.training import Config, compare, load_data, resume, train
from lograd.training import session as sessions

TINY = {"batch": 8, "width": 2, "steps": 6, "log_every": 2, "checkpoint_every": 2, "threads": 1}


def test_skipped_steps_are_counted_and_survive_a_resume(tmp_path, monkeypatch):
    """A loss scale that is far too high is halved until the gradients are in range; each time a step is skipped."""
    monkeypatch.setattr(sessions, "INITIAL_LOSS_SCALE", 2.0**127)
    data = files.images(tmp_path / "images.npz")
    run = train(Config("resnet8", data, recipe="fp8-dynamic", **TINY), tmp_path / "run")
    counts = [line["skipped"] for line in run.lines if line["kind"] == "train"]
    assert 0 < run.summary["skipped_steps"] == counts[-1] <= 6
    assert counts == sorted(counts)
    scale = torch.load(run.path / "checkpoint.pt", weights_only=True)["scaler"]["scale"]
    assert scale == 2.0 ** (127 - counts[-1]), "each skipped step halves the scale"
    assert f"{counts[-1]} steps skipped by the loss scale" in _result(run)

    def stop(status):
        if status.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run.config, tmp_path / "again", progress=stop)
    again = resume(tmp_path / "again")
    assert again.summary["skipped_steps"] == run.summary["skipped_steps"]
    dense = train(Config("resnet8", data, **TINY), tmp_path / "dense")
    assert dense.summary["skipped_steps"] == 0
    assert "skipped" not in dense.lines[0]
    assert "skipped" not in _result(dense)


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path):
    def stop(status):
        if status.step == 5:
            raise KeyboardInterrupt

    config = Config("resnet8", files.images(tmp_path / "images.npz"), **TINY)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", progress=stop)
    path = tmp_path / "run" / "checkpoint.pt"
    state = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    torch.save({name: value for name, value in state.items() if name not in ("work", "skipped")}, path)
    assert resume(tmp_path / "run").status == "finished"


@pytest.mark.parametrize(
    ("labels", "words"), [([0, 1, 5], r"class 5, so 33\.3% of"), ([7, 8], r"class 7, 8, so 100\.0% of")]
)
def test_classes_that_only_the_test_part_has_are_warned_of(labels, words, tmp_path):
    images = np.zeros((len(labels), 8, 8, 3), dtype=np.uint8)
    path = files.images(tmp_path / "x.npz", test_images=images, test_labels=np.array(labels))
    with pytest.warns(LogradWarning, match=rf"the training part has no example of {words} the test part"):
        load_data(Config("resnet8", path, batch=8))


def test_runs_of_one_seed_are_noted(tmp_path):
    config = Config("resnet8", files.images(tmp_path / "images.npz"), **TINY)
    for name in ("a", "b"):
        train(config, tmp_path / name)
    (note,) = compare([tmp_path / "a", tmp_path / "b"]).notes
    assert note == "a (2 runs): several of its runs have the same seed, so ± does not show how far seeds differ."
    assert compare([tmp_path / "a"]).notes == []
