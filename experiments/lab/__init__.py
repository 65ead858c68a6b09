"""Train a built-in model or your own, with a plan or dense, and compare the runs: `lograd train` and `lograd compare`.

    from experiments.lab import Config, compare, resume, train

    run = train(Config("resnet8", "cifar100.npz", recipe="prune85", steps=1000), "runs/prune85")
    run = train(Config("mypkg.train:make", plan="plan.json"), "runs/mine")    # `Made` says what make() returns
    print(compare(["runs/dense", "runs/prune85"]).table())

A run is a folder (`folder`), a config is a value (`config`), work is a model with its batches and its loss (`work`,
`own`, and `memory` for a model at hand), batches are functions of (seed, epoch, index) (`data` and `feeding`), and a
checkpoint is all that the next step depends on (`session`).  A session without a folder trains what is in memory:

    with Session(InMemory(model, batches, loss, make_optimizer, steps=100), plan) as session:
        losses = [session.step() for _ in range(100)]
"""

from .comparing import Comparison, compare
from .config import Config
from .interrupting import Interrupted
from .loading import Made
from .loop import Status, resume, train
from .memory import InMemory
from .ranks import FailedElsewhere, LostRank, Ranks, joined
from .runs import Run
from .session import Diverged, Session
from .tasks import TASKS
from .turns import in_turns
from .work import build_model, load_data

__all__ = [
    "TASKS",
    "Comparison",
    "Config",
    "Diverged",
    "FailedElsewhere",
    "InMemory",
    "Interrupted",
    "LostRank",
    "Made",
    "Ranks",
    "Run",
    "Session",
    "Status",
    "build_model",
    "compare",
    "in_turns",
    "joined",
    "load_data",
    "resume",
    "train",
]
