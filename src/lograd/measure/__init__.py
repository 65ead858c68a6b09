"""Measuring: what a model's gradients look like, what treatments would do to them, and what a plan costs and adds.

`observer` and `profiler` count gradients, in a loop of the user's own or in steps run here; `records` keep the counts.
`noise` measures how noise travels between layers, `timing` what each method costs in each layer, `work` the operations
of a whole step.  `prediction` and `planner` read only what was measured.  `variances` runs a model under a plan and
under variants of it, and estimates the bias and the variance that arrive in the weight gradients.
"""

from .model_profile import Profile
from .observer import Observer, observe
from .profiler import profile
from .records import LayerProfile, Record
from .values import Measured
from .variance_result import Contributions, ForwardChange, SiteVariance, TensorVariance, Variance
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
