"""`lograd recipes`: treatments by name."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import Json, out, print_json, print_table


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe such as int5-bhq; none for all families.")] = None,
    as_json: Json = False,
) -> None:
    """Treatments by name, each with one line and its reference; or what one name stands for."""
    from ..treatments import ALL_RECIPES, OPERANDS, PRODUCTS, SYMBOLS, describe, recipe, to_json
    from ..treatments.recipes import MODIFIERS

    if name is not None:
        found = recipe(name)
        sites = {
            product: {operand: getattr(getattr(found, product), operand) for operand in OPERANDS[product]}
            for product in PRODUCTS
        }
        if as_json:
            print_json({p: {operand: to_json(part) for operand, part in parts.items()} for p, parts in sites.items()})
            return
        rows = [
            [f"{product} ({SYMBOLS[product]})", operand, describe(part)]
            for product, parts in sites.items()
            for operand, part in parts.items()
        ]
        print_table(name, ["product", "<operand", "<treatment"], rows)
        return
    if as_json:
        columns = ("name", "example", "words", "reference")
        print_json([{column: getattr(entry, column) for column in columns} for entry in ALL_RECIPES])
        return
    rows = [[entry.name, entry.example, entry.words, entry.reference] for entry in ALL_RECIPES]
    print_table("Recipes", ["name", "<example", "<what it does", "<reference"], rows)
    out.print("\nEndings: " + "; ".join(f"-{ending}, {words}" for ending, (words, _) in MODIFIERS.items()) + ".")
    out.print("A+B applies B after A.  A/B treats the gradient by A for dX and by B for dW.")
    out.print(
        "Recipes of all three products leave biases, norms, the first convolution and the last linear layer in "
        "float32; Plan.uniform(name, keep=()) treats these two layers as well."
    )
    out.print("References: lograd cite.")
