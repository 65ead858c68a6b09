"""The door to the optional packages behind figures and pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import LogradError


class MissingExtra(LogradError, ImportError):
    """An optional package is needed and is not installed."""


@contextmanager
def plotting(what: str) -> Iterator[None]:
    """Raise MissingExtra where an import inside fails; `what` begins the sentence."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{what} needs {error.name}; install it with: pip install 'lograd[plot]'") from error
