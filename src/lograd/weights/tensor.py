"""A parameter that is stored in low precision: a tensor for everyone else, codes and spacings inside.

Operators see float32 numbers, which are decoded for them and freed afterwards; those that change the tensor in place
have their result rounded back.  `dispatch` has the rules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from ..errors import InvalidValue
from .coding import Coding, Per, Rounding, all_finite, coding_of

LEDGER = SEED, OFFSET, WRITES, CLIPPED, GROWN, SHRUNK, LOST = range(7)
"""Places in a ledger: the key of the random numbers, and exact counts of elements and rows."""

_Base: Any = torch.Tensor  # its class methods for subclasses are untyped


class Counts(NamedTuple):
    """Exact counts of what was written to a tensor in low precision."""

    writes: int
    """How often it was written: once in each step."""
    clipped: int
    """Elements outside of the range of their row; none, as rows grow before."""
    grown: int
    """Rows that got a wider spacing, since a weight left the range."""
    shrunk: int
    """Rows that got a finer spacing, since their weights had become small."""
    lost: int
    """Rows that were written with NaN or infinity among them, and decode to NaN; for bfloat16, such elements."""


class Window(NamedTuple):
    """The tensor from which a view has its numbers, and how."""

    whole: LowPrecisionTensor
    view: Callable[[Tensor], Tensor]
    """Gives the view of a plain tensor in the place of the whole."""


def new_ledger(seed: int) -> Tensor:
    """Return a ledger with this seed and nothing counted."""
    return torch.tensor([seed, 0, 0, 0, 0, 0, 0], dtype=torch.int64)


@final
class LowPrecisionTensor(_Base):  # type: ignore[misc]  # _Base is Any
    """Numbers V(code) times spacing, of which only codes and spacings are in memory.

    Args:
        codes: uint8, or bfloat16 where these are the numbers themselves.
        spacing: float32, one for each row, in a shape that is broadcast with the codes.
        ledger: int64 (7,): seed and offset of the random numbers, then counts.
        format, per: as in `Coding`.
        dtype: the type that operators see.
    """

    codes: Tensor
    spacing: Tensor
    ledger: Tensor
    coding: Coding
    window: Window | None = None
    """For a view of some elements whose rows are shared with others: it reads, and writes, by way of the whole."""
    rules: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]]
    """Gives the result of an operator; `dispatch`, which needs this class, puts it here."""

    @staticmethod
    def __new__(
        cls: Any, codes: Tensor, spacing: Tensor, ledger: Tensor, coding: Coding, dtype: torch.dtype = torch.float32
    ) -> LowPrecisionTensor:
        made: LowPrecisionTensor = _Base._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device, requires_grad=False
        )
        made.codes, made.spacing, made.ledger, made.coding = codes, spacing, ledger, coding
        return made

    @classmethod
    def of(cls, values: Tensor, coding: Coding, seed: int, rounding: Rounding = "nearest") -> LowPrecisionTensor:
        """Return float numbers with the narrowest spacings that fit, in their layout."""
        values = values.detach()
        codes = torch.empty_like(values, dtype=coding.dtype)
        spacing = torch.ones(coding.rows(values.shape), device=values.device)
        made = cls(codes, spacing, new_ledger(seed).to(values.device), coding, values.dtype)
        made._renew_(coding.prepared_(values.to(torch.float32, copy=True)), rounding)
        return made

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return a plain tensor with the same numbers, float32 or of another type; it records no gradient."""
        with torch.no_grad():
            if self.window is not None:
                return self.window.view(self.window.whole.decode(dtype or self.dtype))
            return self.coding.decode(self.codes, self.spacing, dtype or self.dtype)

    # -- writing --

    def write_(self, values: Tensor, rounding: Rounding = "stochastic") -> None:
        """Take new numbers: float32, in the layout of the codes, and overwritten on the way.

        Spacings stay as long as the numbers fit (`Coding.following`).
        """
        with torch.no_grad():
            if self.window is not None:
                self.window.whole.write_(self._whole_with(values), rounding)
                return
            self.coding.prepared_(values)
            if self.bare:
                if not all_finite(values):
                    self.ledger[LOST] += values.numel() - values.isfinite().sum()
            else:
                found = self.coding.following(values, self.spacing)
                self.spacing.copy_(found.spacing)
                self.ledger[GROWN : LOST + 1] += torch.stack(
                    [each.sum() for each in (found.grown, found.shrunk, found.lost)]
                )
            self._encode_(values, rounding)

    def overwrite_(self, values: Tensor) -> None:
        """Take numbers that have nothing to do with the old ones, rounded to nearest.

        Numbers that the present spacings hold exactly, as far as its type can tell, keep these; else spacings are the
        narrowest that fit.  A view of a part is written like any other change, since the rest of the rows stays.
        """
        with torch.no_grad():
            if self.window is not None:
                whole, numbers = self.window.whole, self._whole_with(values)
                if whole.numel() == self.numel():
                    whole.overwrite_(numbers)
                else:
                    whole.write_(numbers)
                return
            own = self.coding.prepared_(torch.empty_like(self.codes, dtype=torch.float32).copy_(values))
            self._encode_(own.clone(), "nearest")
            if not torch.equal(self.decode(), values.to(self.dtype)):
                self._renew_(own, "nearest")

    def _whole_with(self, values: Tensor) -> Tensor:
        """The numbers of the whole tensor, in which those of this view are new."""
        assert self.window is not None
        numbers = torch.empty_like(self.window.whole.codes, dtype=torch.float32)
        numbers.copy_(self.window.whole.decode(torch.float32))
        self.window.view(numbers).copy_(values)
        return numbers

    def _renew_(self, values: Tensor, rounding: Rounding) -> None:
        if not self.bare:
            self.spacing.copy_(self.coding.fresh(values, self.spacing))
            self.ledger[LOST] += self.spacing.isnan().sum()
        self._encode_(values, rounding)

    def _encode_(self, values: Tensor, rounding: Rounding) -> None:
        ledger = self.ledger
        clipped = self.coding.encode_(values, self.spacing, self.codes, rounding, ledger[SEED:WRITES])
        if rounding == "stochastic":
            ledger[OFFSET] += values.numel()
            ledger[WRITES] += 1
            ledger[CLIPPED] += clipped

    @property
    def counts(self) -> Counts:
        """The counts since it was made."""
        return Counts(*self.ledger[WRITES:].tolist())

    @property
    def rounded(self) -> int:
        """Elements that were rounded stochastically since it was made; each took a random number of its own."""
        return int(self.ledger[OFFSET])

    @property
    def bytes(self) -> int:
        """Bytes of codes and spacings."""
        own = self.codes.numel() * self.codes.element_size()
        return own if self.bare else own + self.spacing.numel() * self.spacing.element_size()

    @property
    def bare(self) -> bool:
        """True where there are no spacings."""
        return self.coding.is_bfloat16

    def mapped(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> LowPrecisionTensor:
        """Return a tensor with changed codes and spacings, and the same ledger."""
        return LowPrecisionTensor(
            change(self.codes), change(self.spacing), self.ledger, self.coding, dtype or self.dtype
        )

    # -- what PyTorch asks of a subclass --

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls.rules(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """Return the names of the tensors inside, and the rest."""
        if self.window is not None:
            raise InvalidValue("part of a weight in low precision cannot enter compiled code; give it part.decode().")
        return ["codes", "spacing", "ledger"], (self.coding, self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> LowPrecisionTensor:
        """Return the tensor that `__tensor_flatten__` took apart."""
        return LowPrecisionTensor(inner["codes"], inner["spacing"], inner["ledger"], *context)

    def __repr__(self, **options: Any) -> str:
        return f"LowPrecisionTensor({self.coding.format}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as an array, which is a copy."""
        return self.decode().numpy(force=force)

    def tolist(self) -> Any:
        """Return the numbers as lists."""
        return self.decode().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with its own codes, and the same random numbers from here on; of a part, a plain tensor."""
        if self.window is not None:
            return copy.deepcopy(self.decode(), memo)
        twin = self.mapped(torch.clone)
        twin.ledger = self.ledger.clone()
        twin.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            twin._is_param = True
        if self.grad is not None:
            twin.grad = self.grad.clone()
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a call with plain tensors, which torch.load(weights_only=True) takes once this is imported."""
        if self.window is not None:
            plain: Any = self.decode().clone()
            return plain.__reduce_ex__(protocol)
        coding = self.coding
        parts = (self.codes, self.spacing, self.ledger, coding.format, coding.per, coding.root, self.dtype)
        return rebuilt, (*parts, bool(self.requires_grad), bool(getattr(self, "_is_param", False)))


def rebuilt(
    codes: Tensor, spacing: Tensor, ledger: Tensor, format: str, per: Per, root: bool, dtype: torch.dtype, grad: bool,
    own: bool,
) -> LowPrecisionTensor:  # fmt: skip
    """Return an unpickled tensor; what its file says is checked."""
    coding = replace(coding_of(format, per), root=bool(root))
    check_parts(codes, spacing, ledger, coding)
    made = LowPrecisionTensor(codes, spacing, ledger, coding, dtype)
    made.requires_grad_(bool(grad))
    if own:
        made._is_param = True
    return made


def check_parts(codes: Tensor, spacing: Tensor, ledger: Tensor, coding: Coding) -> None:
    """Refuse parts from a file that do not fit together."""
    if codes.dtype != coding.dtype or spacing.dtype != torch.float32 or ledger.dtype != torch.int64:
        raise InvalidValue(f"the parts of a tensor in {coding.format} have other types than such tensors have.")
    if ledger.shape != (len(LEDGER),) or tuple(spacing.shape) not in (coding.rows(codes.shape), (1,) * codes.dim()):
        raise InvalidValue(f"the parts of a tensor in {coding.format} have shapes that do not fit together.")


torch.serialization.add_safe_globals([rebuilt])
