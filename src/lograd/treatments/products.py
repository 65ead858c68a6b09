"""The three products of a layer, their operands, and the plan of each: a sentence per operand and a backend.

output           Y  = X W       activations, weights
input_gradient   dX = G W       gradient,    weights
weight_gradient  dW = G X       gradient,    activations
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, final, get_args

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from .sentence import Sentence
from .treatment import Coded, Treatment, coder

PRODUCTS = ("output", "input_gradient", "weight_gradient")
"""The three products of a layer."""
BACKWARD = PRODUCTS[1:]
"""The products that a gradient enters."""
OPERANDS = {
    "output": ("activations", "weights"),
    "input_gradient": ("gradient", "weights"),
    "weight_gradient": ("gradient", "activations"),
}
"""The two operands of each product."""
SYMBOLS = {"output": "Y", "input_gradient": "dX", "weight_gradient": "dW"}
"""How tables call the result of each product."""

Backend = Literal["auto", "sparse", "integer", "dense"]
"""How a product is computed; "auto" times those that serve and takes the fastest."""
BACKENDS = get_args(Backend)


def check_backend(backend: Any) -> Backend:
    """Return the name of a backend, or refuse what is none."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise InvalidValue(
            sentence("backend", backend, "'auto', 'sparse', 'integer' or 'dense'")
            + nearest_name(str(backend), BACKENDS)
        )
    return backend  # type: ignore[return-value]


@final
@dataclass(frozen=True)
class ProductPlan:
    """The plan of one product: how its operands are treated and by which backend it is computed.

    Args:
        gradient, weights, activations: the sentence of each operand; empty leaves it as it is.  A product has two of
            the three (`OPERANDS`).
        backend: how the product is computed.  "auto" leaves it to `attach`.
    """

    gradient: Sentence = ()
    weights: Sentence = ()
    activations: Sentence = ()
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        for operand in ("gradient", "weights", "activations"):
            treatments = getattr(self, operand)
            if not isinstance(treatments, tuple) or not all(isinstance(one, Treatment) for one in treatments):
                raise InvalidType(sentence(f"{operand} of a ProductPlan", treatments, "a tuple of treatments"))
        check_backend(self.backend)

    @property
    def treats(self) -> bool:
        """True if any operand is treated."""
        return bool(self.gradient or self.weights or self.activations)

    def map(self, change: Callable[[Sentence], Sentence]) -> ProductPlan:
        """Return the plan with each sentence changed."""
        return replace(
            self, gradient=change(self.gradient), weights=change(self.weights), activations=change(self.activations)
        )

    def then(self, other: ProductPlan) -> ProductPlan:
        """Return the plan that does this and then the other; its backend is the other's, if that names one."""
        return ProductPlan(
            self.gradient + other.gradient,
            self.weights + other.weights,
            self.activations + other.activations,
            self.backend if other.backend == "auto" else other.backend,
        )


AS_IS = ProductPlan()
"""The product of operands that are left as they are."""


class Treated(NamedTuple):
    """The plans of the three products of a layer, as a recipe gives them."""

    output: ProductPlan = AS_IS
    input_gradient: ProductPlan = AS_IS
    weight_gradient: ProductPlan = AS_IS

    def map(self, change: Callable[[Sentence], Sentence]) -> Treated:
        """Return the recipe with each sentence of each product changed."""
        return Treated(*(product.map(change) for product in self))

    def then(self, other: Treated) -> Treated:
        """Return the recipe that does this and then the other, at each site."""
        return Treated(*(one.then(two) for one, two in zip(self, other, strict=True)))

    @property
    def treats(self) -> bool:
        """True if anything is treated."""
        return any(product.treats for product in self)

    def sentences(self) -> Iterator[Sentence]:
        """Yield the sentence of each of the six sites, empty ones included."""
        for name, product in zip(PRODUCTS, self, strict=True):
            for operand in OPERANDS[name]:
                yield getattr(product, operand)


def gradients(input_gradient: Sentence, weight_gradient: Sentence) -> Treated:
    """Return the recipe that treats the gradient alone, in the products for dX and for dW."""
    return Treated(
        input_gradient=ProductPlan(gradient=input_gradient), weight_gradient=ProductPlan(gradient=weight_gradient)
    )


def both(*treatments: Treatment) -> Treated:
    """Return the recipe that treats the gradient alike in the products for dX and dW.

    >>> from lograd.treatments import Prune
    >>> both(Prune(0.85)).weight_gradient.gradient[0].sparsity
    0.85
    """
    return gradients(treatments, treatments)


def meet_as_levels(product: str, first: Sentence, second: Sentence) -> bool:
    """Return True if the operands of a product come out as codes that integer products take.

    >>> from lograd.treatments import recipe
    >>> [meet_as_levels("input_gradient", one.gradient, one.weights) for one in recipe("fqt5-psq")[1:]]
    [True, False]

    Args:
        product: its name, as in `PRODUCTS`.
        first, second: the sentences of its operands, in the order of `OPERANDS`.
    """
    one, other = coder(first), coder(second)
    if one is None or other is None:
        return False
    if one.block_levels and other.block_levels:  # in linear layers
        return one.rotation == other.rotation
    if not other.levels or not (one.levels or (one.scales == "sample" and product == "input_gradient")):
        return False
    if other.scales == "column" or (one.scales == "column" and product != "weight_gradient"):
        return False
    if product == "weight_gradient" and other.scales == "row":
        return can_take_rows(one)
    return product != "input_gradient" or one.can_fold or other.scales != "channel"


def can_take_rows(gradient: Coded) -> bool:
    """Return True if rows of a gradient may be multiplied by the steps of activations before it is rounded to levels.

    Ranges of columns are found after that, so they do not stand in the way.
    """
    return gradient.levels and (gradient.can_fold or gradient.scales == "column")


def with_backends(treated: Treated) -> Treated:
    """Return a recipe with the backend of each product named, so that nothing is timed where it is attached.

    Operands that meet as levels have integer products, and pruned gradients sparse ones; others are left to "auto".

    >>> from lograd.treatments import recipe
    >>> [product.backend for product in with_backends(recipe("int8wa+prune90"))]
    ['integer', 'sparse', 'sparse']
    """
    found = []
    for name, product in zip(PRODUCTS, treated, strict=True):
        operands = (getattr(product, operand) for operand in OPERANDS[name])
        pruned = any(one.makes_zeros for one in product.gradient)
        backend: Backend = "integer" if meet_as_levels(name, *operands) else "sparse" if pruned else product.backend
        found.append(replace(product, backend=backend))
    return Treated(*found)


def check_backward_products(products: str | Iterable[str]) -> tuple[str, ...]:
    """Return one or both names of the products that a gradient enters; "dX" and "dW" will do, others are refused."""
    expected = "'input_gradient', 'weight_gradient' or both"
    if not isinstance(products, Iterable):
        raise InvalidType(sentence("products", products, expected))
    given = (products,) if isinstance(products, str) else tuple(products)
    if not given:
        raise InvalidValue(f"products must be {expected}; got none.")
    known = {SYMBOLS[name]: name for name in BACKWARD} | {name: name for name in BACKWARD}
    names = []
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise InvalidValue(sentence("products", name, expected) + nearest_name(str(name), BACKWARD))
        names.append(known[name])
    return tuple(dict.fromkeys(names))
