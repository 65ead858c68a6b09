"""The interface of a law of x = |g|, the magnitude of a nonzero gradient element: cdf, quantile and partial moments.

Everything that the theory computes follows from M_k(t) = E[x^k ; x <= t].  A law is a small final class that knows
these integrals.  Parameters may be arrays with one entry per layer; every method then broadcasts over them, so that one
call serves a thousand layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidType, InvalidValue, MomentDoesNotExist, plural, sentence

Values = NDArray[np.float64]
Order = Literal[-1, 0, 1, 2]
SomeLaw = TypeVar("SomeLaw", bound="Law")
MOST_DRAWN = 2**32
"""The most draws along one axis of a sample; they take 32 GB."""


@dataclass(frozen=True, eq=False)
class Law(ABC):
    """Base class of laws of positive magnitudes.

    A fitted law has the number of nonzero elements that it was fitted to as `count`, and that of exact zeros, which
    were left out, as `zeros`.  Both are 0 for a law that was built from its parameters, and arrays for a stack.
    Comparison ignores them, except for that of `Empirical` laws.
    """

    count: Any = field(default=0, kw_only=True)
    zeros: Any = field(default=0, kw_only=True)
    parameters: ClassVar[tuple[str, ...]]
    """Names of the fields that define the law, all broadcastable against each other."""
    family: ClassVar[Any]
    """A tuple that is equal for laws that can be stacked: the class, followed by the family of a wrapped law."""

    def __init_subclass__(cls) -> None:
        if "family" not in vars(cls):
            cls.family = (cls,)

    @abstractmethod
    def cdf(self, t: ArrayLike) -> Values:
        """Return F(t) = P(x <= t)."""

    @abstractmethod
    def quantile(self, p: ArrayLike) -> Values:
        """Return the magnitude t with F(t) = p, the inverse of `cdf`."""

    @abstractmethod
    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        """Return E[x^order ; low < x <= high] for order -1, 0, 1 or 2.

        Each law computes this directly and not as a difference of two partial moments, which would lose digits; and
        E[1/x] on an interval away from zero exists also where M_{-1} does not.
        """

    @classmethod
    @abstractmethod
    def fit(cls: type[SomeLaw], x: Any) -> SomeLaw:
        """Return the law of this family fitted to the nonzero magnitudes of an array or tensor."""

    @property
    @abstractmethod
    def log_mean(self) -> Values:
        """The mean of ln x."""

    @property
    @abstractmethod
    def log_std(self) -> Values:
        """The standard deviation of ln x."""

    def partial_moment(self, order: Order, t: ArrayLike) -> Values:
        """Return M_order(t) = E[x^order ; x <= t] for order -1, 0, 1 or 2; `t` may be infinite."""
        return self.interval_moment(order, 0.0, t)

    def moment(self, order: Order) -> Values:
        """Return E[x^order]."""
        return self.interval_moment(order, 0.0, np.inf)

    @property
    def maximum(self) -> Values:
        """The largest magnitude that the law allows; infinity for most laws."""
        return values(np.broadcast_to(np.inf, self.shape))

    def expected_max(self, count: ArrayLike) -> Values:
        """Return the expected size of the largest of n = `count` independent elements: the quantile n / (n + 1)."""
        n = elements(count)
        return self.quantile(n / (n + 1))  # the mean rank of the largest of n

    def sample(self, size: int | tuple[int, ...], seed: int | np.random.Generator = 0) -> Values:
        """Return independent magnitudes, by inversion of the cdf; a column for each entry of an array-valued law."""
        wanted: Any = size if isinstance(size, tuple | list) else (size,)
        if not all(_is_whole(one) and 0 <= one <= MOST_DRAWN for one in wanted):
            raise InvalidValue(sentence("size", size, f"a whole number from 0 to {MOST_DRAWN:,}, or a tuple of them"))
        if not isinstance(seed, np.random.Generator) and not (_is_whole(seed) and seed >= 0):
            raise InvalidValue(sentence("seed", seed, "a whole number from 0, or a NumPy Generator"))
        ticks = np.random.default_rng(seed).integers(0, 2**53, size=(*wanted, *self.shape))
        return self.quantile((ticks + 0.5) / 2**53)  # never 0 or 1, whose quantiles may be infinite

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters: () for one law, (layers,) for a stack."""
        values = [getattr(self, name) for name in self.parameters]
        if all(type(value) is float for value in values):
            return ()
        return np.broadcast_shapes(*map(np.shape, values))

    @property
    def zero_share(self) -> Values:
        """The share of exact zeros in the fitted data; 0 for a law built from its parameters."""
        return values(np.divide(self.zeros, np.maximum(np.add(self.zeros, self.count), 1)))

    @classmethod
    def stack(cls: type[SomeLaw], laws: Sequence[SomeLaw]) -> SomeLaw:
        """Return one law with array parameters from many scalar laws of this family."""
        columns = {name: np.array([getattr(law, name) for law in laws]) for name in (*cls.parameters, "count", "zeros")}
        return cls(**cast(Any, columns))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.parameters
        )

    def __hash__(self) -> int:
        return hash((type(self), *(np.asarray(getattr(self, name)).tobytes() for name in self.parameters)))

    def _set(self, **values: Any) -> None:
        """Store checked parameters in a frozen dataclass."""
        assert set(values) <= {field.name for field in fields(self)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        try:
            _ = self.shape
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(getattr(self, name))}" for name in self.parameters)
            raise InvalidValue(
                f"parameters of {type(self).__name__} must have matching shapes; got {shapes}."
            ) from None

    def __str__(self) -> str:
        shown = (f"{name}={getattr(self, name):.6g}" for name in self.parameters)
        return f"{type(self).__name__}({', '.join(shown) if not self.shape else plural(self.shape[0], 'layer')})"


