"""Operators on gradients: zeros, few-bit values, codes and histograms, at the speed of memory where native code serves.

All are pure: the result depends on the arguments alone, and randomness on (seed, offset + position).  float32, bfloat16
and float16 in, the same out; arithmetic is in float32.  NaN in, NaN out.  They record no gradient: they are meant for
gradients themselves.

Scalars may be numbers, or one-element tensors, which change from call to call without a recompilation.
"""

from . import integer_kernels as _integer_kernels  # noqa: F401  it registers its operators
from .affine import (
    Clipped,
    Ranged,
    pack_integers,
    pack_interval,
    pack_per_sample,
    pack_per_tensor,
    quantize_integers,
    quantize_interval,
    quantize_per_sample,
    quantize_per_tensor,
)
from .arguments import Counted
from .blocks import dequantize_block_codes, quantize_block_codes, quantize_blocks, tensor_scale_of
from .coded import CodedTensor, Encoded
from .codes import dequantize_codes, pack_codes, pack_nibbles, quantize_codes, unpack_nibbles
from .elementwise import dither, quantize, stochastic_prune, threshold_prune
from .hadamard import hadamard, hadamard_inverse
from .histogram import LogHistogram, kth_magnitude, log_histogram
from .householder import pack_block_householder, quantize_block_householder
from .integer_products import (
    fold_of,
    integer_convolution,
    integer_convolution_backward,
    integer_linear,
    integer_linear_backward,
    integer_matmul,
    reason_not_integer,
)
from .logarithmic import Logarithmic, luq, pack_luq
from .normalization import (
    BatchNormalized,
    BatchNormGradients,
    BatchStatistics,
    batch_normalize,
    batch_normalize_backward,
    batch_statistics,
)
from .registry import library
from .sparse_products import sparse_convolution_backward, sparse_linear_backward

__all__ = [
    "BatchNormGradients", "BatchNormalized", "BatchStatistics", "batch_normalize", "batch_normalize_backward",
    "batch_statistics",
    "Clipped", "Counted", "LogHistogram", "Logarithmic", "Ranged",
    "CodedTensor", "Encoded",
    "dither", "luq", "quantize", "stochastic_prune", "threshold_prune",
    "hadamard", "hadamard_inverse", "kth_magnitude", "library", "log_histogram",
    "quantize_block_householder", "quantize_blocks", "quantize_integers", "quantize_interval",
    "quantize_per_sample", "quantize_per_tensor", "tensor_scale_of",
    "pack_block_householder", "pack_codes", "pack_integers", "pack_interval", "pack_luq", "pack_nibbles",
    "pack_per_sample", "pack_per_tensor", "quantize_block_codes", "quantize_codes",
    "dequantize_block_codes", "dequantize_codes", "unpack_nibbles",
    "fold_of", "integer_convolution", "integer_convolution_backward", "integer_linear", "integer_linear_backward",
    "integer_matmul",
    "reason_not_integer", "sparse_convolution_backward", "sparse_linear_backward",
]  # fmt: skip
