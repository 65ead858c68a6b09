"""Files to train on, configs of a few milliseconds a step, and a module of a user's in the current folder."""

import sys

import pytest
import training_files as files
from own_models import MINE

from experiments.lab import Config


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "images": files.images(folder / "images.npz"),
        "text": files.text(folder / "text.txt"),
        "sentences": files.sentences(folder / "sentences"),
    }


@pytest.fixture
def tiny(data):
    """A config of a few milliseconds a step."""
    usual = {"batch": 8, "width": 2, "steps": 12, "log_every": 5, "checkpoint_every": 4, "threads": 1}
    return lambda **changes: Config("resnet8", data["images"], **(usual | changes))


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
