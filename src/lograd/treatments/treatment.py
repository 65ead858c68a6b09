"""The protocol of a treatment: a frozen value that says what is done to a gradient, in a few short methods.

A new method is one file with one dataclass.  Its `kind` enters the registry, so that plans can name it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import InvalidValue, nearest_name, sentence
from ..files.checks import check_flag, check_number, check_object, check_text, check_whole
from ..laws.law import Values
from .statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from ..coded import Encoded
    from ..ops import Counted

Numbers = dict[str, float]

RARE = {"rare": True}
"""Metadata of a field that a plan names only where it differs from its default, so that plans stay short."""


class Outcomes(NamedTuple):
    """What magnitudes become: one row for each way to go, one column for each magnitude."""

    values: Values
    probabilities: Values


class Setting(NamedTuple):
    """What a treatment is given beside the tensor."""

    numbers: dict[str, Tensor]
    """Its numbers, from statistics of an earlier step."""
    key: Tensor
    """The int64 pair (seed, offset) of its random numbers."""
    memory: Tensor
    """Its own memory, float64, zero at first, to be changed in place."""
    contracted: tuple[int, ...]
    """The dimensions of the tensor that the product sums over; empty if the tensor serves both products."""


@dataclass(frozen=True)
class Treatment(ABC):
    """One thing done to a tensor of a backward product, the gradient or the operand that it meets."""

    kind: ClassVar[str]
    """Its name in plans."""
    registry: ClassVar[dict[str, type[Treatment]]] = {}
    per_product: ClassVar[bool] = False
    """Whether the two products need copies of their own, as it works along the dimension that is summed over."""
    changeable: ClassVar[frozenset[str]] = frozenset()
    """Fields that `Plan.override` may change."""
    fuses: ClassVar[bool] = False
    """Whether sparse kernels do it on the way to their lists: stochastic pruning, whose one number is the threshold."""

    def __init_subclass__(cls) -> None:
        Treatment.registry[cls.kind] = cls

    @property
    def number_names(self) -> tuple[str, ...]:
        """The numbers that follow from statistics of an earlier step, in order.

        Without any, a treatment looks at the tensor itself, and begins with the first one.
        """
        return ()

    @property
    def memory_size(self) -> int:
        """How many numbers it remembers from one tensor to the next."""
        return 0

    @property
    def unbiased(self) -> bool:
        """Whether E[result] = g is claimed, for finite g and to the rounding of the result to its type."""
        return False

    @property
    def makes_zeros(self) -> bool:
        """Whether it is there to make zeros, which sparse products skip."""
        return False

    @property
    def overflows(self) -> bool:
        """Whether elements beyond its format become infinite, which a dynamic loss scale has to react to."""
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
        """The current numbers, by theory: those of `number_names`, and any other that `outcomes` needs."""
        return {}

    @abstractmethod
    def apply(self, g: Tensor, setting: Setting) -> Counted:
        """The treated tensor with its counts (zeros, NaN, saturated)."""

    @property
    def can_encode(self) -> bool:
        """True if `encode` serves: every value that `apply` gives has a code of at most 8 bits."""
        return False

    def encode(self, g: Tensor, setting: Setting) -> Encoded:
        """A coded tensor whose decode() is the result of `apply`, bit for bit, with the counts (zeros, NaN, saturated).

        It draws the same random numbers and changes the memory in the same way, so a tensor is either applied or
        encoded.  Where NaN and -0.0 have no code, `CodedTensor` says what becomes of them.
        """
        raise InvalidValue(f"{self} has no codes of at most 8 bits for its values; apply it, or choose a quantizer.")

    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes | None:
        """What each magnitude becomes, and how likely; the expectation that `apply` must meet.

        None where that depends on more than the magnitude, such as the row or the block in which it stands.
        """
        return None

    def memory_words(self, memory: list[float]) -> Numbers:
        """What the memory says to people."""
        return {}

    def rescaled(self, memory: Tensor, factor: float) -> Tensor:
        """The memory after the loss scale, and with it the gradients, were multiplied by a factor."""
        return memory

    @abstractmethod
    def __str__(self) -> str:
        """A few words for tables."""

    def to_json(self) -> dict[str, Any]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        silent = {one.name for one in fields(self) if one.metadata.get("rare") and values[one.name] == one.default}
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items() if name not in silent}}

    @staticmethod
    def from_json(data: Any) -> Treatment:
        """The exact inverse of `to_json`."""
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
        valid = [one.name for one in fields(kinds[kind])]
        required = [one.name for one in fields(kinds[kind]) if one.default is MISSING]
        check_object(f"treatment {kind!r}", arguments, required, valid)
        for one in fields(kinds[kind]):
            if one.name in arguments:
                check = _CHECKS.get(str(one.type), check_text)  # formats, rules and choices are texts
                check(f"{one.name} of treatment {kind!r}", arguments[one.name])
        return kinds[kind](**arguments)


def _check_nested(what: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidValue(sentence(what, value, 'a treatment, an object with a "kind"'))


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "float": check_number,
    "int": check_whole,
    "bool": check_flag,
    "Treatment": _check_nested,
}
"""What stands in JSON for a field, by its annotation."""


def _plain(value: Any) -> Any:
    if isinstance(value, Treatment):
        return value.to_json()
    return value if isinstance(value, float | int) else str(value)
