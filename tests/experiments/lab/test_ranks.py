"""`lograd train` under torchrun: ranks that share a batch train as one process does, and rank 0 alone writes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import ranked
import torch
import training_files as files
from training_runs import assert_same_run, weights

from experiments.lab import Config, Run, resume, train

pytestmark = pytest.mark.slow  # processes that wait for each other

COMMON = {"steps": 6, "log_every": 2, "checkpoint_every": 4, "evaluate_every": 3, "threads": 1}

MINE = """
def network(*inside):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inside, nn.Linear(16, 3))


def dense():
    return network(), DataLoader(DATA, batch_size=16, shuffle=True), cross_entropy, None, accuracy


def noisy():
    return network(nn.BatchNorm1d(16), nn.Dropout(0.3)), *dense()[1:]


def own_share():
    sampler = DistributedSampler(DATA)
    return network(), DataLoader(DATA, batch_size=11, sampler=sampler), cross_entropy, None, accuracy


def different():
    inputs = INPUTS + float(os.environ.get("RANK", 0))
    return network(), [(inputs, DATA.tensors[1])], cross_entropy


def fails_on_one():
    def loss(output, target):
        if os.environ.get("RANK") == "1" and loss.calls == 3:
            raise ValueError("out of luck")
        loss.calls += 1
        return cross_entropy(output, target)

    loss.calls = 0
    return network(), dense()[1], loss


def explodes_on_one():
    def loss(output, target):
        loss.calls += 1
        factor = float("inf") if os.environ.get("RANK") == "1" and loss.calls == 3 else 1.0
        return factor * cross_entropy(output, target)

    loss.calls = 0
    return network(), dense()[1], loss


def dies():
    def loss(output, target):
        if os.environ.get("RANK") == "1" and loss.calls == 5 and os.path.exists("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.calls += 1
        return cross_entropy(output, target)

    loss.calls = 0
    return network(nn.Dropout(0.3)), dense()[1], loss, None, accuracy
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The current folder, with a module of a user's and data."""
    with ranked.folder_with(tmp_path_factory.mktemp("ranks"), "shared", MINE) as folder:
        files.images(folder / "images.npz")
        yield folder


def run_on(size, place, name, **settings):
    """Train on so many ranks, into the folder of that name."""
    return ranked.trained(size, place / name, COMMON | settings)


def close(one, other):
    first, second = weights(one), weights(other)
    return all(torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-6) for name in first)


def losses(run):
    return [line["loss"] for line in run.lines if line["kind"] == "train"]


@pytest.mark.parametrize(("size", "settings"), [
    (2, {"model": "shared:dense", "lr": 0.1, "steps": 7}),  # its last batches of an epoch are divided unevenly
    (4, {"model": "charlm", "data": "text.txt", "batch": 4, "width": 8, "steps": 3}),
], ids=["own, 2", "charlm, 4"])  # fmt: skip
def test_ranks_learn_what_one_process_learns(size, settings, place):
    alone = train(Config(**(COMMON | settings)), place / f"alone{size}")
    run = run_on(size, place, f"ranks{size}", **settings)
    assert close(alone.path, run.path)
    assert losses(run) == pytest.approx(losses(alone), rel=1e-5)
    assert [line[run.metric.name] for line in run.tests] == pytest.approx(
        [line[alone.metric.name] for line in alone.tests], rel=1e-4
    )
    assert run.config.ranks == size
    assert "ranks" not in alone.record["settings"]
    assert len(run.lines) == len(alone.lines), "each line is written once"


def train_and_tell(settings, folder):
    """Train, and save what each rank has at the end: weights, learned clips, keys of random numbers, thresholds."""
    from experiments.lab import loop

    sessions = []
    build = loop._session

    def keep(*arguments):
        sessions.append(build(*arguments))
        return sessions[-1]

    loop._session = keep
    train(Config(**settings), folder)
    session, rank = sessions[0], os.environ["RANK"]
    sites = [site for layer in session.handle.layers.values() for site in layer.sites.values()]
    found = {
        "weights": dict(session.model.named_parameters()),
        "learned": {name: one.detach() for name, one in session.handle.named_parameters()},
        "keys": [int(site.key[0]) for site in sites],
        "numbers": [site.numbers.tolist() for site in sites],
    }
    torch.save(found, f"{folder}/rank{rank}.pt")


