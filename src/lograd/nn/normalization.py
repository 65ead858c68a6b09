"""BatchNorm and its ReLU in one pass inside a model: `normalization(model)` answers for its BatchNorm layers.

A mode of PyTorch's functions is open while a BatchNorm layer runs, and answers batch_norm by the native operators.  The
result waits for what the model does with it: a ReLU, of it or of the sum of it and another tensor, is computed in the
same pass, and so is its backward; anything else gets the plain tensor.  A layer whose first results no ReLU takes does
not wait any more.
"""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from .. import native
from ..errors import plural
from ..ops.normalization import in_planes
from ..ops.registry import call, transforming
from .deferred import Normalize, Waiting, aliased, without_waiting
from .running import RunningHandle, WhileRunning

TRIES = 3
"""Results of a layer that wait although no ReLU has taken one."""


def normalization(model: nn.Module) -> NormalizationHandle:
    """Compute BatchNorm in training, with the ReLU behind it, in one pass; from the next forward on.

        handle = lograd.nn.normalization(model)
        ...
        handle.remove()

    As a context it is removed at the end.  Results are those of PyTorch within float32 rounding.

    Args:
        model: any module with BatchNorm layers; float32 on the CPU, other layers are left to PyTorch.
    """
    return NormalizationHandle(model)


@final
class NormalizationHandle(RunningHandle):
    """BatchNorm and ReLU in one pass on a model; `remove` makes the model what it was."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calls = 0
        """Calls of BatchNorm that were answered."""
        self.fused = 0
        """Calls among them whose ReLU was computed in the same pass."""
        layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        self._answers = [_Answers(self) for _ in layers]
        self._running = [_hooked(*each) for each in zip(layers, self._answers, strict=True)]
        self._hook = model.register_forward_hook(self._plainly)

    def __repr__(self) -> str:
        return self._shown(f"{plural(self.calls, 'call')}, {self.fused} with a ReLU")

    def words(self) -> str:
        """Return what was computed in one pass, and what was not, for people."""
        readers = [one.reader for one in self._answers if not one.waits]
        by = ", ".join(sorted(set(readers)))
        read = f"; {plural(len(readers), 'layer')} without, whose result was read by {by}" if readers else ""
        return self._words(f"{plural(self.calls, 'call')}, {self.fused} with a ReLU in the same pass{read}")

    def _plainly(self, model: nn.Module, arguments: Any, output: Any) -> Any:
        """Hook: what leaves the model does not wait."""
        if torch.compiler.is_compiling() or not any(isinstance(one, Waiting) for one in tree_leaves(output)):
            return None
        return without_waiting(output, "the caller of the model")

    def remove(self) -> None:
        """Leave BatchNorm to PyTorch again."""
        while self._running:
            self._running.pop().remove()
        self._hook.remove()


def _hooked(module: nn.Module, answers: _Answers) -> WhileRunning:
    return WhileRunning(module, lambda: answers, lambda one: one is module)


class _Answers(TorchFunctionMode):
    """Answers batch_norm for one layer, and leaves every other function alone."""

    def __init__(self, handle: NormalizationHandle) -> None:
        super().__init__()
        self._handle = handle
        self._fused, self._read = False, 0
        self.reader = ""
        """The name of the last reader."""

    @property
    def waits(self) -> bool:
        """True if the next result waits.

        Checkpointing runs a layer again in the backward, and must find what the forward did.  So a layer whose result a
        ReLU has taken always waits; one without keeps the same tensors for the backward whether it waits or not.
        """
        return self._fused or self._read < TRIES

    def fused(self) -> None:
        """Count a result that a ReLU took."""
        self._handle.fused += 1
        self._fused = True

    def read(self, reader: str) -> None:
        """Note a result that something else took."""
        self._read += 1
        self.reader = reader

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and not torch.compiler.is_compiling():
            return self._answer(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _answer(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        handle, x = self._handle, aliased(input, "batch_norm")
        reason = reason_not_answered(x, (running_mean, running_var, weight, bias), training)
        if reason is not None:
            handle.left_alone[reason] += 1
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        handle.calls += 1
        with torch.no_grad():
            x_in_memory = in_planes(x)
            mean, variance, inverse = call("batch_statistics", x_in_memory.detach(), eps)
            count = x.numel() // x.shape[1]
            for running, found in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
                if running is not None:
                    running.lerp_(found, momentum)
        waits = self.waits and torch.is_grad_enabled()
        normalize: Any = Normalize
        result: Tensor = normalize.apply(x, mean, inverse, weight, bias, eps, self, x_in_memory.stride(), waits)
        return result


def reason_not_answered(x: Tensor, others: tuple[Tensor | None, ...], training: bool) -> str | None:
    """Return why a BatchNorm is left to PyTorch, as a sentence; None if it is not."""
    if not training:
        return "the layer is in evaluation mode."
    if native.kernel("batch_normalize") is None:
        return "the native module is not in use."
    if transforming() or forward_ad._current_level >= 0:
        return "a transform of torch.func is active."
    if _get_current_dispatch_mode() is not None or torch._C._get_tracing_state() is not None:
        return "a mode of PyTorch's dispatcher or a tracer is active."
    if torch.is_inference_mode_enabled() or x.is_inference():
        return "a tensor is one of inference mode."
    for one in (x, *(other for other in others if other is not None)):
        if type(one) not in (Tensor, nn.Parameter):
            return f"a tensor is a {type(one).__name__}."
        if one.dtype != torch.float32 or not one.is_cpu:
            return f"a tensor is {str(one.dtype).removeprefix('torch.')} on {one.device.type}, not float32 on cpu."
    if x.dim() < 2 or x.numel() <= x.shape[1]:
        return "a channel has a single value or none."
    return None
