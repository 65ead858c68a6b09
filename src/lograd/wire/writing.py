"""`encode` and `prune_and_encode`: from a tensor to its packet."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..files.checks import check_flag, check_one_of
from ..ops.arguments import Counted, Scalar, check_floats, in_type_of, key_of, scalar
from ..ops.coded import CodedTensor
from ..ops.layouts import dense
from .codes import encode_codes
from .elements import KINDS, VALUES, Values, cut_of, words_of
from .header import DTYPES, MOST_DIMENSIONS
from .pruned import Pruning, encode_pruned, encode_raw

Method = Literal["auto", "pruned", "raw"]


def encode(
    x: Tensor | CodedTensor,
    *,
    values: Values = "exact",
    entropy: bool = False,
    method: Method = "auto",
    alpha: Scalar | None = None,
) -> Tensor:
    """Return the packet of a tensor or of a coded tensor: bytes that say what they hold, as a uint8 vector.

    `decode` gives the same bits again, NaN, infinities, signs of zero and subnormal numbers included, unless `values`
    asks for rounding.  Elements that are +0.0 cost next to nothing, and those of magnitude `alpha`, as stochastic
    pruning makes many of them, a few bits.  The bytes do not depend on the number of threads.

    Args:
        x: float32, bfloat16, float16 or float64, of any layout and on any device; or a `CodedTensor`, whose codes are
            packed to as many bits as the largest one has.
        values: "exact"; or "bfloat16" or "float8" to round values that are neither zero nor of magnitude alpha to 7 or
            2 mantissa bits, to nearest.  Their exponents keep the range of x.
        entropy: store exponents in a code of variable length: some 3 % smaller, and slower.
        method: "pruned" codes zeros and alpha; "raw" stores the elements as they are, which float64 always is.  "auto"
            takes the smaller one.
        alpha: the magnitude that many elements share, such as the threshold of pruning; the smallest that is not zero
            if it is not given.  The packet of any x is right for any alpha, and small for a fitting one.

    >>> from lograd.wire import decode
    >>> x = torch.zeros(4096).index_fill_(0, torch.tensor([7, 99]), -0.5)
    >>> packet = encode(x)
    >>> packet.numel(), torch.equal(decode(packet), x)
    (48, True)
    """
    check_one_of("values", values, VALUES)
    check_flag("entropy", entropy)
    check_one_of("method", method, ("auto", "pruned", "raw"))
    if isinstance(x, CodedTensor):
        if (values, entropy, method, alpha) != ("exact", False, "auto", None):
            raise InvalidValue("a coded tensor is packed as it is: values, entropy, method and alpha go with tensors.")
        return encode_codes(x).to(x.codes.device)
    _check(x)
    x, device = x.detach().cpu().resolve_neg(), x.device
    if x.dtype == torch.float64 or method == "raw":
        if values != "exact" or method == "pruned":
            raise InvalidValue(
                f"{_name(x.dtype)} with method={method!r} is stored as it is, without values={values!r}; values= and "
                "method='pruned' go with float32, bfloat16 and float16."
            )
        return encode_raw(x).to(device)
    given = None if alpha is None else alpha_bits(scalar("alpha", alpha, x, 0.0), x.dtype)
    packet, _ = encode_pruned(x, given, cut_of(values, x.dtype), entropy, method == "auto")
    return packet.to(device)


def prune_and_encode(
    x: Tensor,
    threshold: Scalar,
    seed: int | Tensor = 0,
    offset: int | Tensor = 0,
    *,
    values: Values = "exact",
    entropy: bool = False,
    counted: bool = False,
) -> Any:
    """Return the packet of a tensor after stochastic pruning, in one pass over its memory on a CPU.

    The bytes are those of `encode(ops.stochastic_prune(x, threshold, seed, offset), alpha=threshold)`.

    Args:
        x: float32, bfloat16 or float16, of any layout.
        threshold: smaller magnitudes become 0 or the threshold, with the probability that keeps their mean.
        seed, offset: name the random numbers, as in `ops.stochastic_prune`.
        values, entropy: as in `encode`.
        counted: also give the counts of `ops.stochastic_prune`: zeros and NaN of the pruned tensor, 0, zeros of x.
    """
    check_floats(x)
    check_one_of("values", values, VALUES)
    check_flag("entropy", entropy)
    check_flag("counted", counted)
    _check(x)
    a, key = in_type_of(x, scalar("threshold", threshold, x, 0.0)).cpu(), key_of(seed, offset, x).cpu()
    cut, device = cut_of(values, x.dtype), x.device
    x = x.detach().cpu().resolve_neg()
    packet, counts = encode_pruned(dense(x), alpha_bits(a, x.dtype), cut, entropy, True, Pruning(a, key, counted))
    packet = packet.to(device)
    return packet if counts is None else Counted(packet, counts.to(device))


def alpha_bits(alpha: Tensor, dtype: torch.dtype) -> int:
    """The bits of a magnitude in an element type; 0 where it is not finite."""
    value = float(alpha)
    if not math.isfinite(value):
        return 0
    return int(words_of(in_type_of(torch.empty(0, dtype=dtype), alpha.cpu()).abs().to(dtype).reshape(1))[0])


def _check(x: Any) -> None:
    if not isinstance(x, Tensor):
        raise InvalidType(sentence("x", f"an object of type {type(x).__name__}", "a tensor or a coded tensor"))
    if x.dtype not in DTYPES[:4] or x.layout != torch.strided:
        names = ", ".join(map(_name, KINDS))
        raise InvalidType(f"x must be a dense tensor of {names} or float64; got {_name(x.dtype)}, {x.layout}.")
    if x.dim() > MOST_DIMENSIONS:
        raise InvalidValue(sentence("x", tuple(x.shape), f"a tensor of at most {MOST_DIMENSIONS} dimensions"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
