"""The methods among which a plan chooses for each layer: a name, and the layer's plan with the backend of each product.

Backends are named rather than left to "auto", so that a plan made from measured times is carried out as it was timed,
and gives the same bits in every run.  Dense products are a method of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..plan import LayerPlan
from ..treatments import PRODUCTS, Backend, Prune, recipe

DENSE = "dense"
"""The layer as it is, untreated."""
DEFAULT_METHODS = (
    DENSE, "int8", "int6", "int4", "int8-forward", "prune80", "prune90", "prune95", "prune90-dW", "int8+prune90",
)  # fmt: skip
"""The methods that are timed by default."""
_BITS, _PERCENT = r"(?P<bits>[2-8])", r"(?P<percent>\d\d(?:\.\d{1,6})?)"


class _Family(NamedTuple):
    """Methods that differ in bits and sparsity alone."""

    pattern: str
    recipe: str
    backends: dict[str, Backend]
    """By product; "auto" for the others, which then are dense."""


_ALL: dict[str, Backend] = {"output": "integer", "input_gradient": "integer", "weight_gradient": "integer"}
_SPARSE: dict[str, Backend] = {"input_gradient": "sparse", "weight_gradient": "sparse"}
_FAMILIES = (
    _Family(DENSE, "identity", {}),
    _Family(rf"int{_BITS}", "int{bits}-full", _ALL),
    _Family(rf"int{_BITS}-forward", "int{bits}wa", {"output": "integer"}),
    _Family(rf"prune{_PERCENT}", "prune{percent}", _SPARSE),
    _Family(rf"prune{_PERCENT}-dW", "identity/prune{percent}", {"weight_gradient": "sparse"}),
    _Family(rf"int{_BITS}\+prune{_PERCENT}", "int{bits}wa+prune{percent}", {"output": "integer", **_SPARSE}),
)


class Method(NamedTuple):
    """A method by its name, with what it does to a layer."""

    name: str
    plan: LayerPlan
    bits: int | None
    """The width of the forward's operands; None where the forward is exact."""
    sparsity: float | None
    """The share of zeros in the pruned gradient; None where nothing is pruned."""


def method(name: str) -> Method:
    """Return the method of a name.

    - "dense": nothing is treated;
    - "intN": all three products in integers of N bits (the recipe "intN-full");
    - "intN-forward": Y in integers of N bits, gradients and the backward as they are;
    - "pruneNN": the gradient pruned to NN % zeros for both products of the backward, which are sparse;
    - "pruneNN-dW": pruned for dW alone, so that no noise travels to other layers;
    - "intN+pruneNN": Y in integers, the gradient pruned.

    >>> method("int8+prune90").bits, method("int8+prune90").sparsity
    (8, 0.9)
    """
    if not isinstance(name, str):
        raise InvalidType(sentence("a method", name, f"a name such as {', '.join(DEFAULT_METHODS[:3])} or prune90"))
    for family in _FAMILIES:
        if match := re.fullmatch(family.pattern, name, re.ASCII):
            found = {"bits": "", "percent": ""} | match.groupdict()
            plan = LayerPlan.of(recipe(family.recipe.format(**found)))
            changed: Any = {
                product: replace(getattr(plan, product), backend=backend)
                for product, backend in family.backends.items()
            }
            bits, percent = found["bits"], found["percent"]
            sparsity = float(percent) / 100 if percent else None
            return Method(name, replace(plan, **changed), int(bits) if bits else None, sparsity)
    raise InvalidValue(
        f"{name[:60]!r} is not a method; there are dense, intN, intN-forward, pruneNN, pruneNN-dW and intN+pruneNN, "
        f"such as {', '.join(DEFAULT_METHODS[1:])}.{nearest_name(name[:60], DEFAULT_METHODS)}"
    )


def name_of(plan: LayerPlan) -> str:
    """Return the name of the method that a layer's plan carries out; the plan in words where it is none.

    >>> name_of(method("int8+prune90").plan)
    'int8+prune90'
    """
    pruned = [f"prune{100 * one.sparsity:g}" for one in plan.weight_gradient.gradient if isinstance(one, Prune)]
    forwards = [f"int{bits}" for bits in range(2, 9)]
    names = [*forwards, *(f"{one}-forward" for one in forwards)]
    names += [name for one in pruned for name in (one, f"{one}-dW", *(f"{other}+{one}" for other in forwards))]
    products = [getattr(plan, product) for product in PRODUCTS]
    for name in (DENSE, *names):
        known = method(name).plan
        if products == [getattr(known, product) for product in PRODUCTS]:
            return name
    return plan.words()


def check_methods(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of methods to be timed, "dense" first; None stands for `DEFAULT_METHODS`."""
    if names is None:
        return DEFAULT_METHODS
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidType(sentence("methods", names, "a list of names such as ['int8', 'prune90']"))
    return tuple(dict.fromkeys([DENSE, *(method(name).name for name in names)]))
