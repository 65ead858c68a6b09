"""`LogradCallback("auto")` for Hugging Face's Trainer, `LightningCallback("auto")` for Lightning's.

Each is imported when it is first used, with the library that it is for: a user of one need not have the other.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from .lightning import LightningCallback
    from .trainer import LogradCallback

__all__ = ["LightningCallback", "LogradCallback"]

_MODULES = {"LightningCallback": "lightning", "LogradCallback": "trainer"}


def __getattr__(name: str) -> _typing.Any:
    """`LogradCallback` and `LightningCallback`, on first use."""
    if name in _MODULES:
        return getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'lograd.integrations' has no attribute {name!r}")
