"""Commands for the user's own model: `lograd profile`, `lograd plan` and `lograd variance`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidValue, nearest_name
from .console import Json, out, print_json, show, warnings_as_sentences

if TYPE_CHECKING:  # torch takes seconds to import
    from .. import Profile, Variance

Make = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="A function that returns (model, batches, loss function); the last may be None.",
    ),
]


def profile(
    make: Make,
    steps: Annotated[int, typer.Option(help="Batches to run.")] = 20,
    every: Annotated[int, typer.Option(help="Of so many steps one is observed.")] = 1,
    noise: Annotated[
        int, typer.Option(help="Disturb each layer so often, for lograd plan --allocation noise; 2 are enough.")
    ] = 0,
    times: Annotated[
        bool, typer.Option("--times", help="Time each method in each layer, for lograd plan --noise and --objective.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for profile.npz and profile.html; it is made.")
    ] = Path("run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Look at the gradients of a model: their laws, zeros and formats, layer by layer.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from .. import profile as observe
    from ..report.progress import as_lines
    from .loading import folder_for_results, load_model, own_words

    _check_free(output / "profile.npz", "a profile", overwrite)
    with as_lines(not as_json):
        network, batches, loss = load_model(make)
    with as_lines(not as_json), folder_for_results(output) as folder:  # made before the work, not after it
        with warnings_as_sentences(), own_words("a step of the model"):
            found = observe(network, batches, loss, steps, every=every, noise=noise, times=times)
        found.save(folder / "profile.npz")
        page = _page(found, folder / "profile.html", f"Gradients of {make}")
    if as_json:
        print_json({"folder": str(folder), **found.to_dict()})
        return
    show(found.table())
    if found.menus is not None:
        out.print()
        show(found.menus.table())
    out.print(f"\nThe profile: {folder / 'profile.npz'}\n{page}")


def variance(
    make: Make,
    plan: Annotated[Path | None, typer.Option(help="A plan from lograd plan.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe for all layers instead, such as int5-bhq.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    steps: Annotated[int, typer.Option(help="Minibatches from which their own variance is estimated.")] = 16,
    treated: Annotated[int, typer.Option(help="The first so many of them are also run with the plan.")] = 2,
    repeats: Annotated[int, typer.Option(help="Draws of random numbers for each of these.")] = 12,
    contributions: Annotated[
        bool, typer.Option("--contributions/--no-contributions", help="Also treat one layer at a time.")
    ] = True,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for variance.json and variance.html; it is made.")
    ] = Path("run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a variance in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the variance and the bias that a plan adds to gradients, beside the variance over minibatches.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from .. import Plan
    from .. import variance as measure
    from ..report.progress import as_lines
    from .loading import folder_for_results, load_model, own_words

    if (plan is None) == (recipe is None):
        raise InvalidValue("variance needs --plan FILE or --recipe NAME, one of them.")
    with warnings_as_sentences():
        chosen = Plan.uniform(str(recipe)) if plan is None else Plan.load(plan)
    _check_free(output / "variance.json", "a variance", overwrite)
    with as_lines(not as_json):
        network, batches, loss = load_model(make)
    with as_lines(not as_json), folder_for_results(output) as folder:  # made before the work, not after it
        with warnings_as_sentences(), own_words("a step of the model"):
            found = measure(
                network, batches, chosen, loss, steps=steps, treated=treated, repeats=repeats, seed=seed,
                contributions=contributions,
            )  # fmt: skip
        found.save(folder / "variance.json")
        page = _page(found, folder / "variance.html", f"Variance of the gradients of {make}")
    if as_json:
        print_json({"folder": str(folder), **found.to_dict()})
        return
    show(found.table())
    out.print()
    show(found.layers_table())
    out.print(f"\nThe numbers: {folder / 'variance.json'}\n{page}")


def _page(found: Profile | Variance, path: Path, title: str) -> str:
    """Write the page of a result, and return a sentence on where it is, or on what it needs."""
    from ..report import MissingExtra

    try:
        found.to_html(path, title)
    except MissingExtra as error:
        return f"No page was written: {error}."
    return f"The page: {path} (open it in a browser)"


def _check_free(path: Path, what: str, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise InvalidValue(
            f"the folder {path.parent} has {what} already; replace it by --overwrite, or give another folder by -o."
        )


def plan(
    profile: Annotated[Path, typer.Argument(help="A folder with profile.npz, or the file itself.")],
    noise: Annotated[
        float | None,
        typer.Option(help="The fastest plan that adds at most this much of the minibatch's variance, such as 0.2."),
    ] = None,
    objective: Annotated[str | None, typer.Option(help="progress: the plan with the most progress per second.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="With a goal: choose from these methods or patterns; repeat it.")
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|recommended",
            help="Round to the best float of so many bits; recommended: the fewest with a good cosine in each layer.",
        ),
    ] = None,
    sparsity: Annotated[float | None, typer.Option(help="Prune to skip this share of the work, such as 0.85.")] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            help="uniform: the sparsity in each layer; cosine or noise: over all, split by theory.",
            show_default="noise, if the profile has it, else uniform",
        ),
    ] = None,
    law: Annotated[str, typer.Option(help="Of the threshold: empirical, lognormal or normal.")] = "empirical",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave alone: first, last, a pattern of names, or none.", show_default="last; none with a goal"
        ),
    ] = None,
    products: Annotated[
        list[str] | None,
        typer.Option(
            help="Treat the gradient for dX (input_gradient) or dW (weight_gradient) only.", show_default="both"
        ),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="With --allocation noise: dX and dW of a layer get different sparsity.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Prune all layers, also those whose zeros save no time.")
    ] = False,
    diff: Annotated[Path | None, typer.Option(help="Show what changes from this plan to the new one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The plan; plan.json beside the profile by default.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in that place.")] = False,
    as_json: Json = False,
) -> None:
    """Choose methods, or formats and sparsities, for each layer of a profile, and save them as a plan.

    --noise and --objective are goals, and need a profile of lograd profile --noise 2 --times.
    """
    from .. import Plan, Profile
    from ..files import check_folder
    from .loading import check_same

    if sparsity is None and (allocation is not None or everywhere):
        asked = "--everywhere" if allocation is None else "--allocation"
        raise InvalidValue(f"{asked} says how zeros are made, so it needs --sparsity.")
    source = profile / "profile.npz" if profile.is_dir() else profile
    target = check_folder(output if output is not None else source.parent / "plan.json")
    given = {
        "noise": noise,
        "objective": objective,
        "methods": method or None,
        "bits": None if bits is None else _bits(bits),
        "sparsity": sparsity,
        "allocation": allocation,
        "law": law,
        "keep": [] if keep == ["none"] else keep or None,
        "products": products or None,
        "split": split or None,
        "everywhere": everywhere or None,
    }
    choices: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with warnings_as_sentences():
        other = None if diff is None else Plan.load(diff)  # first: it may be the file that is replaced
        made = Profile.load(source).plan(**choices)
    check_same(target, made, overwrite=overwrite)
    made.save(target)
    changes = None if other is None else other.diff(made).splitlines()
    if as_json:
        print_json({"path": str(target), "hash": made.hash(), "plan": made.to_dict(), "diff": changes})
        return
    show(made.table())
    if changes is not None:
        out.print("\n".join([f"\nFrom {diff} to this plan:", *(changes or ["nothing changes"])]))
    out.print(f"\nThe plan: {target}")


def _bits(text: str) -> Any:
    try:
        return text if text == "recommended" else int(text)
    except ValueError:
        near = nearest_name(text, ("recommended",))
        raise InvalidValue(f"--bits must be a number of bits, such as 6, or recommended; got {text!r}.{near}") from None
