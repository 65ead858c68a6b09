"""A small training loop for experiments: models by name, data in memory, one session, a run that resumes.

run = train(Config("resnet8", "cifar100.npz", recipe="prune85", steps=1000), Path("runs/prune85"))

session = Session(model, batches, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), plan)
losses = [session.step() for _ in range(100)]
"""

from .config import TASKS, Config, Metric, Task, metric_of
from .datasets import Dataset, load_data
from .loop import evaluate, session_of, train
from .session import Diverged, Session, StepTimes, in_turns, loss_of, preserved

__all__ = [
    "TASKS",
    "Config",
    "Dataset",
    "Diverged",
    "Metric",
    "Session",
    "StepTimes",
    "Task",
    "evaluate",
    "in_turns",
    "load_data",
    "loss_of",
    "metric_of",
    "preserved",
    "session_of",
    "train",
]
