"""Profiles: histograms of a model's gradients, observed without changing the model.

Hooks count (`observer`, `profiler`) and `records` keep the counts.  All else is made from the records: the file
(`file`), the table, the page with its charts, predictions for more zeros and fewer bits (`sparsity`, `precision`), and
plans (`planner`).  `noise` measures how noise travels between layers, and `work` counts a whole training step.
`timing` measures what each of some `methods` costs in each layer, and `penalties` what a rounded forward does to the
gradient; `menus` keeps both.
"""

from .model_profile import Profile
from .observer import Observer, observe
from .profiler import profile
from .records import LayerProfile, Record

__all__ = ["LayerProfile", "Observer", "Profile", "Record", "observe", "profile"]
