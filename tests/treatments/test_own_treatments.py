"""Treatments that users write: fields of any annotation, results of `apply`, and one sentence for what cannot be.

Annotations are types here and not texts: this module has no `from __future__ import annotations`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import lograd
from lograd import FloatFormat, InvalidType, InvalidValue, Plan, ops, parse_format
from lograd.plan import LayerPlan
from lograd.treatments import Luq, ProductPlan, Setting, Treatment, apply, from_json, to_json


class Colour(Enum):
    RED = 1


class Own(Treatment):
    """The body that treatments of this file share."""

    kind: ClassVar[str] = "test-own"

    def apply(self, g: torch.Tensor, setting: Setting) -> ops.Counted:
        return ops.Counted(g * 2, None)

    def __str__(self) -> str:
        return self.kind


@pytest.fixture(autouse=True)
def _registered():
    """Kinds of a test are forgotten after it: the tests of all kinds would find them."""
    before = dict(Treatment.registry)
    yield
    Treatment.registry.clear()
    Treatment.registry.update(before)


def annotated(annotation):
    """A treatment class with a field `value` of an annotation."""
    return dataclass(frozen=True)(
        type("Mine", (Own,), {"__annotations__": {"value": annotation}, "kind": "test-mine", "__module__": __name__})
    )


def trained(one, steps=3):
    """The gradient of the weight in the last of some steps with a treatment in the backward."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4)
    own = LayerPlan(input_gradient=ProductPlan(gradient=(one,)), weight_gradient=ProductPlan(gradient=(one,)))
    with lograd.attach(model, Plan(every=own)) as handle:
        for _ in range(steps):
            model.zero_grad()
            model(x).square().sum().backward()
            handle.step()
    return model[0].weight.grad, handle


@pytest.mark.parametrize("value", [4, -4, 0.5, True, "a", None, Luq(3), np.int64(4), np.float32(0.5)], ids=repr)
def test_a_plain_field_comes_back_from_a_plan(value):
    one = annotated(Any)(value)
    assert from_json(to_json((one,))) == (one,)
    gradient, handle = trained(one)
    assert gradient is not None
    assert handle.counters().total.treated == 3


@pytest.mark.parametrize(
    "value", [float("nan"), (1, 2), [1], torch.zeros(2), Colour.RED, FloatFormat(4, 1)], ids=lambda one: str(one)[:9]
)
def test_a_field_that_a_plan_cannot_hold_is_refused_when_it_is_attached(value):
    with pytest.raises(InvalidType, match=r"a plan cannot hold .*let __post_init__ read the text"):
        trained(annotated(Any)(value), steps=0)


def test_a_field_of_another_class_is_read_by_the_treatment_itself():
    @dataclass(frozen=True)
    class Mine(Own):
        format: FloatFormat
        kind: ClassVar[str] = "test-mine"

        def __post_init__(self):
            if isinstance(self.format, str):
                object.__setattr__(self, "format", parse_format(self.format))

    assert trained(Mine(FloatFormat(4, 1)))[0] is not None


def test_fields_with_a_factory_and_those_that_follow_from_others_need_not_be_given():
    @dataclass(frozen=True)
    class Mine(Own):
        bits: int = field(default_factory=lambda: 4)
        levels: tuple = field(init=False, default=(1, 2))
        kind: ClassVar[str] = "test-mine"

    assert to_json((Mine(),)) == [{"kind": "test-mine", "bits": 4}]
    assert from_json([{"kind": "test-mine"}]) == (Mine(),)


def test_a_class_that_is_no_treatment_is_refused_in_a_sentence():
    with pytest.raises(InvalidType, match=r'Nameless needs a name for plans: kind: ClassVar\[str\] = "..."; got None'):
        type("Nameless", (Treatment,), {})

    class Constructed(Own):
        kind: ClassVar[str] = "test-constructed"

        def __init__(self, bits):
            pass

    with pytest.raises(InvalidType, match=r"a plan cannot hold .*dataclass\(frozen=True\)"):
        trained(Constructed(4), steps=0)
    first = annotated(int)(4)
    annotated(int)
    with pytest.raises(InvalidValue, match=r"the kind 'test-mine' belongs to another class"):
        to_json((first,))


def test_a_class_that_is_written_anew_is_the_one_in_force():
    plain, _ = trained(annotated(int)(4))
    again = annotated(int)
    again.apply = lambda self, g, setting: ops.Counted(g * 6, None)
    assert torch.allclose(trained(again(4))[0], 3 * plain)


# -- results of apply --


def returning(make):
    one = annotated(int)
    one.apply = lambda self, g, setting: make(g)
    return one(1)


def test_a_treatment_that_counts_nothing_has_its_zeros_and_nan_counted():
    g = torch.tensor([0.0, 1.0, float("nan"), 0.0])
    result, counts = apply((returning(lambda g: ops.Counted(g * 2, None)),), g)
    assert result.equal(g * 2) or result[:2].equal(g[:2] * 2)
    assert counts.tolist() == [2, 1, 0, 2]
    gradient, handle = trained(returning(lambda g: ops.Counted(g, None)))  # the very tensor, too
    assert gradient is not None
    assert handle.counters().total.treated == 3


WRONG = {
    "bare": (
        lambda g: g,
        r"must return ops.Counted\(result, counts\), with None for .*; got a tensor of float32 \(5, 3\)",
    ),
    "nothing": (lambda g: None, r"must return ops.Counted\(result, counts\).*; got an object of type NoneType"),
    "pair": (lambda g: (g, None), r"must return ops.Counted\(result, counts\).*; got an object of type tuple"),
    "no tensor": (lambda g: ops.Counted(None, None), r"must be like its argument, .*; got an object of type NoneType"),
    "shape": (
        lambda g: ops.Counted(g[:2], None),
        r"a tensor of float32 \(5, 3\) on cpu; got a tensor of float32 \(2, 3\)",
    ),
    "type": (lambda g: ops.Counted(g.double(), None), r"must be like its argument, .*; got a tensor of float64"),
    "device": (lambda g: ops.Counted(g.to("meta"), None), r"must be like its argument, .* on cpu; got .* on meta"),
    "counts": (
        lambda g: ops.Counted(g * 1, 5),
        r"the counts of apply .* must be None, or int64 counts .*; got .* type int",
    ),
    "two": (
        lambda g: ops.Counted(g * 1, torch.zeros(2, dtype=torch.int64)),
        r"in a tensor of 3 .*; got .* int64 \(2,\)",
    ),
    "float": (
        lambda g: ops.Counted(g * 1, torch.zeros(3)),
        r"must be None, or int64 counts .*; got a tensor of float32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_of_apply_is_one_sentence(name):
    make, words = WRONG[name]
    with pytest.raises((InvalidType, InvalidValue), match=words) as refused:
        trained(returning(make))
    assert "apply of treatment 'test-mine'" in str(refused.value)
    with pytest.raises(type(refused.value), match=words):
        apply((returning(make),), torch.randn(5, 3))
