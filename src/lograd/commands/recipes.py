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
    from ..treatments import RECIPES, describe, recipe, to_json
    from ..treatments.recipes import MODIFIERS

    if name is not None:
        found = recipe(name)
        tensors = ("gradient for dX", "gradient for dW", "weights that it meets", "activations that it meets")
        if as_json:
            print_json({place: to_json(part) for place, part in zip(found._fields, found, strict=True)})
            return
        rows = [[tensor, describe(part)] for tensor, part in zip(tensors, found, strict=True)]
        print_table(name, ["tensor of a backward product", "treatment"], rows)
        return
    if as_json:
        columns = ("name", "example", "words", "reference")
        print_json([{column: getattr(entry, column) for column in columns} for entry in RECIPES])
        return
    rows = [[entry.name, entry.example, entry.words, entry.reference] for entry in RECIPES]
    print_table("Recipes", ["name", "<example", "<what it does", "<reference"], rows)
    out.print("\nEndings: " + "; ".join(f"-{ending}, {words}" for ending, (words, _) in MODIFIERS.items()) + ".")
    out.print("A+B applies B after A.  A/B treats the gradient by A for dX and by B for dW.")
    out.print("References: lograd cite.")
