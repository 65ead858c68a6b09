"""Two operators for a layer whose operands are codes: its output, and the products of its backward.

`coded_output` encodes activations and weights, computes Y by the backend in force, and gives the codes that the
backward reads: these are saved in place of the tensors.  `coded_products` treats the gradient and computes dX, dW and
dbias from it and from such codes.  What changes is in small tensors, where torch.compile does not look.

An operand that is not finite has no codes.  Y, and products of such a gradient, are then dense products of the tensor
as it is, and counted.  In the backward activations or weights that were not finite are all NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ops import Counted
from ...ops.contracts import Takes
from ...ops.geometry import Geometry
from ...ops.integer_operands import fold_by
from ...ops.registry import register
from ...treatments import Sentence
from ..coding import Codes, Levelled, applied, in_bytes, in_nibbles, levelled, parsed
from ..slots import COUNTERS, READY, count_fallen_back, count_passed_through, count_treated
from . import dense, integer, multiply, sparse
from .choice import DENSE, INTEGER, MODE, NAMES, SLOTS, SPARSE, TOO_SMALL, UNDECIDED, ZEROS, decide, timed
from .coded_shapes import (
    check_output,
    check_products,
    fake_output,
    fake_products,
    flat,
    image,
    laid,
    owned,
    planar,
    turned_output,
)  # fmt: skip

Need = tuple[bool, bool, bool]
Coded = tuple[Tensor, ...]
Site = tuple[Sentence, Tensor, Tensor, Tensor, Tensor]
"""Sentence, numbers, key, memory and counters of a site."""


# --------------------------------------------------------------------------------------------------------------- output


def _output(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, x_text: str, x_numbers: Tensor, x_key: Tensor, x_memory: Tensor,
    x_counters: Tensor, weight_text: str, weight_numbers: Tensor, weight_key: Tensor, weight_memory: Tensor,
    weight_counters: Tensor, choice: Tensor, turns: bool, packs: bool,
) -> Coded:  # fmt: skip
    """Return Y, and codes, scale and zero of the activations and of the weights.

    Args:
        x, weight, bias: of a linear layer, or of a convolution over one or two dimensions, float32.
        stride, padding, dilation, groups: the geometry of a convolution; empty for a linear layer.
        x_text, ..., weight_counters: the sites of activations and weights.
        choice: the tensor of a `Choice`; it is timed and set here if it is undecided.
        turns: True to give images channels-last, as integer products leave them, whatever the operands' layout.
        packs: True to give the codes of the activations, which have at most 4 bits, two to a byte.
    """
    geometry = planar(stride, padding, dilation, groups)
    operands = image(x), image(weight)
    sites = (
        (parsed(x_text), x_numbers, x_key, x_memory, x_counters),
        (parsed(weight_text), weight_numbers, weight_key, weight_memory, weight_counters),
    )
    codes, finite = [], True
    mode = choice.tolist()[MODE]
    if mode == UNDECIDED:
        before = [site[3].clone() for site in sites]
    for operand, (treatments, numbers, key, memory, counters) in zip(operands, sites, strict=True):
        found = levelled(operand, treatments, numbers, key, memory)
        codes.append(found.codes)
        if not found.finite:
            finite = False
            count_fallen_back(counters)
        count_treated(counters, key, found.counts, operand.numel())
    if not finite:
        y = _dense_output(*operands, bias, geometry)
    else:
        if mode == UNDECIDED:
            mode = _choose_for_output(operands, bias, geometry, sites, before, choice)
        if mode == INTEGER:
            y = integer.output(codes[0], codes[1], bias, geometry)
        else:
            y = _dense_output(codes[0].decode(), codes[1].decode(), bias, geometry)
    # Scale and zero are views of one tensor, and results of an operator are none.
    saved = [part if place == 0 else part.clone() for one in codes for place, part in enumerate(one[:3])]
    if packs:
        saved[0] = in_nibbles(saved[0])
    return (owned(laid(flat(y, stride), turned_output(x, weight, turns))), *saved)


def _choose_for_output(
    operands: tuple[Tensor, Tensor], bias: Tensor | None, geometry: Geometry, sites: tuple[Site, Site],
    memories: list[Tensor], choice: Tensor,
) -> int:  # fmt: skip
    """Time both backends on the operands at hand, and return the faster; encoding is part of either."""
    if _too_small(operands[1], operands[0].numel() // operands[0].shape[1], choice):
        return INTEGER

    def coded() -> tuple[Codes, Codes]:
        x, weight = (
            levelled(operand, treatments, numbers, key, memory.clone()).codes
            for operand, (treatments, numbers, key, _, _), memory in zip(operands, sites, memories, strict=True)
        )
        return x, weight

    def densely() -> None:
        x, weight = coded()
        _dense_output(x.decode(), weight.decode(), bias, geometry)

    return decide(choice, timed(dense=densely, integer=lambda: integer.output(*coded(), bias, geometry)))


def _dense_output(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    if not geometry.stride:
        return x.mm(weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    stride, padding, dilation, groups = geometry
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, (0, 0), groups)


# ------------------------------------------------------------------------------------------------------------- backward


def _products(
    g: Tensor, x_codes: Tensor, x_scale: Tensor, x_zero_point: Tensor, weight_codes: Tensor, weight_scale: Tensor,
    weight_zero_point: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    x_turned: bool, weight_turned: bool, text: str, contracted: Sequence[int], numbers: Tensor, control: Tensor,
    key: Tensor, memory: Tensor, counters: Tensor, choice: Tensor, serving: Sequence[int], folds: bool, *need: bool,
) -> Coded:  # fmt: skip
    """Return dX, dW and dbias.

    Args:
        g: the gradient of the layer's output.
        x_codes, ..., weight_zero_point: from `coded_output`; of an operand that is not needed only the shape is read.
        stride, padding, dilation, groups: the geometry of a convolution; empty for a linear layer.
        x_turned, weight_turned: how dX and dW are laid out; see `is_turned`.
        text, contracted, numbers, control, key, memory, counters: those of the gradient and its site; see `Site.treat`.
        choice: the tensor of a `Choice`; it is timed and set here if it is undecided.
        serving: the backends that serve, dense products besides.
        folds: True if the gradient is multiplied by the steps of the operand that it meets before it is rounded: for dX
            by the weight's, channel by channel, and for dW of a linear layer by those of the activations, row by row.
        need: which of the three are wanted; the others have no elements.
    """
    x_codes = in_bytes(x_codes, groups * weight_codes.shape[1], need[1])
    ready = control.tolist()[READY]
    gradient = Gradient(
        image(g), Codes(x_codes, x_scale, x_zero_point), Codes(weight_codes, weight_scale, weight_zero_point),
        planar(stride, padding, dilation, groups), (parsed(text), numbers, key, memory, counters),
        tuple(contracted), folds, (need[0], need[1], need[2]),
    )  # fmt: skip
    mode = choice.tolist()[MODE] if ready else DENSE
    if mode == UNDECIDED:
        mode = gradient.choose(choice, tuple(serving))
    if not ready:
        count_passed_through(counters)
        results = gradient.by_dense(gradient.g)
    else:
        results = gradient.by(mode)
    return tuple(
        laid(flat(result, stride), turned) if wanted and result.dim() > 1 else result
        for result, turned, wanted in zip(results, (x_turned, weight_turned, False), need, strict=True)
    )


class Gradient:
    """A gradient, the codes that it meets, and the ways to compute its products."""

    def __init__(
        self, g: Tensor, x: Codes, weight: Codes, geometry: Geometry, site: Site, contracted: tuple[int, ...],
        folds: bool, need: Need,
    ) -> None:  # fmt: skip
        self.g, self.x, self.weight, self.geometry, self.need = g, x, weight, geometry, need
        self.treatments, self.numbers, self.key, self.memory, self.counters = site
        self.contracted = contracted
        self.fold_dim = 1 if need[0] else 0
        self.fold = fold_by(weight.step if need[0] else x.step) if folds else None

    def by(self, mode: int) -> Coded:
        """Return dX, dW and dbias by a backend, and count."""
        d_x, d_weight, d_bias = self._by(mode)
        if self.fold is not None and self.need[2]:  # codes have the steps of rows in them, which dbias has no use for
            d_bias = self.g.sum(0)
        return d_x, d_weight, d_bias

    def _by(self, mode: int) -> Coded:
        if mode == INTEGER and (self.x.finite or not self.need[1]) and (self.weight.finite or not self.need[0]):
            found = self._levelled(self.memory)
            count_treated(self.counters, self.key, found.counts, self.g.numel())
            if found.finite:
                return self._by_integers(found.codes)
            count_fallen_back(self.counters)
            return self.by_dense(self.g)
        result, total = self._applied(self.memory)
        count_treated(self.counters, self.key, total, self.g.numel())
        return self.by_lists(result) if mode == SPARSE else self.by_dense(result)

    def choose(self, choice: Tensor, serving: tuple[int, ...]) -> int:
        """Time the backends that serve on the gradient at hand, and return the fastest; treating it is part of each."""
        if _too_small(self.weight.codes, self.g.numel() // self.g.shape[1], choice):
            return INTEGER if INTEGER in serving else DENSE
        if not (bool(self.g.isfinite().all()) and self.x.finite and self.weight.finite):
            return DENSE  # and not decided
        ways: dict[int, Callable[[], object]] = {
            DENSE: lambda: self.by_dense(self._applied(self.memory.clone()).result),
            SPARSE: lambda: self.by_lists(self._applied(self.memory.clone()).result),
            INTEGER: lambda: self._by_integers(self._levelled(self.memory.clone()).codes),
        }
        times = timed(**{NAMES[mode]: ways[mode] for mode in (DENSE, *serving)})
        if SPARSE in serving:
            zeros = int(self._applied(self.memory.clone()).counts[0])
            times = times._replace(zeros=zeros / self.g.numel())
        return decide(choice, times)

    def _by_integers(self, g: Codes) -> Coded:
        need = self.need if self.fold is None else (*self.need[:2], False)
        return integer.products(g, self.fold, self.x, self.weight, self.geometry, need)

    def by_dense(self, g: Tensor) -> Coded:
        """Return the dense products of a gradient."""
        return dense.products(g, *self._decoded(), self.geometry, self.need)

    def by_lists(self, g: Tensor) -> Coded:
        """Return the sparse products of a gradient."""
        return sparse.products(g, *self._decoded(), self.geometry, None, self.key, self.need)[:3]

    def _decoded(self) -> tuple[Tensor, Tensor]:
        """Return activations and weights; in the place of one that is not needed a tensor of its shape."""
        x, weight = (
            codes.decode() if needed else self.g.new_empty(()).expand(codes.codes.shape)
            for codes, needed in ((self.x, self.need[1]), (self.weight, self.need[0]))
        )
        return x, weight

    def _levelled(self, memory: Tensor) -> Levelled:
        site = self.treatments, self.numbers, self.key, memory
        return levelled(self.g, *site, self.contracted, self._factors, self.fold_dim)

    def _applied(self, memory: Tensor) -> Counted:
        site = self.treatments, self.numbers, self.key, memory
        return applied(self.g, *site, self.contracted, self._factors, None, self.fold_dim)

    @property
    def _factors(self) -> Tensor | None:
        return None if self.fold is None else self.fold.factors


# -------------------------------------------------------------------------------------------------------------- layouts


def _too_small(weight: Tensor, rows: int, choice: Tensor) -> bool:
    """Mark a product with too little work to be timed; `rows` are the samples, or pixels, of the layer's output."""
    if rows * weight.numel() >= multiply.LEAST_WORK:
        return False
    choice[ZEROS] = TOO_SMALL
    return True