def values(x: Any) -> Values:
    """Return float64: an array, or a NumPy scalar for a single number."""
    result: Values = np.asarray(x, dtype=np.float64)[()]
    return result


def parameter(what: str, value: Any, *, low: float = -np.inf, inclusive: bool = False) -> Any:
    """Return a checked law parameter: a float, or a read-only float64 array with one entry per layer.

    Args:
        what: its name in a message.
        value: must be finite and above `low`, or equal to it with `inclusive`.
    """
    array = real(what, value).copy()
    inside = (array >= low) if inclusive else (array > low)
    if not np.all(np.isfinite(array) & inside):
        expected = "finite" if low == -np.inf else f"finite and {'at least' if inclusive else 'above'} {low:g}"
        raise InvalidValue(sentence(what, value, expected))
    if array.ndim == 0:
        return float(array)
    array.flags.writeable = False
    return array


def real(what: str, value: Any) -> Values:
    """Return numbers as a float64 array; text, truth values, complex numbers and None are refused."""
    try:
        array = to_numpy(value)
        if array.dtype.kind != "b":
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        pass
    raise InvalidType(sentence(what, value, "a number or an array of numbers"))


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def elements(count: ArrayLike) -> Values:
    """Return numbers of elements as float64; numbers below 1 become 1."""
    array = real("count", count)
    if not np.all(np.isfinite(array)):
        raise InvalidValue(sentence("count", count, "finite"))
    return np.maximum(array, 1.0)


def check_law(law: Any) -> None:
    """Refuse anything that is no law."""
    if not isinstance(law, Law):
        raise InvalidType(sentence("law", law, "a Law such as LogNormal(0, 2)"))


def probabilities(p: ArrayLike) -> Values:
    """Return probabilities as float64; numbers outside 0 to 1 are refused."""
    array = real("a probability", p)
    if not np.all((array >= 0) & (array <= 1)):
        raise InvalidValue(sentence("a probability", p, "between 0 and 1"))
    return array


def check_interval(order: int, low: ArrayLike, high: ArrayLike) -> tuple[Values, Values]:
    """Return both ends as float64, clipped so that 0 <= low <= high."""
    if isinstance(order, bool) or np.ndim(order) or order not in (-1, 0, 1, 2):
        raise InvalidValue(sentence("order of a moment", order, "-1, 0, 1 or 2"))
    low_, high_ = real("the low end of an interval", low), real("the high end of an interval", high)
    if np.isnan(low_).any() or np.isnan(high_).any():
        raise InvalidValue("a moment needs numbers for the ends of its interval; got NaN.")
    low_ = np.maximum(low_, 0.0)
    return low_, np.maximum(high_, low_)


def diverges(law: Law, order: int, where: np.bool_ | NDArray[np.bool_], reason: str) -> None:
    """Raise MomentDoesNotExist if the moment diverges in any entry."""
    if np.any(where):
        raise MomentDoesNotExist(f"E[x^{order}] of {law} does not exist on this interval: {reason}.")


def finite(law: Law, order: int, value: Values) -> Values:
    """Return the value; raise MomentDoesNotExist if it is beyond the range of float64."""
    if not np.all(np.isfinite(value)):
        raise MomentDoesNotExist(
            f"E[x^{order}] of {law} is beyond the largest float64, {np.finfo(np.float64).max:.3g}; "
            "measure the gradient in a larger unit."
        )
    return values(value)


def to_numpy(x: Any) -> NDArray[Any]:
    """Return a real NumPy array from an array, a list or a tensor of any type and device."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().resolve_neg()
        if not x.is_complex():
            x = (x if x.dtype.itemsize == 8 else x.float()).numpy()
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise TypeError("not real numbers")
    return array


def magnitudes(x: Any, purpose: str) -> tuple[Values, int]:
    """Return the nonzero |x| of an array or tensor as flat float64, and the number of exact zeros.

    Tensors are recognised by their methods, so torch is not needed.

    Args:
        purpose: the beginning of a message, such as "fitting LogNormal".
    """
    try:
        array = np.abs(to_numpy(x)).ravel().astype(np.float64)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        raise InvalidType(sentence(purpose, f"an object of type {type(x).__name__}", "given real numbers")) from None
    if array.size == 0:
        raise InvalidValue(f"{purpose} needs at least one nonzero element; got an empty tensor.")
    if not np.isfinite(array).all():
        nan, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        raise InvalidValue(
            f"{purpose} needs finite elements; got {nan} NaN and {infinite} infinite of {array.size}. "
            "Find where the gradient overflowed, or select the finite elements first."
        )
    nonzero = array[array > 0]
    if nonzero.size == 0:
        raise InvalidValue(f"{purpose} needs at least one nonzero element; all {array.size} are exactly zero.")
    return nonzero, array.size - nonzero.size


def power_mean(order: Order, low: Values, high: Values) -> Values:
    """Return the mean of x^order for x uniform on [low, high], with 0 <= low <= high."""
    if order == -1:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return np.where(high > low, np.log1p((high - low) / low) / (high - low), 1 / low)
    powers = {0: np.ones_like(low), 1: (low + high) / 2, 2: (low * low + low * high + high * high) / 3}
    return powers[order]


def spread(what: str, value: float, magnitudes: Values) -> float:
    """Return a fitted width; refuse 0, which data of one magnitude has."""
    if not value > 0:
        raise InvalidValue(
            f"cannot fit {what}: all {magnitudes.size} nonzero magnitudes equal {magnitudes[0]:.6g}, so the law has no "
            "width; use Empirical, which needs none."
        )
    return value
