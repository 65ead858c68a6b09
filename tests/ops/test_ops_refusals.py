"""Refusals of the functions of `lograd.ops`, each in one sentence; test_ops_contracts has the rules of operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lograd
from lograd import BlockFormat, FloatFormat, InvalidType, InvalidValue, formats
from lograd.ops.row_pruning import check_noise

ops: Any = lograd.ops
CATALOGUE: Any = formats.CATALOGUE
ONES, CODES, IMAGES, VECTOR = torch.ones(4), torch.ones(3, dtype=torch.uint8), torch.randn(2, 3, 4), torch.ones(3)
E4M3, E2M1, MXFP4, NVFP4 = FloatFormat(4, 3), CATALOGUE["e2m1"], CATALOGUE["mxfp4"], CATALOGUE["nvfp4"]
BLOCKS = ops.quantize_block_codes(torch.ones(4, 40), MXFP4)


def pack(**options: Any) -> Callable[[], Any]:
    return lambda: ops.pack_integers(torch.ones(3, 4), **{"bits": 4, **options})


REFUSED: dict[str, Callable[[], Any]] = {
    # arguments that all functions read alike
    "threshold must be finite and zero or positive in float32; got -1.0.": lambda: ops.stochastic_prune(ONES, -1.0),
    "threshold must be finite": lambda: ops.stochastic_prune(ONES, math.nan),
    "a float tensor of one element": lambda: ops.stochastic_prune(ONES, torch.ones(2)),
    "x must be float32, bfloat16 or float16; got float64.": lambda: ops.stochastic_prune(ONES.double(), 1.0),
    "x must be a tensor; got an object of type list": lambda: ops.stochastic_prune([1.0], 1.0),
    "step must be finite and positive": lambda: ops.dither(ONES, 0.0),
    "scale must be finite and positive": lambda: ops.quantize(ONES, E4M3, 0.0),
    "rounding must be one of 'nearest', 'stochastic'": lambda: ops.quantize(ONES, E4M3, 1.0, "up"),
    "at most 8 bits; 1-5-10 has 16": lambda: ops.quantize(ONES, FloatFormat(5, 10)),
    "a sign, a zero and subnormals": lambda: ops.quantize(ONES, CATALOGUE["e8m0"]),
    "takes a FloatFormat or an IntFormat": lambda: ops.quantize(ONES, MXFP4),
    "x must be a tensor; got an object of type NoneType": lambda: ops.batch_statistics(None),
    # codes
    "quantize_codes takes a FloatFormat or an IntFormat; got BlockFormat": lambda: ops.quantize_codes(ONES, MXFP4),
    "at most 8 bits": lambda: ops.quantize_codes(ONES, CATALOGUE["bfloat16"]),
    "must be uint8; got float32": lambda: ops.dequantize_codes(ONES, E2M1),
    "must be float32, bfloat16 or float16": lambda: ops.dequantize_codes(CODES, E2M1, dtype=torch.float64),
    "codes must be a tensor; got an object of type list": lambda: ops.dequantize_codes([1], E2M1),
    "a code is larger than 15": lambda: ops.pack_nibbles(CODES * 16),
    "codes must have at least one dimension": lambda: ops.pack_nibbles(CODES[0]),
    "3 bytes hold 6 or 5 codes of 4 bits; got length=7": lambda: ops.unpack_nibbles(CODES, 7),
    "length must be a number of codes, 0 or more; got -1.": lambda: ops.unpack_nibbles(CODES[:0], -1),
    "packed must have at least one dimension": lambda: ops.unpack_nibbles(CODES[0]),
    "at most 4 bits of one; these have 8": lambda: ops.pack_codes(ONES, E4M3).in_nibbles(),
    # blocks
    "takes a BlockFormat, such as CATALOGUE": lambda: ops.quantize_blocks(ONES, E2M1),
    "variant='unbiased' needs rounding='stochastic'": lambda: ops.quantize_blocks(ONES, MXFP4, variant="unbiased"),
    "variant must be 'standard' or 'unbiased'; got 'none'": lambda: ops.quantize_blocks(ONES, MXFP4, variant="none"),
    "for scales that are powers of two": lambda: ops.quantize_blocks(ONES, NVFP4, "stochastic", "unbiased"),
    "reach 1.5 times their largest power of two; 1-3-0 ends at 16":
        lambda: ops.quantize_blocks(ONES, BlockFormat(FloatFormat(3, 0), 32, MXFP4.scale), "stochastic", "unbiased"),
    "tensor_scale must be finite and positive in float32; got -1":
        lambda: ops.quantize_blocks(ONES, MXFP4, tensor_scale=-1),
    "has at most 8 bits": lambda: ops.quantize_blocks(ONES, BlockFormat(E2M1, 32, FloatFormat(8, 7, specials="ieee"))),
    "has a NaN, by which a block says": lambda: ops.quantize_blocks(ONES, BlockFormat(E2M1, 32, E4M3)),
    "formats of at most 8 bits": lambda: ops.quantize_blocks(ONES, BlockFormat(FloatFormat(5, 10), 32, MXFP4.scale)),
    "need scales of shape (4, 2); got (4,)":
        lambda: ops.dequantize_block_codes(BLOCKS.codes, BLOCKS.block_scales[:, 0], MXFP4),
    "serves scales with a mantissa": lambda: ops.tensor_scale_of(ONES, MXFP4),
    # levels, rows and intervals
    "bits of lograd::integer_codes must be from 2 to 8; got 9": pack(bits=9),
    "per must be 'tensor' or 'channel'": pack(per="row"),
    "must be float32; got float64": pack(fold=torch.ones(4).double()),
    "one factor for each of 4 channels": pack(fold=VECTOR),
    "fold_dim must be a dimension of x": pack(fold=ONES, fold_dim=2),
    "range must be a pair": pack(range=VECTOR),
    "range must be of shape (2, 3)": pack(range=torch.ones(2), per="channel"),
    "range must be two numbers": pack(range=3.0),
    "range must be a float tensor": pack(range=torch.tensor([0, 1])),
    "low and high, in this order": pack(range=(1.0, -1.0)),
    "needs a tensor with channels": lambda: ops.pack_integers(torch.tensor(1.0), 4, per="channel"),
    "must have at least 2 dimensions, samples first; got (4,)": lambda: ops.quantize_per_sample(ONES, 4),
    "gamma must be positive and at most 1; got 1.5.": lambda: ops.quantize_interval(ONES, 4, gamma=1.5),
    "gamma must be a number, positive and at most 1": lambda: ops.quantize_interval(ONES, 4, gamma="1"),
    "gamma of lograd::quantize_interval must be": lambda: ops.quantize_interval(ONES, 4, gamma=torch.ones(2)),
    "noise must be at least 0 and below 1": lambda: check_noise(-0.1),
    "below 1, such as 0.02; got nan": lambda: check_noise(math.nan),
    # statistics and transforms
    "k must be from 1 to 3, the number of elements; got 4.": lambda: ops.kth_magnitude(VECTOR, 4),
    "k must be a whole number; got 1.5.": lambda: ops.kth_magnitude(VECTOR, 1.5),
    "kth_magnitude takes either k or sparsity; got neither.": lambda: ops.kth_magnitude(VECTOR),
    "kth_magnitude takes either k or sparsity; got both.": lambda: ops.kth_magnitude(VECTOR, 1, sparsity=0.0),
    "sparsity must be from 0 to 1; got 1.2.": lambda: ops.kth_magnitude(VECTOR, sparsity=1.2),
    "needs at least one element; got an empty tensor.": lambda: ops.kth_magnitude(VECTOR[:0], 1),
    "sample must be above 0 (1e-9 or more) and at most 1; got 1.5.": lambda: ops.log_histogram(VECTOR, 1.5),
    "sample must be above 0 (1e-9 or more) and at most 1; got 0.": lambda: ops.log_histogram(VECTOR, 0),
    "a law needs finite elements; got 1 NaN and 1 infinite of 3. Find where the gradient overflowed":
        lambda: ops.log_histogram(torch.tensor([1.0, math.nan, math.inf])).law(),
    "a law needs at least one nonzero element; all 3 are exactly zero.":
        lambda: ops.log_histogram(torch.zeros(3)).law(),
    "the last dimension must be a multiple of the block of 64; got 96": lambda: ops.hadamard(torch.ones(2, 96)),
    "multiple of the block of 64; got 1": lambda: ops.hadamard(torch.tensor(1.0)),
    "must be 16, 32, 64 or 128; got 48": lambda: ops.hadamard_inverse(torch.ones(2, 96), block=48),
    "x must have values in images and channels": lambda: ops.batch_statistics(VECTOR),
    "a number for each of 3 channels": lambda: ops.batch_normalize(IMAGES, VECTOR, ONES),
    "residual must have the shape of x, (2, 3, 4); got (3, 4)":
        lambda: ops.batch_normalize(IMAGES, VECTOR, VECTOR, residual=IMAGES[0]),
    "mask must be that of batch_normalize, 6 bytes for 24 elements":
        lambda: ops.batch_normalize_backward(IMAGES, IMAGES, VECTOR, VECTOR, mask=CODES),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_gets_one_sentence(words: str) -> None:
    with pytest.raises((InvalidType, InvalidValue)) as caught:
        REFUSED[words]()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
