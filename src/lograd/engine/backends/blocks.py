"""One operator for a product of a linear layer whose operands are levels in blocks, as in MXFP4 and NVFP4.

Blocks lie along the dimension that the product sums over, so each product encodes its own two operands.  Operands under
one Hadamard transform meet as they were transformed.  What changes is in small tensors, as in `coded`.

A block that is not finite has no codes.  The product is then a dense one of the decoded operands, where all that the
block reaches is NaN, and counted.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ... import ops
from ...errors import InvalidValue
from ...ops import Counted
from ...ops.coded import CodedTensor, Hadamard, Layout
from ...ops.contracts import Takes
from ...ops.integer_kernels import check_numbers
from ...ops.registry import register
from ..coding import NAN, applied, check_sentence, encoded, parsed
from ..slots import COUNTERS, READY, count_fallen_back, count_passed_through, count_treated
from . import multiply
from .choice import DENSE, INTEGER, MODE, RAGGED, SLOTS, TOO_SMALL, UNDECIDED, ZEROS, decide, timed
from .coded_shapes import owned


def _product(
    a: Tensor, b: Tensor, bias: Tensor | None, a_summed: int, b_summed: int, a_treatments: str, a_numbers: Tensor,
    control: Tensor, a_key: Tensor, a_memory: Tensor, a_counters: Tensor, b_treatments: str, b_numbers: Tensor,
    b_key: Tensor, b_memory: Tensor, b_counters: Tensor, choice: Tensor, aligned: bool, need_sums: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the product of two treated matrices, plus a bias, and the sums of the first over its summed dimension.

    Args:
        a, b: float32; a is that operand which comes to the product last: activations, or the gradient.
        a_summed, b_summed: the dimension of each that the product sums over.
        a_treatments, ..., b_counters: their sites; until `control` is ready, a is taken as it is.
        choice: the tensor of a `Choice`; it is timed and set here if it is undecided.
        aligned: True if both are under a Hadamard transform, whose signs are named by the key of a.
        need_sums: True if the sums are wanted; they have no elements otherwise.
    """
    first = Side(a, a_summed, a_treatments, a_numbers, a_key, a_memory, a_counters, None)
    # The key moves on when a is counted, which leaves the seed and so the signs.
    second = Side(b, b_summed, b_treatments, b_numbers, b_key, b_memory, b_counters, a_key if aligned else None)
    ready, whole = bool(control.tolist()[READY]), not aligned or first.whole
    if not whole or choice.tolist()[ZEROS] == RAGGED:
        choice[ZEROS] = 0 if whole else RAGGED
    mode = choice.tolist()[MODE] if ready and whole else DENSE
    if mode == UNDECIDED:
        mode = _choose(first, second, bias, choice)
    if mode == INTEGER:
        coded = [side.counted_codes() for side in (first, second)]
        if all(finite for _, finite in coded):
            result, values = _integer(coded[0][0], coded[1][0], first, second, bias), None
        else:
            values = coded[0][0].decode()
            result = _dense(values, coded[1][0].decode(), first, second, bias)
    else:
        values = first.counted_values() if ready else first.passed_through()
        result = _dense(values, second.counted_values(), first, second, bias)
    sums = a.new_empty(0)
    if need_sums:
        sums = _sums(coded[0][0]) if values is None else values.sum(a_summed)
    return owned(result), sums


class Side:
    """One operand of the product, and the ways to treat it."""

    def __init__(
        self, x: Tensor, summed: int, text: str, numbers: Tensor, key: Tensor, memory: Tensor, counters: Tensor,
        signs: Tensor | None,
    ) -> None:  # fmt: skip
        self.x, self.summed, self.treatments, self.signs = x, summed, parsed(text), signs
        self.numbers, self.key, self.memory, self.counters = numbers, key, memory, counters

    @property
    def whole(self) -> bool:
        """True if the summed dimension is whole blocks of the Hadamard transform.

        Else it is filled up, and what rounding leaves where it was is cut off when it is transformed back.
        """
        rotation = self.treatments[-1].rotation
        return rotation is None or self.x.shape[self.summed] % rotation[0] == 0

    def codes(self, memory: Tensor) -> tuple[CodedTensor, Tensor]:
        """Return the operand as codes, with its counts."""
        return encoded(self.x, self.treatments, self.numbers, self.key, memory, (self.summed,), None, self.signs)

    def values(self, memory: Tensor) -> Counted:
        """Return the treated operand, with its counts."""
        return applied(self.x, self.treatments, self.numbers, self.key, memory, (self.summed,), None, self.signs)

    def counted_codes(self) -> tuple[CodedTensor, bool]:
        """Return the operand as codes, and True if all are of finite elements; count it."""
        coded, counts = self.codes(self.memory)
        finite = not int(counts[NAN])
        if not finite:
            count_fallen_back(self.counters)
        count_treated(self.counters, self.key, counts, self.x.numel())
        return coded, finite

    def counted_values(self) -> Tensor:
        """Return the treated operand, and count it."""
        result, counts = self.values(self.memory)
        count_treated(self.counters, self.key, counts, self.x.numel())
        return result

    def passed_through(self) -> Tensor:
        """Return the operand as it is, and count that."""
        count_passed_through(self.counters)
        return self.x


