"""lograd: backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.

Formats say what a few bits can represent, laws what a gradient looks like, the theory what follows from the two, and
the operators do it to tensors.  `profile` shows the gradients of a model, a plan says what to do to each layer's, and
`attach` trains with it.  `variance` measures what a plan adds to the variance that gradients have anyway.  `encode` and
`decode` turn gradients into packets and back.
"""

import importlib as _importlib
import typing as _typing

from . import formats, laws, theory
from .errors import InvalidType, InvalidValue, LogradError, MomentDoesNotExist, PacketError
from .formats import BlockFormat, FloatFormat, IdealFormat, IntFormat, parse_format

if _typing.TYPE_CHECKING:
    from . import nn, ops, treatments, wire
    from .acceleration import accelerate
    from .attachment import Guard, Handle, attach
    from .measure import Profile, Variance, observe, profile, variance
    from .plan import LayerPlan, Plan
    from .treatments import register_recipe
    from .weights import low_precision_weights
    from .wire import decode, encode

__version__ = "0.1.0"

__all__ = [
    "BlockFormat",
    "FloatFormat",
    "Guard",
    "Handle",
    "IdealFormat",
    "IntFormat",
    "InvalidType",
    "InvalidValue",
    "LayerPlan",
    "LogradError",
    "MomentDoesNotExist",
    "PacketError",
    "Plan",
    "Profile",
    "Variance",
    "__version__",
    "accelerate",
    "attach",
    "decode",
    "encode",
    "formats",
    "laws",
    "low_precision_weights",
    "nn",
    "observe",
    "ops",
    "parse_format",
    "profile",
    "register_recipe",
    "theory",
    "treatments",
    "variance",
    "wire",
]


# Public names that need torch, which takes a second to import; the theory does not.
_ON_FIRST_USE = {
    "Guard": "lograd.attachment",
    "Handle": "lograd.attachment",
    "LayerPlan": "lograd.plan",
    "Plan": "lograd.plan",
    "Profile": "lograd.measure",
    "Variance": "lograd.measure",
    "accelerate": "lograd.acceleration",
    "attach": "lograd.attachment",
    "decode": "lograd.wire",
    "encode": "lograd.wire",
    "low_precision_weights": "lograd.weights",
    "observe": "lograd.measure",
    "profile": "lograd.measure",
    "register_recipe": "lograd.treatments",
    "variance": "lograd.measure",
}


def __getattr__(name: str) -> _typing.Any:
    """`lograd.ops`, `lograd.Plan` and so on, on first use."""
    if name in ("integrations", "nn", "ops", "treatments", "wire"):
        return _importlib.import_module(f"lograd.{name}")
    if name in _ON_FIRST_USE:
        return getattr(_importlib.import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'lograd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are imported on first use."""
    return sorted(__all__)
