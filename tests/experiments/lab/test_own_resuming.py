"""A run of a user's model that ends in any way is resumed to the same bits, or told why not."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from everyday import daily
from training_runs import assert_same_run, crashed, settings

import lograd
from experiments.lab import Run, resume, train
from lograd.errors import LogradWarning

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


@pytest.mark.parametrize(
    ("name", "recipe"),
    daily(
        [(name, recipe) for recipe in (None, "prune85+fp6") for name in ("make", "buffered", "seeded", "epochs")],
        [("seeded", "prune85+fp6")],
    ),
)
def test_a_crash_anywhere_is_resumed_to_the_same_bits(name, recipe, mine, tmp_path):
    mine(BUFFER)
    config = settings(f"mine:{name}", recipe=recipe)
    train(config, tmp_path / "whole")
    for last in range(1, 11) if recipe is None else (3, 6, 9):
        folder = tmp_path / f"crash{last}"
        crashed(config, folder, last)
        assert resume(folder).status == "finished"
        assert_same_run(tmp_path / "whole", folder)


@pytest.mark.slow  # a process that is killed
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
