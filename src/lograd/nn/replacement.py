"""Attention in integers inside a model: `attention(model)` replaces each scaled_dot_product_attention of its forward.

A mode of PyTorch's functions is open while the model runs, and only that one function is answered otherwise.  Calls
outside of the model are PyTorch's own, and so are those that integers cannot serve, which are counted with the reason.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import plural
from ..formats.values import check_width
from ..ops.registry import transforming
from .running import RunningHandle, WhileRunning
from .softmax_attention import reason_not_attended, scaled_dot_product_attention


def attention(model: nn.Module, bits: int = 8) -> AttentionHandle:
    """Compute the attention of a model in integers, from the next forward on.

        handle = lograd.nn.attention(model, bits=8)
        ...
        handle.remove()

    As a context it is removed at the end.

    Args:
        model: any module whose forward calls torch.nn.functional.scaled_dot_product_attention.
        bits: of all operands, 2 to 8.
    """
    check_width("bits", bits, 2, 8)
    return AttentionHandle(model, bits)


@final
class AttentionHandle(RunningHandle):
    """Attention in integers on a model; `remove` makes the model what it was."""

    def __init__(self, model: nn.Module, bits: int) -> None:
        super().__init__(model)
        self.bits = bits
        self.calls = 0
        """Calls that were computed in integers."""
        mode = _IntegerAttention(self)
        self._running = WhileRunning(model, lambda: mode, _may_attend)

    def __repr__(self) -> str:
        return self._shown(f"{self.bits} bits, {plural(self.calls, 'call')}")

    def words(self) -> str:
        """Return what was computed in integers, and what was not, for people."""
        return self._words(f"{self.bits}-bit integers in forward and backward, {plural(self.calls, 'call')}")

    def remove(self) -> None:
        """Leave attention to PyTorch again."""
        self._running.remove()


def _may_attend(module: nn.Module) -> bool:
    """Return True for modules that may call a function themselves: all but those of torch.nn without parts."""
    return not type(module).__module__.startswith("torch.nn.modules") or any(True for _ in module.children())


class _IntegerAttention(TorchFunctionMode):
    """Answers scaled_dot_product_attention, and leaves every other function alone."""

    def __init__(self, handle: AttentionHandle) -> None:
        super().__init__()
        self._handle = handle
        self._multi_head = _calling(F.multi_head_attention_forward, self._answer)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._answer(*args, **options)
        # nn.MultiheadAttention calls a function of functions, inside of which no mode is open.
        return (self._multi_head if func is F.multi_head_attention_forward else func)(*args, **options)

    def _answer(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        handle = self._handle
        reason = reason_not_attended(query, key, value, attn_mask, dropout_p, is_causal)
        if enable_gqa:
            reason = "several heads of the query share a key (enable_gqa=True)."
        elif transforming():
            reason = "a transform of torch.func is active."
        if reason is not None:
            handle.left_alone[reason] += 1
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        handle.calls += 1
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, bits=handle.bits)


def _calling(original: Any, answer: Any) -> Any:
    """Return a twin of torch's function that calls `answer` in the place of scaled_dot_product_attention."""
    names = {"scaled_dot_product_attention": answer, "has_torch_function": lambda tensors: False}
    twin = FunctionType(
        original.__code__, original.__globals__ | names, original.__name__, original.__defaults__, original.__closure__
    )
    twin.__kwdefaults__ = original.__kwdefaults__
    opaque: Any = torch.compiler.disable  # Dynamo would look its names up in torch.nn.functional
    return opaque(twin)
