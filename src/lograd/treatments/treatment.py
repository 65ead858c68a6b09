"""The protocol of a treatment: a frozen value with a few short methods that treat a tensor and predict the error.

A new method is one file with one dataclass, a `Treatment`, or a `Coded` one if its values have codes of few bits.  Its
`kind` enters the registry, so that plans can name it; what a plan may hold in its fields is at the end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..errors import InvalidType, InvalidValue, nearest_name, sentence, shown
from ..files import check_object
from ..laws.law import Values
from ..theory.pruning import check_sparsity
from .statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops import Counted
    from ..ops.coded import Encoded

Numbers = dict[str, float]

RARE = {"rare": True}
"""Metadata of a field that a plan names only where it differs from its default, so that plans stay short."""


class Outcomes(NamedTuple):
    """The possible results of magnitudes: one row for each way to go, one column for each magnitude."""

    values: Values
    probabilities: Values


class Setting(NamedTuple):
    """The arguments of a treatment beside the tensor."""

    numbers: dict[str, Tensor]
    """Its numbers, from statistics of an earlier step."""
    key: Tensor
    """The int64 pair (seed, offset) of its random numbers."""
    memory: Tensor
    """Its own memory, float64, zero at first, to be changed in place."""
    contracted: tuple[int, ...]
    """The dimensions of the tensor that the product sums over; empty if the tensor serves both products."""
    fold: Tensor | None = None
    """float32 factors of channels that are folded into the tensor before it is rounded to levels, and divided out again
    when it is decoded: scales of the other operand that the product sums over.  `Integers` reads them; around any other
    treatment the engine multiplies and divides."""
    fold_dim: int = 1
    """The dimension of these channels."""
    signs: Tensor | None = None
    """A key whose seed names random signs in place of the own one: that of the other operand, where both are
    transformed alike."""


class LevelCodes(NamedTuple):
    """A coded tensor of levels in plain tensors: an element is (code - zero) / scale."""

    codes: Tensor
    parameters: Tensor
    """float32, (2, rows): scales and zeros."""
    counts: Tensor
    """int64: zeros, NaN and saturated elements, and zeros before."""


@dataclass(frozen=True)
class Treatment(ABC):
    """One thing done to an operand of a product.

    A new method needs `apply` and a few words for tables.  Where its numbers follow from statistics it has `numbers`,
    and where a magnitude alone decides what becomes of it, `outcomes`, from which the error is predicted.
    """

    kind: ClassVar[str]
    """Its name in plans."""
    registry: ClassVar[dict[str, type[Treatment]]] = {}
    per_product: ClassVar[bool] = False
    """True if the two products need copies of their own, as it works along the dimension that is summed over."""
    changeable: ClassVar[frozenset[str]] = frozenset()
    """Fields that `Plan.override` may change."""
    reads_fold: ClassVar[bool] = False
    """True if it multiplies by `Setting.fold` and divides by it on its own way, which saves two passes."""

    learns: ClassVar[bool] = False
    """True if a number of its memory is learned: an initial value, and a parameter that is added to it (`Learned`)."""

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if abstract:
            return
        kind = getattr(cls, "kind", None)
        if not isinstance(kind, str) or not kind:
            raise InvalidType(f'{cls.__name__} needs a name for plans: kind: ClassVar[str] = "..."; got {shown(kind)}.')
        Treatment.registry[kind] = cls

    @property
    def number_names(self) -> tuple[str, ...]:
        """The numbers that follow from statistics of an earlier step, in order.

        Without any, a treatment looks at the tensor itself, and begins with the first one.
        """
        return ()

    @property
    def can_encode(self) -> bool:
        """True if its values have codes of at most 8 bits: it is `Coded`, and its fields allow for them."""
        return False

    @property
    def memory_size(self) -> int:
        """The count of numbers that it remembers from one tensor to the next."""
        return 0

    @property
    def unbiased(self) -> bool:
        """True if E[result] = g is claimed, for finite g and to the rounding of the result to its type."""
        return False

    @property
    def makes_zeros(self) -> bool:
        """True if it is there to make zeros, which sparse products skip."""
        return False

    @property
    def overflows(self) -> bool:
        """True if elements beyond its format become infinite, which a dynamic loss scale has to react to."""
        return False

    @property
    def shared_sparsity(self) -> float | None:
        """The sparsity that all layers with this very treatment share, split between two steps; None without one."""
        return None

    @property
    def element_bits(self) -> float | None:
        """Bits of an element in the format that is simulated, a block's scale included; None if it keeps its type."""
        return None

    def numbers(self, statistics: Statistics) -> Numbers:
        """Return the current numbers, by theory: those of `number_names`, and any other that `outcomes` needs."""
        return {}

    @abstractmethod
    def apply(self, g: Tensor, setting: Setting) -> Counted:
        """Return the treated tensor, of the same shape, type and device, with its counts (zeros, NaN, saturated).

        Counts are int64; where they are None, zeros and NaN are counted, and nothing is taken to be saturated.
        """

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        """Return the possible results of each magnitude with their probabilities, which `apply` must meet on average.

        None where they depend on more than the magnitude, such as the row or the block in which it stands.
        """
        return None

    @property
    def bounded_by(self) -> Treatment | None:
        """A treatment with at least as much noise, where the law of magnitudes tells only that one's; else None."""
        return None

    def memory_words(self, memory: list[float]) -> Numbers:
        """Return the memory in named numbers, for people."""
        return {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        """Return the memory after the loss scale, and with it the gradients, were multiplied by a factor."""
        return memory

    @abstractmethod
    def __str__(self) -> str:
        """Return a few words for tables."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes this treatment again; fields that have none are refused."""
        try:
            hash(self)
        except TypeError:  # a field is a list or the like
            _check_fields.__wrapped__(self)
        else:
            _check_fields(self)
        return self._to_json()

    def _to_json(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in _arguments(type(self))}
        silent = {
            one.name for one in _arguments(type(self)) if one.metadata.get("rare") and values[one.name] == one.default
        }
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items() if name not in silent}}

    @staticmethod
    def from_json(data: Any) -> Treatment:
        """Return the treatment that `to_json` was given; the exact inverse."""
        if not isinstance(data, dict) or "kind" not in data:
            raise InvalidValue(sentence("a treatment", data, 'an object with a "kind"'))
        kinds = Treatment.registry
        kind = data["kind"]
        if not isinstance(kind, str) or kind not in kinds:
            raise InvalidValue(
                sentence("the kind of a treatment", kind, "one of " + ", ".join(map(repr, kinds)))
                + nearest_name(str(kind), kinds)
            )
        arguments = {name: value for name, value in data.items() if name != "kind"}
        known = _arguments(kinds[kind])
        required = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
        check_object(f"treatment {kind!r}", arguments, required, [one.name for one in known])
        nested = {name: Treatment.from_json(value) for name, value in arguments.items() if isinstance(value, dict)}
        return kinds[kind](**arguments | nested)


