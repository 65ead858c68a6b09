"""Train the built-in models with or without a plan, and compare the runs: what `lograd train` and `compare` do.

    from lograd.training import Config, compare, resume, train

    run = train(Config("resnet8", "cifar100.npz", recipe="prune85", steps=1000), "runs/prune85")
    print(compare(["runs/dense", "runs/prune85"]).table())

A run is a folder (`folder`), a config is a value (`config`), data are functions of (seed, epoch, index) (`data`), and a
checkpoint is all that the next step depends on (`session`).
"""

from .comparing import Comparison, compare
from .config import Config
from .interrupting import Interrupted
from .loop import Status, resume, train
from .runs import Run
from .session import Diverged, build_model, load_data
from .tasks import TASKS

__all__ = [
    "TASKS",
    "Comparison",
    "Config",
    "Diverged",
    "Interrupted",
    "Run",
    "Status",
    "build_model",
    "compare",
    "load_data",
    "resume",
    "train",
]