# --------------------------------------------------------------------------------------------------------- registration

_FLOATS, _LONG = Takes((torch.float32,)), (torch.int64,)
_SITE = {
    "numbers": _FLOATS,
    "key": Takes(_LONG, 2),
    "memory": Takes((torch.float64,)),
    "counters": Takes(_LONG, len(COUNTERS)),
}
_CHOICE = {"choice": Takes(_LONG, SLOTS, anywhere=True)}
register(
    "coded_output(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups,"
    " str x_treatments, Tensor x_numbers, Tensor(a!) x_key, Tensor(b!) x_memory, Tensor(c!) x_counters,"
    " str weight_treatments, Tensor weight_numbers, Tensor(d!) weight_key, Tensor(e!) weight_memory,"
    " Tensor(f!) weight_counters, Tensor(g!) choice, bool turns, bool packs)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _output,
    _output,
    fake_output,
    check_output,
    {"x": _FLOATS, "weight": _FLOATS, "bias": _FLOATS, **_CHOICE}
    | {f"{side}_{name}": takes for side in ("x", "weight") for name, takes in _SITE.items()},
)
register(
    "coded_products(Tensor g, Tensor x_codes, Tensor x_scale, Tensor x_zero_point, Tensor weight_codes,"
    " Tensor weight_scale, Tensor weight_zero_point, int[] stride, int[] padding, int[] dilation, int groups,"
    " bool x_turned, bool weight_turned, str treatments, int[] contracted, Tensor numbers, Tensor control,"
    " Tensor(a!) key, Tensor(b!) memory,"
    " Tensor(c!) counters, Tensor(d!) choice, int[] serving, bool folds, bool need_x, bool need_weight, bool need_bias)"
    " -> (Tensor, Tensor, Tensor)",
    _products,
    _products,
    fake_products,
    check_products,
    {
        "g": _FLOATS,
        **{f"{side}_codes": Takes((torch.uint8,)) for side in ("x", "weight")},
        **{f"{side}_{name}": _FLOATS for side in ("x", "weight") for name in ("scale",)},
        **{f"{side}_zero_point": Takes((torch.float32,), 1) for side in ("x", "weight")},
        "control": Takes(_LONG, 2, anywhere=True),
        **_SITE,
        **_CHOICE,
    },
)
