"""Gradients over a wire: packets of tensors, pipeline stages that exchange packets, and a hook for data parallelism.

`encode` turns a tensor into a packet, a uint8 tensor, and `decode` makes the tensor again, bit for bit.  A neural
gradient after stochastic pruning takes about 2 bits per element at 90 % zeros; docs/packet-format.md describes the
bytes.  Schedules, process groups and data parallelism are PyTorch's own.
"""

import importlib as _importlib
import typing as _typing

from .packets import DEFAULT_LIMIT, decode, encode, largest, prune_and_encode

if _typing.TYPE_CHECKING:
    from .channel import EdgeCount
    from .hook import HookState, comm_hook
    from .stage import CompressedStage

__all__ = [
    "DEFAULT_LIMIT", "CompressedStage", "EdgeCount", "HookState", "comm_hook", "decode", "encode", "largest",
    "prune_and_encode",
]  # fmt: skip

# torch.distributed takes a second to import, and packets do not need it.
_ON_FIRST_USE = {
    "CompressedStage": "stage",
    "EdgeCount": "channel",
    "HookState": "hook",
    "comm_hook": "hook",
}


def __getattr__(name: str) -> _typing.Any:
    """`CompressedStage`, `comm_hook` and what goes with them, on first use."""
    if name in _ON_FIRST_USE:
        return getattr(_importlib.import_module(f"lograd.wire.{_ON_FIRST_USE[name]}"), name)
    raise AttributeError(f"module 'lograd.wire' has no attribute {name!r}")