Scales = Literal["tensor", "channel", "column", "row", "sample"]
"""The elements that share a scale.

All; those of a channel, the first dimension of a weight; of a column, the second dimension of a gradient; of a row of a
matrix, where all rows have one zero point; of a sample, where codes count from its lowest element.  dW sums over rows
and samples: the steps of rows must be in the gradient before that is rounded.
"""


class Coded(Treatment, abstract=True):
    """A treatment whose values have codes of at most 8 bits; last in its sentence, it gives a coded tensor."""

    @property
    def can_encode(self) -> bool:
        """True unless some field forbids it."""
        return True

    @property
    def level_bits(self) -> int:
        """Bits of the levels that codes stand for, 0 where they stand for none.

        Levels are whole steps from a zero point, which integer products take in any place.
        """
        return 0

    @property
    def levels(self) -> bool:
        """True if codes stand for levels."""
        return self.level_bits > 0

    @property
    def scales(self) -> Scales:
        """The elements that share a scale."""
        return "tensor"

    @property
    def block_levels(self) -> bool:
        """True if codes stand for levels in blocks along the dimension that the product sums over.

        Each block has a scale.  Integer products of linear layers take two such operands.
        """
        return False

    @property
    def rotation(self) -> tuple[int, bool] | None:
        """The blocks of a Hadamard transform around it, and whether their signs are random; None without one.

        Codes are then those of the transformed tensor, which meet an operand that was transformed alike.
        """
        return None

    @property
    def can_fold(self) -> bool:
        """True if it serves tensors whose channels were multiplied by factors: it takes no numbers from statistics."""
        return not self.number_names

    @abstractmethod
    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """Return a coded tensor that decodes to the bits of `apply`, with its counts (zeros, NaN, saturated).

        It draws the same random numbers and changes the memory in the same way, so a tensor is either applied or
        encoded.  Where NaN and -0.0 have no code, `CodedTensor` says what becomes of them.
        """

    def level_codes(self, g: Tensor, setting: Setting) -> LevelCodes | None:
        """Return what `encode` gives in plain tensors, which takes less time; None where only `encode` serves.

        NaN and infinity make the scale NaN, and are counted as NaN.
        """
        return None


