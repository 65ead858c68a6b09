"""The protocol of a treatment: a frozen value that says what is done to a gradient, in five short methods.

A new method is one file with one dataclass.  Its `kind` enters the registry, so that plans can name it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import InvalidValue, nearest_name, sentence
from ..laws.law import Values
from .statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops import Counted

Numbers = dict[str, float]


class Outcomes(NamedTuple):
    """What magnitudes become: one row for each way to go, one column for each magnitude."""

    values: Values
    probabilities: Values


@dataclass(frozen=True)
class Treatment(ABC):
    """One thing done to a gradient."""

    kind: ClassVar[str]
    """Its name in plans."""
    number_names: ClassVar[tuple[str, ...]]
    """The numbers that follow from statistics and change during training, in order."""
    registry: ClassVar[dict[str, type[Treatment]]] = {}

    def __init_subclass__(cls) -> None:
        Treatment.registry[cls.kind] = cls

    @abstractmethod
    def numbers(self, statistics: Statistics) -> Numbers:
        """The current numbers, by theory."""

    @abstractmethod
    def apply(self, g: Tensor, numbers: dict[str, Tensor], key: Tensor) -> Counted:
        """The treated gradient with its counts (zeros, NaN, saturated); `key` is the int64 pair (seed, offset)."""

    @abstractmethod
    def outcomes(self, x: Values, numbers: Numbers) -> Outcomes:
        """What each magnitude becomes, and how likely; the expectation that `apply` must meet."""

    @abstractmethod
    def __str__(self) -> str:
        """A few words for tables."""

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {name: value if isinstance(value, float | int) else str(value) for name, value in values.items()}
        return {"kind": self.kind, **plain}

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
        valid = [field.name for field in fields(kinds[kind])]
        for name in arguments:
            if name not in valid:
                raise InvalidValue(
                    f"treatment {kind!r} has no field {name!r}; it has {', '.join(valid)}.{nearest_name(name, valid)}"
                )
        for field in fields(kinds[kind]):
            if field.default is MISSING and field.name not in arguments:
                raise InvalidValue(f"treatment {kind!r} needs its field {field.name!r}; got {sorted(arguments)}.")
        return kinds[kind](**arguments)