def told(place, name, **settings):
    """Train on two ranks, and return what each of them had at the end."""
    says, settings = place / f"{name}-says", COMMON | {"model": "resnet8", "data": "images.npz"} | settings
    settings |= {"batch": 8, "width": 2}
    codes = ranked.ended(ranked.started(2, says, train_and_tell, settings, str(place / name)))
    assert codes == [0, 0], ranked.printed(says, 0)
    return [torch.load(place / name / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def test_ranks_keep_the_same_weights_and_draw_their_own_noise(place):
    """With weights in low precision, whose rounding must be alike, learned clips, and a loss scale."""
    first, second = told(place, "same", recipe="int4wa-clips+fp6", weights="int8")
    for part in ("weights", "learned"):
        assert first[part]
        assert all(torch.equal(one, second[part][name]) for name, one in first[part].items()), part
    assert all(one != other for one, other in zip(first["keys"], second["keys"], strict=True))


def test_thresholds_are_each_rank_s_own_or_of_all_ranks_together(place):
    own, common = told(place, "own", recipe="prune85"), told(place, "common", recipe="prune85", common_statistics=True)
    assert any(any(numbers) for numbers in common[0]["numbers"])
    assert common[0]["numbers"] == common[1]["numbers"]
    assert own[0]["numbers"] != own[1]["numbers"]
    assert Run.load(place / "common").config.common_statistics


@pytest.mark.parametrize("recipe", [None, "prune85+fp6"])
def test_a_killed_rank_ends_the_other_and_the_run_is_resumed_to_the_same_bits(recipe, place):
    """Statistics, dropout and batches are each rank's own; all of them are in the checkpoint."""
    name = f"dies-{recipe}"
    settings = {"model": "shared:dies", "recipe": recipe, "steps": 9}
    run_on(2, place, f"{name}-whole", **settings)
    (place / "kill").touch()
    arguments = ["shared:dies", "--steps", 9, "--log-every", 2, "--checkpoint-every", 4, "--evaluate-every", 3]
    arguments += ["--threads", 1, "-o", place / name, *(["--recipe", recipe] if recipe else [])]
    codes = ranked.ended(ranked.started(2, place / "says", ranked.command, "train", *arguments))
    (place / "kill").unlink()
    assert codes == [1, -signal.SIGKILL]
    said = ranked.printed(place / "says", 0)
    assert "lograd: rank 0 of 2 has lost another rank, which was killed" in said
    assert "Traceback" not in said
    assert Run.load(place / name).status == "unfinished"
    assert sorted(path.name for path in (place / name).iterdir() if path.name != "plan.json") == [
        "checkpoint.pt", "config.json", "metrics.jsonl",
    ]  # fmt: skip
    assert ranked.ended(ranked.started(2, place / "says", ranked.resume_in, str(place / name))) == [0, 0]
    assert_same_run(place / f"{name}-whole", place / name)


def test_another_number_of_ranks_is_refused(place):
    run_on(2, place, "two", model="shared:dense")
    (place / "two" / "summary.json").unlink()
    before = {path.name: path.read_bytes() for path in (place / "two").iterdir()}
    sentence = "the run has 2 ranks and was now started with"
    with pytest.raises(ValueError, match=f"{sentence} 1; start it by torchrun --nproc-per-node 2, or a new run"):
        resume(place / "two")
    codes = ranked.ended(ranked.started(3, place / "says", ranked.command, "train", "--resume", "-o", place / "two"))
    assert codes == [2, 2, 2]
    assert f"lograd: {sentence} 3;" in ranked.printed(place / "says", 0)
    assert ranked.printed(place / "says", 1) == ranked.printed(place / "says", 2) == ""
    assert {path.name: path.read_bytes() for path in (place / "two").iterdir()} == before


def test_the_command_speaks_once_and_a_finished_run_stays(place):
    arguments = ["shared:noisy", "--steps", 4, "--threads", 1, "-o", place / "spoken", "--recipe", "prune85"]
    assert ranked.ended(ranked.started(2, place / "says", ranked.command, "train", *arguments)) == [0, 0]
    said = ranked.printed(place / "says", 0)
    assert said.count("The run:") == 1
    assert said.count("pruned gradients take dense products") == 1
    assert ranked.printed(place / "says", 1) == ""
    run = Run.load(place / "spoken")
    assert run.status == "finished"
    assert run.config.ranks == 2
    again = ["train", "--resume", "--json", "-o", place / "spoken"]
    assert ranked.ended(ranked.started(2, place / "says", ranked.command, *again)) == [0, 0]
    assert json.loads((place / "says" / "out0").read_text())["summary"] == run.summary
    assert ranked.printed(place / "says", 1) == ""


REFUSED = {
    "batch": (["--model", "resnet8", "--data", "images.npz", "--batch", 9], "must be a multiple of 2, their number"),
    "fast": (["shared:dense", "--fast"], "fast is for a run of one process, and this one has 2"),
    "guard": (["shared:dense", "--recipe", "fp6", "--guard"], "guard is for a run of one process"),
    "recipe": (["shared:dense", "--recipe", "fp66"], "fp66"),
    "common": (["shared:dense", "--common-statistics"], "give a plan or a recipe as well"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_do_is_said_once_and_leaves_nothing(name, place):
    arguments, sentence = REFUSED[name]
    codes = ranked.ended(ranked.started(2, place / "says", ranked.command, "train", *arguments, "-o", place / "no"))
    assert codes == [2, 2]
    said = ranked.printed(place / "says", 0)
    assert sentence in said
    assert said.count("lograd:") == said.count("\n") == 1
    assert ranked.printed(place / "says", 1) == ""
    assert not (place / "no").exists()


def test_an_error_on_one_rank_ends_all_with_its_sentence(place):
    arguments = ["train", "shared:fails_on_one", "--steps", 6, "--threads", 1, "-o", place / "unlucky"]
    codes = ranked.ended(ranked.started(2, place / "says", ranked.command, *arguments))
    assert codes == [1, 2]
    assert "a step of shared:fails_on_one raised ValueError: out of luck" in ranked.printed(place / "says", 1)
    assert "rank 0 of 2 has lost another rank" in ranked.printed(place / "says", 0)
    assert not (place / "unlucky" / "summary.json").exists()


def test_a_loss_that_is_infinite_on_one_rank_ends_all_as_diverged(place):
    arguments = ["train", "shared:explodes_on_one", "--steps", 6, "--threads", 1, "-o", place / "diverged"]
    assert ranked.ended(ranked.started(2, place / "says", ranked.command, *arguments)) == [1, 1]
    assert "the loss is inf at step 3 of 6" in ranked.printed(place / "says", 0)
    assert ranked.printed(place / "says", 1) == ""
    run = Run.load(place / "diverged")
    assert run.status == "diverged"
    assert run.summary["steps"] == 2


def test_batches_that_differ_between_ranks_are_refused_and_those_of_a_sampler_taken_whole(place):
    arguments = ["train", "shared:different", "--steps", 2, "--threads", 1, "-o", place / "different"]
    assert ranked.ended(ranked.started(2, place / "says", ranked.command, *arguments)) == [2, 2]
    assert "the batches of shared:different differ between ranks" in ranked.printed(place / "says", 0)
    run = run_on(2, place, "sampler", model="shared:own_share")
    assert run.record["steps_per_epoch"] == 2


def test_a_signal_to_one_rank_stops_all_after_a_checkpoint(place):
    processes = ranked.started(
        2, place / "says", ranked.command, "train", "shared:dense", "--steps", 100000, "--threads", 1,
        "--log-every", 1, "-o", place / "stopped",
    )  # fmt: skip
    metrics, deadline = place / "stopped" / "metrics.jsonl", time.monotonic() + ranked.PATIENCE
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(processes[1].pid, signal.SIGTERM)
    assert ranked.ended(processes) == [128 + signal.SIGTERM] * 2
    said = ranked.printed(place / "says", 0)
    assert "go on with: torchrun --nproc-per-node 2 -m lograd train --resume" in said
    assert ranked.printed(place / "says", 1) == ""
    assert (
        torch.load(place / "stopped" / "checkpoint.pt", weights_only=True)["steps"] == Run.load(place / "stopped").steps
    )


def test_torchrun_itself_and_one_process_that_is_as_without_it(place):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    arguments = ["train", "shared:dense", "--steps", "3", "--threads", "1", "-o"]
    done = subprocess.run(
        [*start, "lograd", *arguments, "by-two"], capture_output=True, text=True, check=False, timeout=ranked.PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The run:") == 1
    assert ranked.ended(ranked.started(1, place / "says", ranked.command, *arguments, "by-one")) == [0]
    two, one = Run.load(place / "by-two"), Run.load(place / "by-one")
    assert two.config.ranks == 2
    assert one.config.ranks is None
    assert "ranks" not in torch.load(one.path / "checkpoint.pt", weights_only=True)
    assert close(two.path, one.path)
