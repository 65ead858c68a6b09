"""Floating point formats: sign, exponent and mantissa bits, and the meaning of the lowest and highest codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

from ..errors import InvalidValue, sentence
from .values import Format, Rounding, check_rounding, check_uniform, check_width, round_steps

Specials = Literal["none", "ieee", "fn", "fnuz"]


@final
@dataclass(frozen=True)
class FloatFormat(Format):
    r"""A float of 1 sign bit, `exponent` bits and `mantissa` bits, written "1-exponent-mantissa".

    With E the exponent field, m the mantissa field, M = `mantissa` and b = `bias`, a code stands for

        2^(E - b) (1 + m / 2^M)   if E > 0   (normal)
        2^(1 - b) (m / 2^M)       if E = 0   (subnormal, and zero)

    so a format without mantissa has zero and 2**exponent - 1 powers of two, and no subnormals.  By default no code is
    spent on infinity or NaN: a gradient is scaled into the range, and saturates.

    Nearest rounding sends ties to the even code.  That is the even significand wherever there is a mantissa.  Without
    one every significand is 1 and the exponent field decides: in 1-3-0 the tie 3 goes to 2, the tie 6 to 8.  gfloat and
    IEEE P3109 do the same; torch and ml_dtypes, whose only such format is E8M0, send its ties up ("nearest_away").

    Args:
        exponent: exponent bits, at least 1.
        mantissa: mantissa bits, 0 or more.
        bias: exponent bias; 2**(exponent - 1) - 1 if not given.
        specials: "none"; "ieee": the top exponent holds infinity (m = 0) and NaN (m > 0; a format without mantissa
            has no NaN then); "fn": finite, only the very top code is NaN; "fnuz": as "none", but the code of -0 is NaN.
        signed: False leaves out the sign bit, as in E8M0.
        subnormals: False makes codes with E = 0, but for zero itself, normal numbers 2^(-b) (1 + m / 2^M).
        zero: False gives the all-zero code to the smallest normal number, as in E8M0.

    >>> FloatFormat(exponent=3, mantissa=0).values()[-7:].tolist()
    [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    """

    exponent: int
    mantissa: int
    bias: int | None = None
    specials: Specials = "none"
    signed: bool = True
    subnormals: bool = True
    zero: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", check_width("exponent bits", self.exponent, 1, 11))
        object.__setattr__(self, "mantissa", check_width("mantissa bits", self.mantissa, 0, 52))
        bias = self.default_bias if self.bias is None else self.bias
        object.__setattr__(self, "bias", check_width("bias", bias, -(2**10), 2**10))
        if self.specials not in get_args(Specials):
            raise InvalidValue(sentence("specials", self.specials, "one of 'none', 'ieee', 'fn', 'fnuz'"))
        if self.specials == "fnuz" and not (self.signed and self.zero):
            raise InvalidValue(
                "specials='fnuz' turns the code of -0 into NaN, so the format must have a sign and a zero."
            )
        if not self.zero and self.subnormals:
            raise InvalidValue("zero=False needs subnormals=False: zero is the first of the subnormal codes.")
        if not self.mantissa and self.zero:  # both settings mean the same, so that equal formats compare equal
            object.__setattr__(self, "subnormals", True)
        if self._top_code < 1:
            raise InvalidValue(f"{self} has no finite value but zero; give it more bits or fewer special codes.")
        if self.emax > 1023 or self.emin - self.mantissa < -1074:
            raise InvalidValue(f"{self} reaches beyond float64; choose a bias nearer to {self.default_bias}.")

    @property
    def default_bias(self) -> int:
        """The bias of IEEE 754 for this width of the exponent, 2**(exponent - 1) - 1."""
        return int(2 ** (self.exponent - 1) - 1)

    @property
    def bits(self) -> int:
        """The width of a code, sign included."""
        return int(self.signed) + self.exponent + self.mantissa

    @property
    def emin(self) -> int:
        """The exponent of the smallest normal number."""
        return int(self.subnormals) - self._bias

    @property
    def emax(self) -> int:
        """The exponent of the largest finite number."""
        return (self._top_code >> self.mantissa) - self._bias

    @property
    def max(self) -> float:
        return self.decode(self._top_code)

    @property
    def min_positive(self) -> float:
        """The smallest positive value, subnormal where there are subnormals."""
        return self.decode(1 if self.zero else 0)

    @property
    def _bias(self) -> int:
        return self.default_bias if self.bias is None else self.bias

    @property
    def _sign_bit(self) -> int:
        return int(2 ** (self.exponent + self.mantissa))

    @property
    def _top_code(self) -> int:
        """The code of the largest finite value."""
        special = {"none": 0, "fnuz": 0, "fn": 1, "ieee": int(2**self.mantissa)}[self.specials]
        return self._sign_bit - 1 - special

    @property
    def _nan_code(self) -> int | None:
        if self.specials == "fnuz":
            return self._sign_bit
        has_nan = self.specials == "fn" or (self.specials == "ieee" and self.mantissa > 0)
        return self._sign_bit - 1 if has_nan else None

    def __str__(self) -> str:
        options = [
            "" if self.specials == "none" else self.specials,
            "" if self.bias == self.default_bias else f"bias={self.bias}",
            "" if self.subnormals else "nosubnormals" if self.zero else "nozero",
        ]
        return ":".join([f"{int(self.signed)}-{self.exponent}-{self.mantissa}", *filter(None, options)])

    def decode(self, code: int) -> float:
        check_width(f"a code of {self}", code, 0, 2**self.bits - 1)
        if code == self._nan_code:
            return math.nan
        sign, magnitude = (-1.0, code - self._sign_bit) if code >= self._sign_bit else (1.0, code)
        if magnitude > self._top_code:
            infinite = self.specials == "ieee" and magnitude == self._top_code + 1
            return math.copysign(math.inf if infinite else math.nan, sign)
        if magnitude == 0 and self.zero:
            return math.copysign(0.0, sign)
        field, fraction = divmod(magnitude, 2**self.mantissa)
        if field == 0 and self.subnormals:
            return math.copysign(math.ldexp(fraction, self.emin - self.mantissa), sign)
        return math.copysign(math.ldexp(2**self.mantissa + fraction, field - self._bias - self.mantissa), sign)

    def encode(self, value: float) -> int:
        value = float(value)
        sign = self._sign_bit if math.copysign(1.0, value) < 0 and self.signed else 0
        code: int | None = None
        if math.isnan(value):
            code = self._nan_code
        elif math.isinf(value):
            code = sign + self._top_code + 1 if self.specials == "ieee" and (value > 0 or self.signed) else None
        elif value == 0:
            code = (0 if self.specials == "fnuz" else sign) if self.zero else None
        elif self.round(value) == value:
            exponent = max(math.frexp(value)[1] - 1, self.emin)
            steps = int(math.ldexp(abs(value), self.mantissa - exponent))
            # `steps` of a normal number holds the hidden bit, which carries the missing 1 into the exponent field.
            code = sign + ((exponent + self._bias - 1) << self.mantissa) + steps
        if code is None:
            raise InvalidValue(f"{value!r} is not a value of {self}; round it first, or choose a format that has it.")
        return code

    def round(
        self, x: float, rounding: Rounding = "nearest", *, saturate: bool = True, uniform: float | None = None
    ) -> float:
        check_rounding(rounding)
        draw = check_uniform(rounding, uniform)
        x = float(x)
        if math.isnan(x):
            return x
        if x < 0 and not self.signed:
            return (0.0 if self.zero else self.min_positive) if saturate else math.nan
        rounded = self._round_magnitude(abs(x), rounding, draw) if math.isfinite(x) else math.inf
        if rounded > self.max:
            if saturate or (rounding == "toward_zero" and math.isfinite(x)):
                rounded = self.max
            elif self.specials == "none":
                raise InvalidValue(f"{self} has neither infinity nor NaN, so {x!r} must saturate; use saturate=True.")
            else:
                rounded = math.inf if self.specials == "ieee" else math.nan
        has_sign = self.signed and not (rounded == 0 and self.specials == "fnuz")
        return math.copysign(rounded, x) if has_sign else rounded

    def _round_magnitude(self, x: float, rounding: Rounding, uniform: float) -> float:
        """Round x >= 0 to the grid of its binade, as if there were no largest value."""
        if x < self.min_positive and not self.subnormals:
            # No values lie between zero, if the format has it, and the smallest value.
            return self.min_positive * (
                round_steps(x / self.min_positive, False, rounding, uniform) if self.zero else 1
            )
        exponent = max(math.frexp(x)[1] - 1, self.emin) if x else self.emin
        steps = math.ldexp(x, self.mantissa - exponent)
        whole = math.floor(steps)
        # Ties depend on the code and not on the significand, which is always 1 without mantissa bits.
        odd = whole % 2 == 1 if self.mantissa else whole == 1 and (exponent + self._bias) % 2 == 1
        return math.ldexp(round_steps(steps, odd, rounding, uniform), exponent - self.mantissa)
