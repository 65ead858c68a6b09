"""The exact k-th magnitude of a tensor: the threshold of the top-k baselines."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from .arguments import check_floats
from .reference.statistics import check_place
from .registry import call


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
        check_place(x, k)
    result: Tensor = call("kth_magnitude", x, k)
    return result
