"""Plans: the treatments of each layer of a model, as values and as a file to review; and the evidence for them."""

from .evidence import LIMIT, Evidence, Expected, Forecast, StepWork, Untreated, listed, percent
from .layer import LayerPlan, check_bits, predicted
from .plan import VERSION, Plan

__all__ = [
    "LIMIT",
    "VERSION",
    "Evidence",
    "Expected",
    "Forecast",
    "LayerPlan",
    "Plan",
    "StepWork",
    "Untreated",
    "check_bits",
    "listed",
    "percent",
    "predicted",
]
