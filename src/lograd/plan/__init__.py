"""Plans: the treatments of each layer of a model, as values and as a file to review."""

from .expected import Expected
from .layer import LayerPlan, check_bits, predicted
from .plan import VERSION, Plan
from .work import StepWork, Untreated, percent

__all__ = ["VERSION", "Expected", "LayerPlan", "Plan", "StepWork", "Untreated", "check_bits", "percent", "predicted"]
