"""The table of operators: one schema, one contract, one fake and a kernel for each backend.

An operator is declared once by `register`, with its kernel in plain PyTorch, the reference, which serves every device,
and its kernel for the CPU, which calls the native module by `run`.  `torch.library` chooses among them by device, and
`call` skips it where it has nothing to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import native
from .contracts import Contract, Takes, check_tensor

_Library: Any = torch.library.Library  # torch leaves it untyped
library = _Library("lograd", "DEF")

Kernel = Callable[..., Any]

DISPATCH_KEYS = {"reference": "CompositeExplicitAutograd", "cpu": "CPU"}
"""The backends, and the key under which PyTorch's dispatcher knows each; the reference serves all other devices."""


@dataclass(frozen=True)
class Operator:
    """A row of the table."""

    name: str
    schema: str
    """The signature, as `torch.library` writes it."""
    contract: Contract
    """The rules for its arguments; every kernel runs behind them where PyTorch's dispatcher calls it."""
    fake: Kernel
    """Gives results without elements, for tracers."""
    kernels: dict[str, Kernel]
    """By backend, as in `DISPATCH_KEYS`."""


operators: dict[str, Operator] = {}
"""All operators of `torch.ops.lograd`, by name."""


def register(
    signature: str,
    reference: Kernel,
    cpu: Kernel | None,
    fake: Kernel,
    check: Callable[..., None] | None = None,
    takes: Mapping[str, Takes] | None = None,
) -> None:
    """Declare an operator.

    An operator records no gradient: its results are those of detached tensors.

    Args:
        signature: name, arguments and results, as `torch.library` writes them.
        reference: the kernel in plain PyTorch, for every device.
        cpu: a kernel for the CPU, which may be the reference itself, so that `call` calls it at once; None where there
            is none.  One of the native module stands in `when_native`.
        fake: gives results without elements, for tracers.
        check: called as check(*arguments) before a kernel runs; refuses arguments that do not fit together.  The fake,
            which has shapes without numbers, does without it.
        takes: rules for single arguments, beside those that `contracts` has for their names.
    """
    name = signature.partition("(")[0]
    library.define(signature)
    contract = Contract(name, getattr(torch.ops.lograd, name).default._schema, takes or {}, check)
    kernels = {"reference": reference} if cpu is None else {"reference": reference, "cpu": cpu}
    operators[name] = Operator(name, signature, contract, fake, kernels)
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    for backend, kernel in kernels.items():
        library.impl(name, contract.guarded(kernel), DISPATCH_KEYS[backend])
    torch.library.register_fake(f"lograd::{name}", contract.guarded(fake, alone=True), lib=library)


def when_native(kernel: Kernel) -> Kernel | None:
    """Return a kernel that calls the native module; None where that module is not in use."""
    return kernel if native.status().available else None


def run(name: str, *arguments: Any, **named: Any) -> Any:
    """Call a kernel of the native module by position or by name; what it takes last is the number of threads.

    Tensors are handed over as the addresses of their elements, and None as 0.
    """
    threads = torch.get_num_threads()
    if named:
        return native.kernel(name)(**{what: _place(what, one) for what, one in named.items()}, threads=threads)
    return native.kernel(name)(*[_place("an argument", one) for one in arguments], threads)


def _place(what: str, one: Any) -> Any:
    if isinstance(one, Tensor):
        return native.place(what, one)
    return 0 if one is None else one


def call(name: str, x: Tensor, *arguments: Any) -> Any:
    """The result of the operator `lograd::name`, whose contract refuses what its kernels do not take.

    PyTorch's dispatcher takes up to 10 microseconds to find a kernel in Python.  So where it would find nothing else on
    its way (plain tensors; no tracing, transform, mode or profiler), the kernel of the CPU is called at once.
    """
    if not torch.compiler.is_compiling():
        operator = operators[name]
        kernel = operator.kernels.get("cpu")
        if kernel is not None and not watched() and _are_plain(x, arguments):
            operator.contract.check(x, *arguments)
            return kernel(x, *arguments)
        check_tensor(operator.contract.first, x)
    return getattr(torch.ops.lograd, name).default(x, *arguments)


def direct(*tensors: Any) -> bool:
    """True where PyTorch's dispatcher would find nothing but a kernel of the CPU for these tensors."""
    if torch.compiler.is_compiling() or watched():
        return False
    return all(type(x) in _PLAIN_CLASSES and _dispatch_keys(x) == _PLAIN_KEYS for x in tensors)


def kernel_of(name: str) -> Kernel:
    """The kernel of an operator for plain tensors on the CPU, without contracts and dispatcher."""
    kernels = operators[name].kernels
    return kernels.get("cpu") or kernels["reference"]


# PyTorch has no public way to ask.  Where a later version lacks one of these, the dispatcher always does the work.
_C: Any = torch._C
try:
    _dispatch_keys = _C._dispatch_keys
    _modes, _function_modes = _C._len_torch_dispatch_stack, _C._is_torch_function_mode_enabled
    _profiler, _tracer = _C._autograd._profiler_enabled, _C._get_tracing_state
    transforming = _C._are_functorch_transforms_active
except AttributeError:
    _dispatch_keys, transforming = None, lambda: False

with torch.inference_mode(False):
    _PLAIN_KEYS = _dispatch_keys(torch.empty(0, device="cpu")) if _dispatch_keys is not None else None


def watched() -> bool:
    """True while a mode, a tracer, a transform or the profiler wants to see each operator."""
    if _dispatch_keys is None or _modes() or _function_modes() or _profiler():
        return True
    return _tracer() is not None or transforming()


_PLAIN_CLASSES = (Tensor, torch.nn.Parameter)


def _are_plain(x: Any, arguments: tuple[Any, ...]) -> bool:
    """True if all tensors lie on the CPU and are what they seem; x tells for sure, a glance will do for the others."""
    for argument in arguments:
        if isinstance(argument, Tensor) and (type(argument) not in _PLAIN_CLASSES or not argument.is_cpu):
            return False
    return type(x) in _PLAIN_CLASSES and bool(_dispatch_keys(x) == _PLAIN_KEYS)
