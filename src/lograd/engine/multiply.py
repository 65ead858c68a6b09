"""The two products of a treated gradient, dense or sparse, whichever is faster: measured once on the layer itself.

Sparse products sum in another order than dense ones, so the backend is part of what a resumed run needs: it is a small
tensor, read and written by one operator that is opaque to torch.compile.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ..errors import InvalidValue, LogradWarning, nearest_name, sentence
from ..ops.arguments import in_type_of
from ..ops.contracts import Takes
from ..ops.library import FLOAT_TYPES, call, flat, register
from ..ops.library import dense as in_memory
from ..ops.sparse_products import (
    check_convolution,
    check_linear,
    convolution_products,
    linear_products,
    sparse_convolution_backward,
    sparse_linear_backward,
)
from ..plan import PRODUCTS
from .choice import faster, unserved, unserved_here
from .clock import BACKWARD
from .slots import COUNTERS, CPU, READY, constant, count_passed_through, count_treated, zeros

Backend = Literal["auto", "sparse", "dense"]
"""How the products of a pruned gradient are computed; "auto" times both and takes the faster."""
UNDECIDED, DENSE, SPARSE = range(3)
MODE, DENSE_TIME, SPARSE_TIME, ZEROS = range(4)
"""Slots of a choice: the backend in force, nanoseconds of both, and zeros per million when they were taken."""
CHANGE = 0.1
"""A share of zeros that differs by so much from the one that was timed makes it worth timing again."""
TOO_SMALL = -1
"""In place of zeros: there was nothing to time."""
PART = 2**20
"""Elements that are pruned at a time while both backends are timed."""
LEAST_WORK = 2**22
"""Multiply-adds of one product, a tenth of a millisecond: below there is nothing to gain, and nothing is timed."""


def check_backend(backend: Backend) -> Backend:
    if backend not in get_args(Backend):
        hint = nearest_name(str(backend), get_args(Backend))
        raise InvalidValue(sentence("backend", backend, "'auto', 'sparse' or 'dense'") + hint)
    return backend


def renamed(products: Backend, backend: Backend) -> Backend:
    """The backend, given under its former name."""
    if products in PRODUCTS:
        raise InvalidValue(
            f"attach has no choice of products, and {products!r} is one; which of dX and dW are treated is part of the "
            f"plan: profile.plan(..., products={products!r})."
        )
    if backend != "auto":
        raise InvalidValue("products is the former name of backend; got both.")
    warnings.warn(
        f"attach(products={products!r}) has a new name; write attach(backend={products!r}).",
        LogradWarning,
        stacklevel=3,
    )
    return products


def why_dense(module: nn.Module) -> str | None:
    """Why a layer has no sparse products; None if it has."""
    like = next(module.parameters(), None)
    if like is None:
        return "it has no parameters"
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    reason = unserved(_weight_shape(module), getattr(module, "groups", 1), transposed)
    # A layer on meta has its device still to come; the operator that multiplies serves any.
    return reason or unserved_here(torch.empty(0, dtype=like.dtype, device=CPU) if like.is_meta else like)


def _weight_shape(module: nn.Module) -> tuple[int, ...]:
    """The shape of the weight, without computing one that is computed, as under spectral_norm."""
    weight = module._parameters.get("weight")
    if weight is None and isinstance(module, nn.modules.conv._ConvNd):
        channels = (module.out_channels, module.in_channels // module.groups)
        if module.transposed:
            channels = (module.in_channels, module.out_channels // module.groups)
        return (*channels, *module.kernel_size)
    return () if weight is None else tuple(weight.shape)


def work_of_element(module: nn.Module) -> float:
    """Multiply-adds that one element of a layer's gradient costs in each product; borders of images not counted."""
    if isinstance(module, nn.modules.conv._ConvNd):
        apart = math.prod(module.stride) if module.transposed else 1
        return module.in_channels / module.groups * math.prod(module.kernel_size) / apart
    if isinstance(module, nn.Linear):
        return float(module.in_features)
    weight = module.get_parameter("weight")  # the Conv1D of transformers
    return float(weight.shape[0])


class Times(NamedTuple):
    """What was measured: milliseconds, and the share of zeros at that time."""

    dense: float
    sparse: float
    zeros: float


class Choice:
    """The backend of the products of a gradient."""

    def __init__(self, backend: Backend) -> None:
        self.fixed = backend != "auto"
        self.tensor = zeros(4, torch.int64, CPU)
        self.tensor[MODE] = SPARSE if backend == "sparse" else UNDECIDED

    @property
    def mode(self) -> int:
        return int(self.tensor[MODE])

    @property
    def times(self) -> Times | None:
        _, dense, sparse, zeros = self.tensor.tolist()
        return Times(dense / 1e6, sparse / 1e6, zeros / 1e6) if dense else None

    def reconsider(self, zeros: float) -> None:
        """Time both again where the share of zeros has changed, and against the backend in force."""
        if self.fixed or self.times is None:
            return
        more = zeros - self.times.zeros if self.mode == DENSE else self.times.zeros - zeros
        if more > CHANGE:
            self.tensor[MODE] = UNDECIDED

    def words(self) -> str:
        if int(self.tensor[ZEROS]) == TOO_SMALL:
            return "dense products, too small to be timed"
        words = {UNDECIDED: "products not timed yet", DENSE: "dense products", SPARSE: "sparse products"}[self.mode]
        if self.times is None:
            return words
        dense, sparse, zeros = self.times
        return f"{words} (dense {dense:.2f} ms, sparse {sparse:.2f} ms at {zeros:.0%} zeros)"