def coder(treatments: Sequence[Treatment]) -> Coded | None:
    """Return the treatment by which a sentence gives codes, its last; None if it gives values alone."""
    last = treatments[-1] if treatments else None
    return last if isinstance(last, Coded) and last.can_encode else None


# ------------------------------------------------------------------------------------------------------ fields in plans


def _arguments(kind: type[Treatment]) -> list[Field[Any]]:
    """Return the fields that a treatment is made of; others follow from these."""
    return [one for one in fields(kind) if one.init]


def _plain(value: Any) -> Any:
    """Return the value of a field as JSON has it; formats and the like are their text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Treatment):
        return value._to_json()
    if isinstance(value, Integral):  # one of NumPy, too
        return int(value)
    return float(value) if isinstance(value, Real) and math.isfinite(value) else str(value)


@lru_cache(maxsize=1024)
def _check_fields(treatment: Treatment) -> None:
    """Refuse a treatment that `from_json` would not make again: the engine and plan files have it as JSON."""
    kind = Treatment.registry[treatment.kind]
    if kind is not type(treatment):
        raise InvalidValue(
            f"the kind {treatment.kind!r} belongs to another class, {kind.__module__}.{kind.__qualname__}; give each "
            "treatment a kind of its own."
        )
    try:
        made = Treatment.from_json(treatment._to_json())
        reason = "" if made == treatment else f"its text gives {made!r}"
    except Exception as error:  # whatever a user's class raises for a text in place of a value
        reason = str(error)
    if reason:
        raise InvalidType(
            f"a plan cannot hold {treatment!r}: {reason.rstrip('.')}; write it as a dataclass(frozen=True) whose "
            "fields are numbers, bool, str, None or treatments, or let __post_init__ read the text of their values."
        )


# ------------------------------------------------------------------------------------------------- checks of arguments


def checked_sparsity(value: Any) -> float:
    """Return a target share of zeros as a float, or refuse what is none."""
    if not _is_number(value):
        raise InvalidType(sentence("sparsity", value, "a number above 0 and below 1, such as 0.85"))
    return float(check_sparsity(value))


def checked_number(what: str, value: Any, low: float, high: float) -> float:
    """Return a number above `low` and at most `high` as a float, or refuse what is none."""
    if not _is_number(value):
        raise InvalidType(sentence(what, value, f"a number above {low:g} and at most {high:g}"))
    if not low < value <= high:
        raise InvalidValue(sentence(what, value, f"above {low:g} and at most {high:g}"))
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_choice(what: str, value: Any, valid: Sequence[str]) -> None:
    """Refuse a value that is not one of a few words."""
    if value not in valid:
        raise InvalidValue(
            sentence(what, value, "one of " + ", ".join(map(repr, valid))) + nearest_name(str(value), valid)
        )
