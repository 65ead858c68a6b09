"""`lograd variance`: the variance and the bias that a plan adds to the gradients of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Json, out, print_json, show, warnings_as_sentences
from .profile import Make

PlanFile = Annotated[Path | None, typer.Option(help="A plan from lograd plan.")]
RecipeName = Annotated[str | None, typer.Option(help="A recipe for all layers instead, such as int5-bhq.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
Steps = Annotated[int, typer.Option(help="Minibatches from which their own variance is estimated.")]
Treated = Annotated[int, typer.Option(help="The first so many of them are also run with the plan.")]
Repeats = Annotated[int, typer.Option(help="Draws of random numbers for each of these.")]
Contributions = Annotated[
    bool, typer.Option("--contributions/--no-contributions", help="Also treat one layer at a time.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for variance.json and variance.html; it is made.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a variance in the folder.")]


def variance(
    make: Make,
    plan: PlanFile = None,
    recipe: RecipeName = None,
    seed: Seed = 0,
    steps: Steps = 16,
    treated: Treated = 2,
    repeats: Repeats = 12,
    contributions: Contributions = True,
    output: Output = Path("run"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure the variance and the bias that a plan adds to gradients, beside the variance over minibatches.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from .. import InvalidValue
    from .. import variance as measure
    from ..report.progress import as_lines
    from .loading import folder_for_results, load_model, own_words

    chosen = _plan(plan, recipe)
    if (output / "variance.json").exists() and not overwrite:
        raise InvalidValue(
            f"the folder {output} has a variance already; replace it by --overwrite, or give another folder by -o."
        )
    noise: dict[str, Any] = {
        "steps": steps,
        "treated": treated,
        "repeats": repeats,
        "seed": seed,
        "contributions": contributions,
    }
    with as_lines(not as_json):
        network, batches, loss = load_model(make)
    with as_lines(not as_json), folder_for_results(output) as folder:  # made before the work, not after it
        with warnings_as_sentences(), own_words("a step of the model"):
            found = measure(network, batches, chosen, loss, **noise)
        found.save(folder / "variance.json")
        found.to_html(folder / "variance.html", f"Variance of the gradients of {make}")
    if as_json:
        print_json({"folder": str(folder), **found.to_json()})
        return
    show(found.table())
    out.print()
    show(found.layers_table())
    files = f"\nThe numbers: {folder / 'variance.json'}\nThe page: {folder / 'variance.html'} (open it in a browser)"
    out.print(files)


def _plan(path: Path | None, recipe: str | None) -> Any:
    from .. import InvalidValue, Plan

    if (path is None) == (recipe is None):
        raise InvalidValue("variance needs --plan FILE or --recipe NAME, one of them.")
    if path is None:
        return Plan.uniform(str(recipe))
    with warnings_as_sentences():
        return Plan.load(path)
