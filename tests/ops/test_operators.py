"""Every operator of `lograd.ops` x every backend x types x layouts: equal bits, true fakes, PyTorch's own checks.

Operators join by a row in tests/support/operators.py.  Refusals are in test_ops_contracts.py, over the same rows.
"""

from __future__ import annotations

from typing import Any

import operators as table
import pytest
import torch
from bits import DTYPES, IN_USE, MACHINES, awkward, layouts, machine
from everyday import daily, slow
from operators import arguments, examples, names
from rows import same
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

from lograd import native
from lograd.ops.registry import DISPATCH_KEYS, operators

SHAPE = (4, 3, 5, 32)
LAYOUTS = list(layouts(torch.zeros(SHAPE)))
NAMES = names()


def lay_in(layout: str) -> table.Lay:
    return lambda x: layouts(x)[layout] if x.dim() == 4 else x


def cases(name: str) -> list[tuple[torch.dtype, str, int]]:
    return [(dtype, layout, place) for dtype in DTYPES for layout in LAYOUTS for place in examples(name)]


def some_cases(name: str) -> list[tuple[torch.dtype, str, int]]:
    """One type in every layout and every type in one layout: those of every day."""
    return [case for case in cases(name) if case[0] == DTYPES[0] or case[1] == LAYOUTS[0]]


CASES = {"some": some_cases, "all": cases}


def made(name: str, case: tuple[torch.dtype, str, int]) -> tuple[Any, ...]:
    dtype, layout, place = case
    return arguments(name, awkward(SHAPE, dtype, seed=4), lay_in(layout), place)


def tensors(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results or ())


def test_every_operator_has_a_row() -> None:
    declared = {name for name in operators if operators[name].fake.__module__.startswith("lograd.ops")}
    assert declared == set(NAMES)


def test_every_operator_has_a_kernel_for_every_backend() -> None:
    if native.status().available:
        for name in NAMES:
            assert set(operators[name].kernels) == set(DISPATCH_KEYS), name


@pytest.mark.parametrize(
    ("isa", "which"),
    [
        (IN_USE, "all"),
        *((isa, "some") for isa in MACHINES if isa != IN_USE),
        *(slow((isa, "all")) for isa in MACHINES if isa != IN_USE),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_give_the_bits_of_the_reference(name: str, isa: tuple[str, int], which: str) -> None:
    kernels = operators[name].kernels
    for case in CASES[which](name):
        given, expected = made(name, case), made(name, case)
        wanted = tensors(kernels["reference"](*expected))
        with machine(*isa):
            found = tensors(kernels["cpu"](*given))
        pairs = [*zip(found, wanted, strict=True), *pairs_of(given, expected)]
        for one, other in pairs:
            same(one, other, case)
            assert one.stride() == other.stride(), case


def pairs_of(given: tuple[Any, ...], expected: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """Tensors among the arguments, which a kernel may have written."""
    return [
        (one, other) for one, other in zip(given, expected, strict=True) if isinstance(one, Tensor) and one.dim() > 0
    ]


@pytest.mark.parametrize("which", daily(CASES, ["some"]))
@pytest.mark.parametrize("name", NAMES)
def test_fakes_agree_with_what_is_computed(name: str, which: str) -> None:
    """Shape, type and strides."""
    operator = getattr(torch.ops.lograd, name).default
    for case in CASES[which](name):
        given = made(name, case)
        wanted = tensors(operator(*given))
        with FakeTensorMode() as mode:
            convert = mode.from_tensor
            faked = tree_map(lambda part, to=convert: to(part) if isinstance(part, Tensor) else part, given)
            found = tensors(operator(*faked))
        assert [(one.shape, one.dtype, one.stride()) for one in found] == [
            (one.shape, one.dtype, one.stride()) for one in wanted
        ], case


@pytest.mark.parametrize("layout", daily(["contiguous", "channels_last"], ["contiguous"]))
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, layout: str) -> None:
    for dtype in DTYPES[: 2 if layout == "contiguous" else 1]:
        # Without NaN: PyTorch compares results by their values.
        x = awkward(SHAPE, dtype, seed=4).nan_to_num(0.5, 3.0, -3.0).clamp(-1e4, 1e4)
        for place in examples(name)[:2]:
            torch.library.opcheck(getattr(torch.ops.lograd, name).default, arguments(name, x, lay_in(layout), place))
