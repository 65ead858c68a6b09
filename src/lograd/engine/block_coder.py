"""The products of one linear layer from levels in blocks, each along the dimension that its product sums over.

Blocks of the backward lie along other dimensions than those of the output, so autograd saves the operands as they are.
"""

from __future__ import annotations

from torch import Tensor

from ..ops.registry import call
from ..treatments import OPERANDS, PRODUCTS, SYMBOLS
from .autograd import Decoded, Form, Gradients, Need, Saved
from .backends.coded_shapes import laid
from .coder import Layer, reason_not_served


class BlockCoder:
    """Encodes the two operands of each product for it alone.

    Args:
        engine: of the layer; `reason_not_blocks` has none.
    """

    def __init__(self, engine: Layer) -> None:
        self.engine = engine
        self.refused = ""
        """The reason for which the last tensors were not coded; empty if they were."""

    def serves(self, x: Tensor, weight: Tensor) -> bool:
        """Return True if these tensors can be coded now."""
        engine = self.engine
        if not (engine.activations.ready and engine.weights.ready):
            return False
        if weight.dim() != 2:
            self.refused = "convolutions of blocks have no integer kernel"
            return False
        self.refused = reason_not_served(x, weight)
        return not self.refused and x.numel() > 0

    def output(self, form: Form, x: Tensor, weight: Tensor, bias: Tensor | None, need: Need) -> tuple[Tensor, ...]:
        """Return Y, and activations and weights as they are, without elements where the backward does not need them."""
        y, _ = self._product("output", x.detach(), form.oriented(weight.detach()), bias, (1, 1))
        return y, x if need[1] else x.new_empty(0), weight if need[0] else weight.new_empty(0)

    def backward(self, form: Form, g: Tensor, saved: Saved, need: Need) -> Gradients:
        """Return dX, dW and dbias from the gradient of the output and the operands."""
        x, weight = saved.tensors
        gradient = self.engine.gradient
        gradient.observe(g)
        d_x = d_weight = d_bias = None
        if need[0]:
            found, _ = self._product("input_gradient", g, form.oriented(weight), None, (1, 0))
            d_x = laid(found, saved.x_turned)
        if need[1]:
            found, d_bias = self._product("weight_gradient", g, x, None, (0, 0), need[2])
            d_weight = form.as_stored(laid(found, saved.weight_turned))
        elif need[2]:
            d_bias = gradient.treated(g, "weight_gradient", (0,)).sum(0)
        return d_x, d_weight, d_bias

    def decoded(self, form: Form, saved: Saved) -> Decoded:
        """Return activations and weights as the engine's `backward` takes them, which treats them itself."""
        return saved.tensors[0], saved.tensors[1], None, None

    def _product(
        self, product: str, a: Tensor, b: Tensor, bias: Tensor | None, summed: tuple[int, int], sums: bool = False
    ) -> tuple[Tensor, Tensor]:
        engine = self.engine
        first, second = (getattr(engine, operand) for operand in OPERANDS[product])
        one, other = first.at[product], second.at[product]
        choice = engine.choices[product if product == "output" else f"{product}.gradient"]
        found: tuple[Tensor, Tensor] = call(
            "block_product", a, b, bias, *summed, one.text, one.numbers, first.control, *one.changing, other.text,
            other.numbers, *other.changing, choice.seen_by(one.held), engine.aligned[product], sums,
        )  # fmt: skip
        return found


def reason_not_blocks(engine: Layer) -> str | None:
    """Return why the operands of a layer do not meet as levels in blocks; None if they do."""
    for product in PRODUCTS:
        sites = {operand: getattr(engine, operand).at[product] for operand in OPERANDS[product]}
        for operand, site in sites.items():
            if site is None or not site.block_levels:
                return f"{operand} of {SYMBOLS[product]} are not rounded to blocks of levels"
        first, second = (site.rotation for site in sites.values())
        if first != second:
            return f"one operand of {SYMBOLS[product]} is under a Hadamard transform that the other is not under"
    return None
