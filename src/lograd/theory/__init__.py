"""Theory: sparsity, threshold, cosine, error, scale, allocation and variance, computed from a law and a format.

Everything is an identity in partial moments and holds for any law, except for Eq. 4 of the paper, which is about the
lognormal law.
"""

from .allocation import allocate, thresholds_for
from .clipping import best_scale, rounding_cosine
from .error import best_format, float_formats, format_errors, lognormal_relative_error, relative_error, squared_error
from .frontier import Option, Problem, Selection, choose, frontier
from .propagation import Propagation, Sparsities, allocate_by_noise
from .pruning import (
    atp_sparsity,
    cosine,
    noise_to_signal,
    nonzero_sparsity,
    rows_kept,
    sparsity,
    threshold,
    threshold_for_cosine,
    threshold_for_noise,
    topk_sparsity,
)
from .rises import Rise, risen
from .scaling import scale
from .variance import block_householder_variance_bound, per_sample_variance_bound, per_tensor_variance_bound

__all__ = [
    "Option", "Problem", "Propagation", "Rise", "Selection", "Sparsities", "allocate", "allocate_by_noise",
    "atp_sparsity", "best_format", "best_scale", "block_householder_variance_bound", "choose", "cosine",
    "float_formats", "format_errors", "frontier", "lognormal_relative_error", "noise_to_signal", "nonzero_sparsity",
    "per_sample_variance_bound", "per_tensor_variance_bound", "relative_error", "risen", "rounding_cosine", "rows_kept",
    "scale", "sparsity", "squared_error", "threshold", "threshold_for_cosine", "threshold_for_noise", "thresholds_for",
    "topk_sparsity",
]  # fmt: skip
