"""One sentence for whoever gave us something that cannot work: what was given, what is valid, what to do.

Every error that lograd raises on purpose is a `LogradError` and also the built-in type that a Python programmer would
catch (`ValueError`, `TypeError`, `ArithmeticError`).  The command line prints the sentence and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LogradError(Exception):
    """Base of every error raised on purpose."""


class InvalidValue(LogradError, ValueError):
    """A value of the right type that is outside what is valid."""


class InvalidType(LogradError, TypeError):
    """A value of a type that cannot serve."""


class MomentDoesNotExist(LogradError, ArithmeticError):
    """An integral of a law that diverges, or leaves the range of float64."""


class LogradWarning(UserWarning):
    """Something works, but not as one might think."""


def sentence(what: str, got: Any, expected: str) -> str:
    """`what` must be `expected`, got `got`: the form that all messages share."""
    return f"{what} must be {expected}; got {got if isinstance(got, str) and got.startswith('an ') else shown(got)}."


def shown(value: Any) -> str:
    """A value inside a sentence: on one line, and cut where it is long."""
    text = " ".join(repr(value).split())  # arrays and tensors are printed on several lines
    return text if len(text) <= 120 else text[:117] + "..."


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """A hint ` Did you mean 'mxfp4'?` for a misspelt name, or the empty string."""
    folded = {each.lower(): each for each in valid}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def plural(count: int, noun: str) -> str:
    """`1 layer`, `20 layers`, `1,234 steps`: a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
