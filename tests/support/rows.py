"""What the tests of integer quantizers share: methods in pairs, tensors of many kinds, comparison of bits."""

from __future__ import annotations

import math

import torch

from lograd import ops

TYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = {
    "per_tensor": (ops.quantize_per_tensor, ops.pack_per_tensor),
    "per_sample": (ops.quantize_per_sample, ops.pack_per_sample),
    "block_householder": (ops.quantize_block_householder, ops.pack_block_householder),
    "interval": (
        lambda x, bits, *rest, **named: ops.quantize_interval(x, bits, 1.0, *rest, **named).result,
        lambda x, bits, *rest, **named: ops.pack_interval(x, bits, 1.0, *rest, **named).result,
    ),
}
# With a compiler here, ./dev expects the native module: then its absence fails these tests instead of skipping them.


def same(a, b, where=""):
    """Equal bits; any NaN equals any NaN."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.is_floating_point():
        nan = a.isnan()
        assert torch.equal(nan, b.isnan())
        word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        a, b = (t.contiguous().view(word).masked_fill(nan, 0) for t in (a, b))
    assert torch.equal(a, b), where


def contents(kind, shape, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=g)
    if kind == "normal":
        x = normal
    elif kind == "rows":
        x = normal * torch.exp(3 * torch.randn((shape[0], *[1] * (len(shape) - 1)), generator=g))
    elif kind == "bits":
        word = torch.int32 if dtype == torch.float32 else torch.int16
        info = torch.iinfo(word)
        return torch.randint(info.min, info.max, shape, generator=g, dtype=word).view(dtype)
    elif kind == "specials":
        values = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, -1e-40, 1.0, -3.0, 6e4])
        x = torch.where(normal > 1, values[torch.randint(0, len(values), shape, generator=g)], normal)
    elif kind == "halves":  # many ties and whole steps
        x = torch.randint(-30, 31, shape, generator=g) / 2
    elif kind == "positive":
        x = normal.abs() + 0.5
    elif kind == "negative":
        x = -normal.abs()
    else:
        x = torch.full(shape, {"zeros": 0.0, "constant": 5.0, "tiny": 1e-41, "infinite": math.inf}[kind])
    return x.to(dtype)


KINDS = [
    "normal", "rows", "bits", "specials", "halves", "positive", "negative", "zeros", "constant", "tiny", "infinite",
]  # fmt: skip
