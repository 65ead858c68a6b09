"""A random Hadamard transform around another treatment, which spreads outliers before they are rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from .. import ops
from ..errors import InvalidValue, sentence
from ..ops import coded as coding
from ..ops.coded import Encoded, Layout
from ..ops.layouts import dense
from .learned import Learned
from .tensors import contracted_last, counted
from .treatment import Coded, Numbers, Setting, Treatment, coder

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Hadamard(Coded):
    """H^-1 T(H g), block by block along the dimension that the product sums over [tseng2025].

    On hardware both operands of the product are transformed and neither is transformed back, as H is orthogonal:
    (H g)^T (H x) = g^T x.  To transform each of them there and back gives the same product.  It is what is simulated,
    to the rounding of float32.  Zeros are counted at the end, saturated elements inside.  Where both operands of a
    product are under such a transform, both have the same signs, and integer products meet their codes as they are.

    Args:
        inner: the treatment T; one that looks at the tensor itself.
        block: 16, 32, 64 or 128 neighbours; a shorter end is filled up with zeros.
        random: random signs before the transform, new ones in each step.
    """

    inner: Treatment
    block: int = 64
    random: bool = True
    kind: ClassVar[str] = "hadamard"
    per_product: ClassVar[bool] = True

    def __post_init__(self) -> None:
        inner: Any = self.inner
        if isinstance(inner, dict):
            object.__setattr__(self, "inner", Treatment.from_json(inner))
        if not isinstance(self.inner, Treatment):
            raise InvalidValue(sentence("inner of a Hadamard transform", inner, "a treatment"))
        if isinstance(self.inner, Learned):
            raise InvalidValue(
                f"a Hadamard transform cannot hold {self.inner}, which learns; take Integers in its place."
            )
        if self.inner.number_names:
            raise InvalidValue(
                f"a Hadamard transform changes the law of a gradient, so it cannot hold {self.inner}, whose numbers "
                "follow from that law; use a treatment that looks at the tensor itself, such as mxfp4 or int4-ptq."
            )
        if self.block not in (16, 32, 64, 128):
            raise InvalidValue(sentence("block", self.block, "one of 16, 32, 64, 128"))

    @property
    def memory_size(self) -> int:
        return self.inner.memory_size

    @property
    def unbiased(self) -> bool:
        return self.inner.unbiased

    @property
    def overflows(self) -> bool:
        return self.inner.overflows

    @property
    def element_bits(self) -> float | None:
        return self.inner.element_bits

    def apply(self, g: Tensor, setting: Setting) -> ops.Counted:
        matrix, back = contracted_last(g, setting.contracted)
        columns = matrix.shape[1]
        spread, seed = self._spread(matrix, setting)
        treated = self.inner.apply(spread, setting._replace(contracted=(1,)))
        result = back(ops.hadamard_inverse(treated.result, self.block, seed)[:, :columns])
        return counted(result, treated.counts[2])

    @property
    def can_encode(self) -> bool:
        """True if the inner treatment can encode; its codes are those of the transformed tensor."""
        return coder((self.inner,)) is not None

    @property
    def block_levels(self) -> bool:
        return isinstance(self.inner, Coded) and self.inner.block_levels

    @property
    def rotation(self) -> tuple[int, bool]:
        return self.block, self.random

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """Return the codes of the transformed tensor.

        Zeros are counted in the decoded one, as `apply` does, and among codes where a product takes these as they are.
        """
        layout = Layout.summed_last(dense(g), setting.contracted)
        spread, seed = self._spread(layout.matrix(g), setting)
        assert isinstance(self.inner, Coded)
        inner, counts = self.inner.encode(spread, setting._replace(contracted=(1,)))
        key = None if seed is None else torch.cat([seed, torch.zeros_like(seed)])
        coded = replace(inner, layout=layout, transform=(*inner.transform, coding.Rotated(self.block, key)))
        return Encoded(coded, counts if self.block_levels else counted(coded.decode(), counts[2]).counts)

    def _spread(self, matrix: Tensor, setting: Setting) -> tuple[Tensor, Tensor | None]:
        """Return the transformed rows, filled up to whole blocks with zeros, and the seed of the signs."""
        missing = -matrix.shape[1] % self.block
        padded = torch.nn.functional.pad(matrix, (0, missing)) if missing else matrix
        seed = (setting.key if setting.signs is None else setting.signs)[:1] if self.random else None
        return ops.hadamard(padded, self.block, seed), seed

    def memory_words(self, memory: list[float]) -> Numbers:
        return self.inner.memory_words(memory)

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        return self.inner.rescaled(memory, factor)

    def __str__(self) -> str:
        return f"{self.inner} under {'a random' if self.random else 'a'} Hadamard transform"
