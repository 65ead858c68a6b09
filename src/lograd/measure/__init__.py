"""Measuring: what a model's gradients look like, what treatments would do to them, and what a plan costs and adds.

Hooks count gradients (`observer`, `profiler`) and `records` keep the counts.  All else is made from the records: the
file, the table, the page, predictions for more zeros and fewer bits (`sparsity`, `precision`), and plans (`planner`).
`noise` measures how noise travels between layers, `work` counts a whole training step, and `timing` measures what each
of some methods costs in each layer.  `variances` runs a model under a plan and under variants of it, and estimates the
bias and the variance that arrive in the weight gradients.
"""

from .measured import Measured
from .model_profile import Profile
from .observer import Observer, observe
from .profiler import profile
from .records import LayerProfile, Record
from .result import Variance
from .values import Contributions, ForwardChange, SiteVariance, TensorVariance
from .variances import variance

__all__ = [
    "Contributions",
    "ForwardChange",
    "LayerProfile",
    "Measured",
    "Observer",
    "Profile",
    "Record",
    "SiteVariance",
    "TensorVariance",
    "Variance",
    "observe",
    "profile",
    "variance",
]
