"""The commands of a training run, one file each: `lograd profile`, `plan`, `train` and `compare`."""

from .compare import compare
from .plan import plan
from .profile import profile
from .train import train

COMMANDS = (profile, plan, train, compare)
"""In the order in which one uses them."""

__all__ = ["COMMANDS", "compare", "plan", "profile", "train"]
