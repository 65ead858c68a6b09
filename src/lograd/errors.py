"""The exceptions of lograd, and the form of their messages: what was given, what is valid, what to do.

Every error that lograd raises on purpose is a `LogradError` and also the built-in type that a Python programmer would
catch (`ValueError`, `TypeError`, `ArithmeticError`).  The command line prints the sentence and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LogradError(Exception):
    """Base class of every error that lograd raises on purpose."""


class InvalidValue(LogradError, ValueError):
    """A value of the right type that is outside what is valid."""


class InvalidType(LogradError, TypeError):
    """A value of the wrong type."""


class MomentDoesNotExist(LogradError, ArithmeticError):
    """A moment of a law that is infinite, or beyond the range of float64."""


class PacketError(LogradError, ValueError):
    """Bytes that are no packet: cut, changed on the way, or made by something else."""


class LogradWarning(UserWarning):
    """Something works, but maybe not as the user expects."""


def sentence(what: str, got: Any, expected: str) -> str:
    """Return the sentence that most messages consist of.

    >>> sentence("steps", 0, "a whole number from 1 on")
    'steps must be a whole number from 1 on; got 0.'
    """
    return f"{what} must be {expected}; got {got if isinstance(got, str) and got.startswith('an ') else shown(got)}."


def shown(value: Any) -> str:
    """Return a value as text for a message: on one line, and at most 120 characters."""
    text = " ".join(repr(value).split())  # arrays and tensors are printed on several lines
    return text if len(text) <= 120 else text[:117] + "..."


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """Return a hint for a misspelt name, or an empty text if no valid name is similar.

    >>> nearest_name("mxpf4", ["mxfp4", "nvfp4"])
    " Did you mean 'mxfp4'?"
    """
    folded = {each.lower(): each for each in valid}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "layer"), plural(1234, "step"), plural(2, "pass")
    ('1 layer', '1,234 steps', '2 passes')
    """
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"
