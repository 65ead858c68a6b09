"""The exact k-th magnitude of a tensor: the threshold of the top-k baselines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import native
from ..errors import InvalidType, InvalidValue, sentence
from .arguments import check_floats
from .library import FLOAT_TYPES, call, dense, flat, register


def kth_magnitude(x: Tensor, k: int | None = None, *, sparsity: float | None = None) -> Tensor:
    """The k-th largest |x|, exact, as a float32 tensor of one element; or the threshold that gives a sparsity.

    k = 1 is the largest.  NaN counts as larger than everything, as in `torch.kthvalue`: x with n elements has
    `torch.kthvalue(x.abs().float(), n + 1 - k)`.

    With `sparsity` it is the smallest t for which `threshold_prune(x, t)` prunes at least m = round(sparsity n)
    elements: the m-th smallest magnitude, and 0 for m = 0.  Elements that tie with it are pruned too.

    >>> x = torch.tensor([3.0, -1.0, 0.5, -4.0])
    >>> kth_magnitude(x, 2).item(), kth_magnitude(x, sparsity=0.5).item()
    (3.0, 1.0)
    """
    check_floats(x)
    n = x.numel()
    if (k is None) == (sparsity is None):
        raise InvalidValue("kth_magnitude takes either k or sparsity; got " + ("neither." if k is None else "both."))
    if n == 0:
        raise InvalidValue("kth_magnitude needs at least one element; got an empty tensor.")
    if sparsity is not None:
        if not (isinstance(sparsity, float | int) and 0 <= sparsity <= 1):
            raise InvalidValue(sentence("sparsity", sparsity, "from 0 to 1"))
        k = n + 1 - round(sparsity * n)
        if k > n:
            return x.new_zeros((), dtype=torch.float32)
    elif isinstance(k, bool) or not isinstance(k, int | torch.SymInt):
        raise InvalidType(sentence("k", k, "a whole number"))
    else:
        _check_place(x, k)
    result: Tensor = call("kth_magnitude", x, k)
    return result


def _check_place(x: Tensor, k: int) -> None:
    if not 1 <= k <= x.numel():
        raise InvalidValue(sentence("k", k, f"from 1 to {x.numel()}, the number of elements"))


def _plain(x: Tensor, k: int) -> Tensor:
    value = flat(dense(x)).float().abs().kthvalue(x.numel() + 1 - k).values
    return torch.where(value.isnan(), torch.nan, value)  # one NaN for all


def _native(x: Tensor, k: int) -> Tensor:
    x = dense(x)
    out = x.new_empty((), dtype=torch.float32)
    address, n = native.address, x.numel()
    _kernel(
        FLOAT_TYPES[x.dtype], address("x", x, x.dtype, n), n, k, torch.get_num_threads(),
        address("out", out, torch.float32, 1),
    )  # fmt: skip
    return out


_kernel: Any = native.kernel("kth_magnitude")
register(
    "kth_magnitude(Tensor x, SymInt k) -> Tensor",
    _plain,
    _native if _kernel is not None else None,
    lambda x, k: x.new_empty((), dtype=torch.float32),
    _check_place,
)
