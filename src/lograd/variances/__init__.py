"""The statistical framework: the variance and the bias that a plan adds to the gradients of a model.

`measure` runs a model on a `bench`, under variants of the plan (`variants`), and estimates (`estimates`) what arrives
in the weight gradients; `sites` and `bounds` look at the quantizers themselves, `arrivals` at predictions.  The result
is plain values, from which table, page and file are made.
"""

from ..profiles.measured import Measured
from .measure import variance
from .result import Variance
from .values import Contributions, ForwardChange, SiteVariance, TensorVariance

__all__ = ["Contributions", "ForwardChange", "Measured", "SiteVariance", "TensorVariance", "Variance", "variance"]
