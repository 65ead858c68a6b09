"""Formats with a name, and the text form of every format: `parse_format(str(f)) == f`."""

from __future__ import annotations

import re

from ..errors import InvalidType, InvalidValue, LogradError, nearest_name
from .block import BlockFormat
from .float import FloatFormat
from .ideal import IdealFormat
from .integer import IntFormat

AnyFormat = FloatFormat | IntFormat | IdealFormat | BlockFormat

_E2M1 = FloatFormat(2, 1)
_E4M3FN = FloatFormat(4, 3, specials="fn")
_E5M2 = FloatFormat(5, 2, specials="ieee")
_E8M0 = FloatFormat(8, 0, specials="fn", signed=False, subnormals=False, zero=False)

CATALOGUE: dict[str, AnyFormat] = {
    "e5m2": _E5M2,
    "e4m3fn": _E4M3FN,
    "e4m3": FloatFormat(4, 3, specials="ieee"),
    "e3m4": FloatFormat(3, 4, specials="ieee"),
    "e5m2fnuz": FloatFormat(5, 2, bias=16, specials="fnuz"),
    "e4m3fnuz": FloatFormat(4, 3, bias=8, specials="fnuz"),
    "e4m3b11fnuz": FloatFormat(4, 3, bias=11, specials="fnuz"),
    "e3m2": FloatFormat(3, 2),
    "e2m3": FloatFormat(2, 3),
    "e2m1": _E2M1,
    "e3m0": FloatFormat(3, 0),
    "e8m0": _E8M0,
    "float16": FloatFormat(5, 10, specials="ieee"),
    "bfloat16": FloatFormat(8, 7, specials="ieee"),
    "float32": FloatFormat(8, 23, specials="ieee"),
    "mxfp8-e5m2": BlockFormat(_E5M2, 32, _E8M0),
    "mxfp8": BlockFormat(_E4M3FN, 32, _E8M0),
    "mxfp6-e2m3": BlockFormat(FloatFormat(2, 3), 32, _E8M0),
    "mxfp6": BlockFormat(FloatFormat(3, 2), 32, _E8M0),
    "mxfp4": BlockFormat(_E2M1, 32, _E8M0),
    "nvfp4": BlockFormat(_E2M1, 16, _E4M3FN),
}

LONGEST = 100
"""The most characters of a text that is parsed."""
_FLOAT = re.compile(r"(?P<sign>[01])-(?P<exponent>\d{1,2})-(?P<mantissa>\d{1,2})(?P<options>(:[a-z]+(=-?\d{1,6})?)*)")
_INT = re.compile(r"(?P<unsigned>u?)int(?P<bits>\d{1,2})(?P<symmetric>:symmetric)?")
_IDEAL = re.compile(r"ideal-(\d{1,2})-(\d{1,2})")


def parse_format(text: str) -> AnyFormat:
    """Return the format of a text: "1-4-1", "int4", "1-4-3:fn", "1-2-1/32/e8m0", or a name of the catalogue.

    >>> parse_format("1-4-1") == FloatFormat(exponent=4, mantissa=1)
    True
    >>> str(parse_format("mxfp4"))
    '1-2-1/32/0-8-0:fn:nozero'
    """
    if not isinstance(text, str):
        raise InvalidType(f"a format text must be a string such as '1-4-1' or 'int4'; got {text!r}.")
    if len(text) > LONGEST:
        raise InvalidValue(f"{text[:40]!r}... is not a format: a text of {len(text)} characters is longer than any.")
    name = text.strip().lower()
    try:
        if name in CATALOGUE:
            return CATALOGUE[name]
        if match := _FLOAT.fullmatch(name):
            return _parse_float(match)
        if match := _INT.fullmatch(name):
            return IntFormat(int(match["bits"]), symmetric=bool(match["symmetric"]), signed=not match["unsigned"])
        if match := _IDEAL.fullmatch(name):
            return IdealFormat(int(match[1]), int(match[2]))
        if name.count("/") == 2:
            return _parse_block(*name.split("/"))
    except LogradError as error:
        raise InvalidValue(f"{text!r} is not a format: {error}") from None
    raise InvalidValue(
        f"{text!r} is not a format; write 1-EXPONENT-MANTISSA such as '1-4-1', 'int4', ELEMENT/SIZE/SCALE, "
        f"or a name that `lograd formats` lists.{nearest_name(name, CATALOGUE)}"
    )


def _parse_float(match: re.Match[str]) -> FloatFormat:
    options: dict[str, str] = {}
    valid = ("ieee", "fn", "fnuz", "bias=NUMBER", "nosubnormals", "nozero")
    for option in filter(None, match["options"].split(":")):
        key, _, value = option.partition("=")
        kind = "specials" if option in ("ieee", "fn", "fnuz") else key
        if kind not in ("specials", "nosubnormals", "nozero") and not (key == "bias" and value):
            raise InvalidValue(f"option {option!r} is not one of {', '.join(valid)}.{nearest_name(option, valid)}")
        if kind in options:
            raise InvalidValue(f"option {option!r} says again what {options[kind]!r} has said.")
        options[kind] = option
    zero = "nozero" not in options
    return FloatFormat(
        int(match["exponent"]),
        int(match["mantissa"]),
        bias=int(options["bias"].partition("=")[2]) if "bias" in options else None,
        specials=options.get("specials", "none"),  # type: ignore[arg-type]  # one of the literals, as checked
        signed=match["sign"] == "1",
        subnormals=zero and "nosubnormals" not in options,
        zero=zero,
    )


def _parse_block(element: str, size: str, scale: str) -> BlockFormat:
    if not size.isdecimal() or len(size) > 9:
        raise InvalidValue(f"the block size {size[:40]!r} is not a whole number of at most nine digits.")
    return BlockFormat(parse_format(element), int(size), parse_format(scale))  # type: ignore[arg-type]  # it checks
