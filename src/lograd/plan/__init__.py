"""Plans: treatments by layer name, as values and as a file to review."""

from .layer import PRODUCTS, LayerPlan, check_bits, check_products, predicted
from .plan import VERSION, Plan
from .work import StepWork, Untreated, percent

__all__ = [
    "PRODUCTS",
    "VERSION",
    "LayerPlan",
    "Plan",
    "StepWork",
    "Untreated",
    "check_bits",
    "check_products",
    "percent",
    "predicted",
]
