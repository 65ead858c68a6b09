"""Stochastic pruning of whole rows: those that are dropped need no product on any device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, final, get_args

import torch

from ..errors import InvalidValue
from ..ops import Counted
from ..ops.layouts import dense
from ..ops.row_pruning import check_noise, check_share, keep_rows, row_norms, row_threshold
from .tensors import counted
from .treatment import RARE, Setting, Treatment, check_choice, checked_sparsity

if TYPE_CHECKING:
    from torch import Tensor

Weigh = Literal["norm", "norm x input"]
Unit = Literal["row", "sample"]


@final
@dataclass(frozen=True)
class Rows(Treatment):
    """Keep a row of the gradient if its norm reaches a threshold, else keep it, scaled up, with a probability.

    With n the norm of a row and a the threshold, a smaller row becomes row * a / n with probability n / a, else zero,
    so that the expected row is the row itself.  Probabilities in proportion to norms keep the fewest rows for the
    energy that is added [wang2024].  Rows are tokens or samples of a linear layer and output pixels of a convolution.

    First in its sentence, in linear layers and convolutions of 1 x 1, it makes the products smaller: rows that are
    dropped are never multiplied.  Elsewhere rows are zeros in the tensor, which sparse products skip.

    Args:
        sparsity: the expected share of rows of zeros, those that were there included.
        noise: in its place, the energy that is added, over that of the gradient; 0 drops the rows that are zero alone.
        weigh: the weight of a row for dW.  "norm" takes the rows of dX for dW as well.  "norm x input" multiplies the
            norm with that of the input row that it meets, to which its part in dW is proportional, and draws once more
            from the rows that were kept for dX.  Behind a LayerNorm input rows are alike: in MiniLM it kept 11.6 % of
            the rows instead of 11.9 % and took longer.
        of: "row", or "sample" to keep or drop all rows of a sample together: attention mixes tokens, and not samples.
        most: the largest share of rows that may be expected to be kept; where more would be, products are hardly
            smaller, and none is dropped.

    @inproceedings{wang2024,
      title     = {Efficient Backpropagation with Variance-Controlled Adaptive Sampling},
      author    = {Wang, Ziteng and Chen, Jianfei and Zhu, Jun},
      booktitle = {International Conference on Learning Representations},
      year      = {2024}
    }
    """

    sparsity: float | None = None
    noise: float | None = None
    weigh: Weigh = field(default="norm", metadata=RARE)
    of: Unit = field(default="row", metadata=RARE)
    most: float = field(default=1.0, metadata=RARE)
    kind: ClassVar[str] = "rows"
    changeable: ClassVar[frozenset[str]] = frozenset({"sparsity", "noise"})

    def __post_init__(self) -> None:
        if (self.sparsity is None) == (self.noise is None):
            raise InvalidValue("Rows takes sparsity or noise, one of the two, such as Rows(noise=0.02).")
        if self.sparsity is not None:
            object.__setattr__(self, "sparsity", checked_sparsity(self.sparsity))
        if self.noise is not None:
            object.__setattr__(self, "noise", check_noise(self.noise))
        check_choice("weigh of Rows", self.weigh, get_args(Weigh))
        check_choice("of of Rows", self.of, get_args(Unit))
        object.__setattr__(self, "most", check_share("most of Rows", self.most))

    @property
    def per_product(self) -> bool:  # type: ignore[override]
        """True where the rows for dW are others than those for dX."""
        return self.weigh == "norm x input"

    @property
    def makes_zeros(self) -> bool:
        return True

    @property
    def unbiased(self) -> bool:
        return True

    def threshold(self, norms: Tensor) -> Tensor:
        """Return the threshold of these norms."""
        return row_threshold(norms, sparsity=self.sparsity, noise=self.noise)

    def apply(self, g: Tensor, setting: Setting) -> Counted:
        g = dense(g)
        if not g.numel():
            return counted(g.clone())
        by_channel = self.of == "row" and g.dim() > 2
        moved = g.movedim(1, -1) if by_channel else g
        rows = moved.reshape(-1, g.shape[1]) if by_channel else g.flatten(1) if g.dim() > 1 else g[:, None]
        norms = row_norms(rows)
        kept = keep_rows(norms, self.threshold(norms), setting.key)
        result = rows.new_zeros(rows.shape)
        result.index_copy_(0, kept.places, rows.index_select(0, kept.places) * kept.factors[:, None].to(rows.dtype))
        result = result.reshape(moved.shape)
        return counted(torch.empty_like(g).copy_(result.movedim(-1, 1) if by_channel else result))

    def __str__(self) -> str:
        amount = f"{self.sparsity:g}" if self.sparsity is not None else f"noise {self.noise:g}"
        if self.noise == 0:
            amount = "that are zero"
        words: list[str] = [word for word, usual in ((self.weigh, "norm"), (self.of, "row")) if word != usual]
        words += [f"unless more than {self.most:g} are kept"] if self.most < 1 else []
        return f"rows {amount}" + (f" ({', '.join(words)})" if words else "")
