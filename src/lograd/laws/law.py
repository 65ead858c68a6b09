"""The interface of a law of x = |g|, the magnitude of a nonzero gradient element: cdf, quantile and partial moments.

Everything that the theory computes follows from M_k(t) = E[x^k ; x <= t].  A law is a small final class that knows
these integrals.  Parameters may be arrays, one entry per layer: then every method broadcasts over them, so that a
thousand layers cost one call.
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
"""Draws along one axis of a sample: 32 GB."""


@dataclass(frozen=True, eq=False)
class Law(ABC):
    """A law of positive magnitudes.

    `count` and `zeros` say what a fitted law was fitted to: nonzero elements used, and exact zeros left out.  Both are
    0 for a law that was built from its parameters, and arrays for a stack.  They describe the data and not the law, so
    they take no part in comparison (but for `Empirical`, which is its data).
    """

    count: Any = field(default=0, kw_only=True)
    zeros: Any = field(default=0, kw_only=True)
    parameters: ClassVar[tuple[str, ...]]
    """Names of the fields that define the law, all broadcastable against each other."""
    family: ClassVar[Any]
    """Laws of one family can be stacked: the class, and for a law that wraps another also that one's family."""

    def __init_subclass__(cls) -> None:
        if "family" not in vars(cls):
            cls.family = (cls,)

    @abstractmethod
    def cdf(self, t: ArrayLike) -> Values:
        """F(t) = P(x <= t)."""

    @abstractmethod
    def quantile(self, p: ArrayLike) -> Values:
        """The inverse of `cdf`."""

    @abstractmethod
    def interval_moment(self, order: Order, low: ArrayLike, high: ArrayLike) -> Values:
        """E[x^order ; low < x <= high], without the cancellation of a difference of two partial moments.

        It is the primitive of every law: E[1/x] on an interval away from zero exists where M_{-1} does not.
        """

    @classmethod
    @abstractmethod
    def fit(cls: type[SomeLaw], x: Any) -> SomeLaw:
        """The law of this family for the nonzero magnitudes of an array or tensor."""

    @property
    @abstractmethod
    def log_mean(self) -> Values:
        """E[ln x]."""

    @property
    @abstractmethod
    def log_std(self) -> Values:
        """The standard deviation of ln x."""

    def partial_moment(self, order: Order, t: ArrayLike) -> Values:
        """M_order(t) = E[x^order ; x <= t] for order -1, 0, 1, 2; `t` may be infinite."""
        return self.interval_moment(order, 0.0, t)

    def moment(self, order: Order) -> Values:
        """E[x^order]."""
        return self.interval_moment(order, 0.0, np.inf)

    @property
    def maximum(self) -> Values:
        """The largest magnitude that the law allows; infinite for most."""
        return values(np.broadcast_to(np.inf, self.shape))

    def expected_max(self, count: ArrayLike) -> Values:
        """The level where the largest of `count` independent elements is to be expected: the quantile n / (n + 1)."""
        n = elements(count)
        return self.quantile(n / (n + 1))  # the mean rank of the largest of n

    def sample(self, size: int | tuple[int, ...], seed: int | np.random.Generator = 0) -> Values:
        """Independent magnitudes, by inversion of the cdf; one column per entry of an array-valued law."""
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
        """Exact zeros as a share of the elements that were fitted; 0 for a law built from its parameters."""
        return values(np.divide(self.zeros, np.maximum(np.add(self.zeros, self.count), 1)))

    @classmethod
    def stack(cls: type[SomeLaw], laws: Sequence[SomeLaw]) -> SomeLaw:
        """One law with array parameters from many scalar laws of this family."""
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
    """Float64 for the caller: an array, or a NumPy scalar where nothing was an array."""
    result: Values = np.asarray(x, dtype=np.float64)[()]
    return result


def parameter(what: str, value: Any, *, low: float = -np.inf, inclusive: bool = False) -> Any:
    """A finite law parameter above `low`: a float, or a read-only float64 array with one entry per layer."""
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
    """Numbers as a float64 array; text, truth values, complex numbers and None are none."""
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
    """Numbers of elements, at least one."""
    array = real("count", count)
    if not np.all(np.isfinite(array)):
        raise InvalidValue(sentence("count", count, "finite"))
    return np.maximum(array, 1.0)


def check_law(law: Any) -> None:
    if not isinstance(law, Law):
        raise InvalidType(sentence("law", law, "a Law such as LogNormal(0, 2)"))


def probabilities(p: ArrayLike) -> Values:
    array = real("a probability", p)
    if not np.all((array >= 0) & (array <= 1)):
        raise InvalidValue(sentence("a probability", p, "between 0 and 1"))
    return array


def check_interval(order: int, low: ArrayLike, high: ArrayLike) -> tuple[Values, Values]:
    """Both ends as float64, the low one not below zero and not above the high one."""
    if isinstance(order, bool) or np.ndim(order) or order not in (-1, 0, 1, 2):
        raise InvalidValue(sentence("order of a moment", order, "-1, 0, 1 or 2"))
    low_, high_ = real("the low end of an interval", low), real("the high end of an interval", high)
    if np.isnan(low_).any() or np.isnan(high_).any():
        raise InvalidValue("a moment needs numbers for the ends of its interval; got NaN.")
    low_ = np.maximum(low_, 0.0)
    return low_, np.maximum(high_, low_)


def diverges(law: Law, order: int, where: np.bool_ | NDArray[np.bool_], reason: str) -> None:
    """Raise if the moment does not exist anywhere in the request."""
    if np.any(where):
        raise MomentDoesNotExist(f"E[x^{order}] of {law} does not exist on this interval: {reason}.")


def finite(law: Law, order: int, value: Values) -> Values:
    """The value, unless it left the range of float64."""
    if not np.all(np.isfinite(value)):
        raise MomentDoesNotExist(
            f"E[x^{order}] of {law} is beyond the largest float64, {np.finfo(np.float64).max:.3g}; "
            "measure the gradient in a larger unit or use a truncated law."
        )
    return values(value)


def to_numpy(x: Any) -> NDArray[Any]:
    """A real array from an array, a list or a tensor of any type and device."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().resolve_neg()
        if not x.is_complex():
            x = (x if x.dtype.itemsize == 8 else x.float()).numpy()
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise TypeError("not real numbers")
    return array


def magnitudes(x: Any, purpose: str) -> tuple[Values, int]:
    """The nonzero |x| as float64, flat, and the number of exact zeros, of an array or a tensor.

    Tensors are recognised by their methods, so that this layer needs no torch.
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
    """The mean of x^order over x uniform on [low, high], 0 <= low <= high."""
    if order == -1:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return np.where(high > low, np.log1p((high - low) / low) / (high - low), 1 / low)
    powers = {0: np.ones_like(low), 1: (low + high) / 2, 2: (low * low + low * high + high * high) / 3}
    return powers[order]


def spread(what: str, value: float, magnitudes: Values) -> float:
    """A fitted width; the message for data without any."""
    if not value > 0:
        raise InvalidValue(
            f"cannot fit {what}: all {magnitudes.size} nonzero magnitudes equal {magnitudes[0]:.6g}, so the law has no "
            "width; use Empirical, which needs none."
        )
    return value
