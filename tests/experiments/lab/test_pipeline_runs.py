"""`lograd train --pipeline`: stages on several ranks train as one process does, and rank 0 alone writes."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import ranked
import torch
import torch.distributed as dist
import training_files as files
from training_runs import assert_same_run, weights

from experiments.lab import Config, Run, resume, train
from experiments.models import CharTransformer

pytestmark = pytest.mark.slow  # processes that wait for each other

COMMON = {"steps": 6, "log_every": 2, "checkpoint_every": 4, "evaluate_every": 3, "threads": 1}
TEXT = {"model": "charlm", "data": "text.txt", "batch": 4, "width": 8}
SHORT = 8.0
"""Seconds: the time-out of a process group."""

MINE = """
def network(*inside):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inside, nn.Linear(16, 16), nn.ReLU(True), nn.Linear(16, 3))


def alike():
    return DataLoader(DATA, batch_size=16, shuffle=True, drop_last=True)


def dense():
    return network(), alike(), cross_entropy, None, accuracy


def uneven():
    return network(), DataLoader(DATA, batch_size=16), cross_entropy, None, accuracy


def different():
    inputs = INPUTS + float(os.environ.get("RANK", 0))
    return network(), [(inputs, DATA.tensors[1])], cross_entropy


def apart():
    sampler = DistributedSampler(DATA)
    return network(), DataLoader(DATA, batch_size=8, sampler=sampler, drop_last=True), cross_entropy


def explodes():
    def loss(output, target):
        loss.calls += 1
        return (float("inf") if loss.calls == 4 * 2 + 3 else 1.0) * cross_entropy(output, target)

    loss.calls = 0
    return network(), alike(), loss


def fails():
    def loss(output, target):
        raise ValueError("out of luck")

    return network(), alike(), loss


def falls():
    def loss(output, target):
        loss.calls += 1
        if loss.calls == 4 * 5 and os.path.exists("stop"):  # the last microbatch of step 5
            os.kill(os.getpid(), getattr(signal, open("stop").read()))
        return cross_entropy(output, target)

    loss.calls = 0
    inside = nn.BatchNorm1d(16), nn.Dropout(0.3)
    return network(*inside), alike(), loss, None, accuracy
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The current folder, with a module of a user's and data."""
    with ranked.folder_with(tmp_path_factory.mktemp("stages"), "staged", MINE) as folder:
        files.sentences(folder / "sentences")
        yield folder


def run_on(size, place, name, **settings):
    """Train on so many stages, into the folder of that name."""
    return ranked.trained(size, place / name, COMMON | {"pipeline": "1f1b"} | settings)


def command(size, place, *arguments):
    """Run `lograd train` on so many ranks; return exit codes, and what each has said."""
    codes = ranked.ended(ranked.started(size, place / "says", ranked.command, "train", *arguments))
    return codes, [ranked.printed(place / "says", rank) for rank in range(size)]


@pytest.mark.parametrize(("size", "settings"), [
    (2, {"model": "staged:dense", "lr": 0.1, "pipeline": "gpipe"}),
    (4, TEXT | {"steps": 3, "pipeline": "1f1b", "optimizer": "sgd"}),  # Adam would enlarge what is only rounding
], ids=["own, 2, gpipe", "charlm, 4, 1f1b"])  # fmt: skip
def test_stages_with_plain_edges_learn_what_one_process_learns(size, settings, place):
    alone = train(Config(**(COMMON | settings | {"pipeline": None})), place / f"alone{size}")
    run = run_on(size, place, f"stages{size}", **settings, edges="none")
    one, other = weights(alone.path), weights(run.path)
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-6) for name in one)
    for kind, name in (("train", "loss"), ("test", run.metric.name)):
        found, expected = ([line[name] for line in each.lines if line["kind"] == kind] for each in (run, alone))
        assert found == pytest.approx(expected, rel=1e-4)
    assert len(run.lines) == len(alone.lines), "each line is written once"
    assert run.summary["edges"] == {}
    assert (run.config.ranks, run.config.microbatches, run.config.activations) == (size, 4, "none")


def test_a_checkpoint_is_one_of_the_whole_model(place):
    run = run_on(2, place, "whole", **TEXT, activations="int8-nearest", steps=8)
    saved = torch.load(run.path / "checkpoint.pt", weights_only=True)
    model = CharTransformer(len(set((place / "text.txt").read_text())), 8)
    model.load_state_dict(saved["model"])
    moments = saved["optimizer"]["state"]
    assert list(moments) == list(range(len(list(model.parameters()))))
    assert all(torch.any(moments[index]["exp_avg"] != 0) for index in moments)
    alone = Config(**(COMMON | TEXT))
    from experiments.lab.work import BuiltIn, load_data

    judged = BuiltIn(alone, load_data(alone)).evaluate(model)
    assert run.tests[-1]["loss"] == judged["loss"]
    edges = run.summary["edges"]
    assert edges["1->0"]["ratio"] > edges["0->1"]["ratio"] > 2
    assert run.lines[-2]["edge_bytes"] == sum(edge["bytes"] for edge in edges.values())
    assert all(edge["seconds"] > 0 for edge in edges.values())


FALLS = {"model": "staged:falls", "steps": 9, "edges": "prune90", "activations": "int8-nearest"}