def multiply(
    g: Tensor,
    operands: tuple[Tensor, Tensor],
    geometry: tuple[int, ...],
    threshold: Tensor | None,
    control: Tensor,
    key: Tensor,
    counters: Tensor,
    choice: Tensor,
    need: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """dX, dW and dbias of a gradient, which is pruned and counted on the way if there is a threshold.

    Args:
        operands: the layer's input and its weight; one that is not needed may be any tensor of its shape.
        geometry: stride, padding, dilation and groups of a convolution in one list; empty for a linear layer.
        threshold: of one element; None takes the gradient as it is.
        control, key, counters: those of the layer and its product; see `slots`.
        choice: the tensor of a `Choice`; it is timed and set here if it is undecided.
        need: which of the three are wanted; the others have no elements.
    """
    result: tuple[Tensor, Tensor, Tensor] = call(
        "multiply", g, *operands, geometry, threshold, control, key, counters, choice, *need
    )
    return result


def dense_products(
    g: Tensor, operands: tuple[Tensor, Tensor], geometry: Sequence[int], need: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """dX, dW and dbias of a gradient by the operators that autograd would call."""
    if not geometry:
        return linear_products(g, *operands, need)
    return convolution_products(g, *operands, _unpacked(geometry), need)


def _multiply(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Sequence[int], threshold: Tensor | None, control: Tensor,
    key: Tensor, counters: Tensor, choice: Tensor, *need: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    wanted = (need[0], need[1], need[2])
    ready = bool(control.tolist()[READY]) and g.dtype in FLOAT_TYPES
    limit = None if threshold is None or not ready else in_type_of(g, threshold.reshape(()))

    def sparse() -> tuple[Tensor, ...]:
        if not geometry:
            return sparse_linear_backward(g, x, weight, limit, key, wanted)
        return sparse_convolution_backward(g, x, weight, limit, key, _unpacked(geometry), wanted)

    def dense() -> tuple[Tensor, ...]:
        pruned, counts = g, constant((0, 0, 0, 0), choice.device)
        if limit is not None:
            pruned, counts = call("stochastic_prune", g, limit, key, True)
        return *dense_products(pruned, (x, weight), geometry, wanted), counts

    def dense_in_parts() -> None:
        """Without a pruned copy of the gradient: the step that times both should need no more than the others."""
        for part in () if limit is None else torch.split(flat(in_memory(g)), PART):
            call("stochastic_prune", part, limit, key, True)
        dense_products(g, (x, weight), geometry, wanted)

    mode = choice.tolist()[MODE] if ready else DENSE
    if mode == UNDECIDED and g.numel() * weight[0].numel() < LEAST_WORK:
        mode = DENSE
        choice[ZEROS] = TOO_SMALL
    elif mode == UNDECIDED:
        BACKWARD.disturbed = True
        times = faster(dense_in_parts, sparse)
        mode = SPARSE if times.sparse_wins else DENSE
        share = int(sparse()[3][0]) / g.numel()  # the dense backend does not count those of a gradient taken as it is
        choice.copy_(torch.tensor([mode, times.dense * 1e6, times.sparse * 1e6, share * 1e6], device=CPU))
    *results, counts = sparse() if mode == SPARSE else dense()
    if limit is not None:
        count_treated(counters, key, counts, g.numel())
    elif threshold is not None:
        count_passed_through(counters)
    found = tuple(
        _laid_out(result, like) if is_wanted else result
        for result, like, is_wanted in zip(results, (x, weight, results[2]), need, strict=True)
    )
    BACKWARD.done()
    return found


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """In the layout that tracers were promised: that of `like` where it is dense, as results are."""
    if result.stride() == like.stride():
        return result
    expected = torch.empty_like(like, device="meta")
    return result if result.stride() == expected.stride() else torch.empty_like(like).copy_(result)


def _unpacked(geometry: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    size = (len(geometry) - 1) // 3
    stride, padding, dilation = (tuple(geometry[place * size : (place + 1) * size]) for place in range(3))
    return stride, padding, dilation, geometry[-1]


def _check(g: Tensor, x: Tensor, weight: Tensor, geometry: Sequence[int], *rest: object) -> None:
    if geometry:
        if len(geometry) % 3 != 1:
            raise InvalidValue(
                f"geometry must be empty, or hold stride, padding and dilation of each axis and groups; got {geometry}."
            )
        check_convolution(g, x, weight, None, None, *_unpacked(geometry))
    else:
        check_linear(g, x, weight)


def _fake(g: Tensor, x: Tensor, weight: Tensor, geometry: list[int], *rest: object) -> tuple[Tensor, ...]:
    need_x, need_weight, need_bias = rest[-3:]
    return (
        torch.empty_like(x) if need_x else g.new_empty(0),
        torch.empty_like(weight) if need_weight else g.new_empty(0),
        g.new_empty(weight.shape[0]) if need_bias else g.new_empty(0),
    )


register(
    "multiply(Tensor g, Tensor x, Tensor weight, int[] geometry, Tensor? threshold, Tensor control, Tensor(a!) key,"
    " Tensor(b!) counters, Tensor(c!) choice, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor, Tensor, Tensor)",
    _multiply,
    _multiply,
    _fake,
    _check,
    {
        "g": Takes(),
        "x": Takes(),
        "weight": Takes(),
        "control": Takes((torch.int64,), 2, anywhere=True),
        "counters": Takes((torch.int64,), len(COUNTERS)),
        "choice": Takes((torch.int64,), 4, anywhere=True),
    },
)
