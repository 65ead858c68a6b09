"""Gradients over a wire: pipeline stages whose edges carry packets, and a communication hook for data parallelism.

Schedules, process groups and data parallelism are PyTorch's own; only what travels between ranks is lograd's.
"""

from .channel import EdgeCount
from .faults import LinkError, fail_together
from .hook import HookState, comm_hook
from .stage import CompressedStage

__all__ = ["CompressedStage", "EdgeCount", "HookState", "LinkError", "comm_hook", "fail_together"]