@pytest.mark.parametrize("recipe", [None, "prune85+fp6-dynamic"])
def test_a_killed_rank_ends_the_other_and_the_run_is_resumed_to_the_same_bits(recipe, place):
    """Edges, statistics, BatchNorm and dropout are each stage's own, and the loss scale is that of all."""
    settings = FALLS | {"recipe": recipe}
    run_on(2, place, f"kill-{recipe}-whole", **settings)
    target = place / f"kill-{recipe}"
    (place / "stop").write_text("SIGKILL")
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in (COMMON | settings).items() if value]
    arguments.remove("--model=staged:falls")
    codes, said = command(2, place, "staged:falls", *arguments, "--pipeline", "1f1b", "-o", target)
    (place / "stop").unlink()
    assert codes == [1, -signal.SIGKILL]
    assert "lograd: rank 0 of 2 has lost another rank, which was killed" in said[0]
    assert "; stage 0 was waiting for gradient 1->0 of microbatch" in said[0]
    assert "Traceback" not in said[0]
    assert sorted(path.name for path in target.iterdir() if path.name != "plan.json") == [
        "checkpoint.pt", "config.json", "metrics.jsonl",
    ]  # fmt: skip
    assert ranked.ended(ranked.started(2, place / "says", ranked.resume_in, str(target))) == [0, 0]
    assert_same_run(place / f"kill-{recipe}-whole", target)
    whole, resumed = (
        {name: {key: edge[key] for key in ("bytes", "ratio")} for name, edge in Run.load(path).summary["edges"].items()}
        for path in (place / f"kill-{recipe}-whole", target)
    )
    assert whole == resumed
    if recipe:
        summary = Run.load(target).summary
        assert len(summary["counters"]["sparsity"]) == 3
        assert all(share > 0.5 for share in summary["counters"]["sparsity"].values()), "layers of all stages count"
        assert 0 < summary["skipped_steps"] < 9, "a gradient out of range in one stage is left out in all"


def _stalls(settings, folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=SHORT))
    sys.argv = ["lograd", "train", "staged:falls", "--pipeline", "1f1b", *settings, "-o", folder]
    from lograd.cli import main

    try:
        main()
    finally:
        if os.environ["RANK"] == "0":
            os.kill(int(Path("stopped").read_text()), signal.SIGCONT)


def test_a_stalled_rank_ends_the_other_within_the_time_out(place):
    (place / "stop").write_text("SIGSTOP")
    settings = ["--steps", "9", "--checkpoint-every", "4", "--threads", "1"]
    processes = ranked.started(2, place / "says", _stalls, settings, str(place / "stalled"))
    (place / "stopped").write_text(str(processes[1].pid))
    codes = ranked.ended(processes)
    (place / "stop").unlink()
    assert codes == [1, 1]
    for rank in range(2):
        said = ranked.printed(place / "says", rank)
        assert f"rank {rank} of 2 has lost another rank" in said
        assert "Traceback" not in said
    assert torch.load(place / "stalled" / "checkpoint.pt", weights_only=True)["steps"] == 4
    assert Run.load(place / "stalled").status == "unfinished"


def test_another_number_of_ranks_is_refused(place):
    run_on(2, place, "two", model="staged:dense")
    (place / "two" / "summary.json").unlink()
    before = {path.name: path.read_bytes() for path in (place / "two").iterdir()}
    codes, said = command(3, place, "--resume", "-o", place / "two")
    assert codes == [2, 2, 2]
    assert "the run has 2 ranks and was now started with 3" in said[0]
    with pytest.raises(ValueError, match="the run has 2 ranks and was now started with 1"):
        resume(place / "two")
    assert {path.name: path.read_bytes() for path in (place / "two").iterdir()} == before


REFUSED = {
    "model": (
        ["--model", "bert-mini", "--data", "sentences", "--batch", 8, "--width", 8],
        "SentenceClassifier cannot be cut into stages",
    ),
    "forward": (["staged:dense", "--recipe", "int8-full"], "a pipeline takes plans that treat gradients alone"),
    "microbatches": (["staged:dense", "--microbatches", 3], "which are not 3 microbatches of one size"),
    "sampler": (["staged:apart"], "the batches of staged:apart have a DistributedSampler"),
    "few": (["staged:dense", "--microbatches", 1], "microbatches must be at least 2, the number of stages, for 1f1b"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_pipeline_cannot_do_is_said_once_and_leaves_nothing(name, place):
    arguments, sentence = REFUSED[name]
    codes, said = command(2, place, *arguments, "--pipeline", "1f1b", "-o", place / "no")
    assert codes == [2, 2]
    assert sentence in said[0]
    assert said[0].count("lograd:") == said[0].count("\n") == 1
    assert said[1] == ""
    assert not (place / "no").exists()


def test_a_loss_that_is_infinite_in_one_microbatch_ends_all_as_diverged(place):
    codes, said = command(2, place, "staged:explodes", "--epochs", 3, "--pipeline", "1f1b", "-o", place / "diverged")
    assert codes == [1, 1]
    assert "the loss is inf at step 3 of 6" in said[0]
    assert said[1] == ""
    run = Run.load(place / "diverged")
    assert (run.status, run.summary["steps"]) == ("diverged", 2)


def test_errors_in_a_step_end_all_ranks_with_a_sentence(place):
    codes, said = command(2, place, "staged:fails", "--pipeline", "gpipe", "-o", place / "unlucky")
    assert codes == [1, 2]
    assert "a step of staged:fails raised ValueError: out of luck" in said[1]
    assert "rank 0 of 2 has lost another rank" in said[0]
    for target, sentence in (
        ("uneven", "a pipeline needs batches that are all alike"),
        ("different", "differ between ranks, and each rank takes its part of the same batch"),
    ):
        codes, said = command(2, place, f"staged:{target}", "--pipeline", "gpipe", "-o", place / target)
        assert codes == [2, 2]
        assert sentence in said[0]
        assert not (place / target / "summary.json").exists()