def _choose(first: Side, second: Side, bias: Tensor | None, choice: Tensor) -> int:
    """Time both backends on the operands at hand, and return the faster; treating them is part of each."""
    if first.x.numel() * (second.x.numel() // second.x.shape[second.summed]) < multiply.LEAST_WORK:
        choice[ZEROS] = TOO_SMALL
        return INTEGER
    if not (bool(first.x.isfinite().all()) and bool(second.x.isfinite().all())):
        return DENSE  # and not decided

    def densely() -> None:
        a, b = (side.values(side.memory.clone()).result for side in (first, second))
        _dense(a, b, first, second, bias)

    def by_codes() -> None:
        a, b = (side.codes(side.memory.clone())[0] for side in (first, second))
        _integer(a, b, first, second, bias)

    return decide(choice, timed(dense=densely, integer=by_codes))


def _dense(a: Tensor, b: Tensor, first: Side, second: Side, bias: Tensor | None) -> Tensor:
    rows, columns = a if first.summed else a.t(), b.t() if second.summed else b
    return rows.mm(columns) if bias is None else torch.addmm(bias, rows, columns)


def _integer(a: CodedTensor, b: CodedTensor, first: Side, second: Side, bias: Tensor | None) -> Tensor:
    """Return the product of codes: Y where both sum over inputs, dX over outputs, dW over samples."""
    a, b = _as_transformed(a), _as_transformed(b)
    if second.summed:
        return ops.integer_linear(a, b, bias)
    d_x, d_weight, _ = ops.integer_linear_backward(
        a, None if first.summed else b, b if first.summed else None, (bool(first.summed), not first.summed, False)
    )
    result = d_x if first.summed else d_weight
    assert result is not None
    return result


def _sums(coded: CodedTensor) -> Tensor:
    """Return the sums over the dimension that the product sums over, without transforming all elements back.

    The sum of a row is its product with ones, and that of transformed rows is one with transformed ones.
    """
    rows = replace(_as_transformed(coded), layout=Layout.of(torch.empty(coded.codes.shape, device="meta"))).decode()
    ones = rows.new_ones(1, rows.shape[1])
    for step in coded.transform:
        if isinstance(step, Hadamard):
            ones = ops.hadamard(ones, step.block, None if step.key is None else step.key[:1])
    return rows.mv(ones[0])


def _as_transformed(coded: CodedTensor) -> CodedTensor:
    """Return the coded tensor of the transformed operand, which is not transformed back."""
    return replace(coded, transform=tuple(step for step in coded.transform if not isinstance(step, Hadamard)))


def _check(
    a: Tensor, b: Tensor, bias: Tensor | None, a_summed: int, b_summed: int, a_treatments: str, a_numbers: Tensor,
    control: Tensor, a_key: Tensor, a_memory: Tensor, a_counters: Tensor, b_treatments: str, b_numbers: Tensor,
    b_key: Tensor, b_memory: Tensor, *rest: object,
) -> None:  # fmt: skip
    if not (a_summed in (0, 1) and b_summed in (0, 1) and a_summed >= b_summed):
        raise InvalidValue(
            f"a product sums over dimensions 1 and 1, 1 and 0 or 0 and 0; got {a_summed} and {b_summed}."
        )
    if a.dim() != 2 or b.dim() != 2 or a.shape[a_summed] != b.shape[b_summed]:
        raise InvalidValue(
            f"a and b must be matrices of one length along what is summed; got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if bias is not None and not b_summed:
        raise InvalidValue("only the output of a layer has a bias, which sums over dimensions 1 and 1.")
    check_numbers("bias", bias, b.shape[1 - b_summed])
    check_sentence(a_treatments, a_numbers, a_memory)
    check_sentence(b_treatments, b_numbers, b_memory)
    for text in (a_treatments, b_treatments):
        if not (parsed(text) and parsed(text)[-1].block_levels):
            raise InvalidValue(f"operands of this product end as levels in blocks; got {text}.")


def _fake(
    a: Tensor, b: Tensor, bias: Tensor | None, a_summed: int, b_summed: int, *rest: object
) -> tuple[Tensor, Tensor]:
    rows = a.shape[1 - a_summed]
    return a.new_empty(rows, b.shape[1 - b_summed]), a.new_empty(rows if rest[-1] else 0)


_SITE = {
    "numbers": Takes((torch.float32,)),
    "key": Takes((torch.int64,), 2),
    "memory": Takes((torch.float64,)),
    "counters": Takes((torch.int64,), len(COUNTERS)),
}
register(
    "block_product(Tensor a, Tensor b, Tensor? bias, int a_summed, int b_summed, str a_treatments, Tensor a_numbers,"
    " Tensor control, Tensor(a!) a_key, Tensor(b!) a_memory, Tensor(c!) a_counters, str b_treatments,"
    " Tensor b_numbers, Tensor(d!) b_key, Tensor(e!) b_memory, Tensor(f!) b_counters, Tensor(g!) choice, bool aligned,"
    " bool need_sums) -> (Tensor, Tensor)",
    _product,
    _product,
    _fake,
    _check,
    {
        **dict.fromkeys(("a", "b", "bias"), Takes((torch.float32,))),
        "control": Takes((torch.int64,), 2, anywhere=True),
        "choice": Takes((torch.int64,), SLOTS, anywhere=True),
        **{f"{side}_{name}": takes for side in ("a", "b") for name, takes in _SITE.items()},
    },
)
