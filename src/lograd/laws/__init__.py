"""Laws of |g|, the magnitude of a neural gradient's nonzero elements.

A law has three central methods, from which everything else in lograd follows: `cdf`, `quantile` and
`partial_moment(order, t)`.  All is NumPy and SciPy in float64.  `fit` accepts tensors, but torch is not needed.
"""

from .bell import Exponential, HalfCauchy, HalfNormal
from .empirical import Empirical
from .goodness import FAMILIES, QQ, Fit, ks_distance, qq, rank_laws
from .law import Law
from .loglaplace import LogLaplace
from .lognormal import LogNormal
from .uniform import Uniform

__all__ = [
    "FAMILIES", "QQ", "Empirical", "Exponential", "Fit", "HalfCauchy", "HalfNormal", "Law", "LogLaplace", "LogNormal",
    "Uniform", "ks_distance", "qq", "rank_laws",
]  # fmt: skip
