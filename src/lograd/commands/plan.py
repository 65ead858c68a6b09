"""`lograd plan`: from a profile to a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..errors import InvalidValue, nearest_name
from .console import Json, out, print_json, show, warnings_as_sentences

ProfilePath = Annotated[Path, typer.Argument(help="A folder with profile.npz, or the file itself.")]
NoiseBudget = Annotated[
    float | None,
    typer.Option(
        "--noise", help="The fastest plan that adds at most this much of the minibatch's variance, such as 0.2."
    ),
]
Objective = Annotated[str | None, typer.Option(help="progress: the plan with the most progress per second.")]
Method = Annotated[
    list[str] | None, typer.Option(help="With a goal: choose from these methods or patterns; repeat it.")
]
BackendName = Annotated[
    list[str] | None, typer.Option("--backend", help="With a goal: sparse or integer products only; repeat it.")
]
Bits = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER|recommended",
        help="Round to the best float of so many bits; recommended: the fewest with a good cosine in each layer.",
    ),
]
Sparsity = Annotated[float | None, typer.Option(help="Prune to skip this share of the work, such as 0.85.")]
Allocation = Annotated[
    str | None,
    typer.Option(
        help="uniform: the sparsity in each layer; cosine, noise or floors: over all, split by theory.",
        show_default="noise, if the profile has it, else uniform",
    ),
]
Floor = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN=COSINE", help="For floors: least cosine of layers; repeat it.")
]
LawName = Annotated[str, typer.Option(help="Of the threshold: empirical, lognormal or normal.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Leave alone: first, last, a pattern of names, or none.", show_default="last; none with a goal"),
]
Scale = Annotated[
    str | None, typer.Option(help="Rule by which a gradient is put into a format's range.", show_default="max")
]
Rounding = Annotated[str | None, typer.Option(help="stochastic or nearest.", show_default="stochastic")]
Products = Annotated[
    list[str] | None,
    typer.Option(help="Treat the gradient for dX (input_gradient) or dW (weight_gradient) only.", show_default="both"),
]
Split = Annotated[
    bool, typer.Option("--split", help="With --allocation noise: dX and dW of a layer get different sparsity.")
]
Everywhere = Annotated[
    bool, typer.Option("--everywhere", help="Prune all layers, also those whose zeros save no time.")
]
Diff = Annotated[Path | None, typer.Option(help="Show what changes from this plan to the new one.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The plan; plan.json beside the profile by default.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another plan in that place.")]


def plan(
    profile: ProfilePath,
    noise: NoiseBudget = None,
    objective: Objective = None,
    method: Method = None,
    backend: BackendName = None,
    bits: Bits = None,
    sparsity: Sparsity = None,
    allocation: Allocation = None,
    floor: Floor = None,
    law: LawName = "empirical",
    keep: Keep = None,
    scale: Scale = None,
    rounding: Rounding = None,
    products: Products = None,
    split: Split = False,
    everywhere: Everywhere = False,
    diff: Diff = None,
    output: Output = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Choose methods, or formats and sparsities, for each layer of a profile, and save them as a plan.

    --noise and --objective are goals, and need a profile of lograd profile --noise 2 --times.
    """
    from .. import Plan, Profile
    from ..files.atomic import check_folder
    from ..treatments import Prune
    from .loading import check_same

    goal = _given(noise=noise, objective=objective)
    if not goal:
        _check(bits, sparsity, allocation, scale, rounding, everywhere=everywhere)
    Prune(0.5, cast(Any, law))  # refuses an unknown law, also where nothing is pruned
    source = profile / "profile.npz" if profile.is_dir() else profile
    target = check_folder(output if output is not None else source.parent / "plan.json")
    with warnings_as_sentences():
        other = None if diff is None else Plan.load(diff)  # first: it may be the file that is replaced
    menu = _given(keep=[] if keep == ["none"] else keep or None, methods=method or None, backends=backend or None)
    floors = dict(map(_floor, floor)) if floor else None
    choices = _given(allocation=allocation, law=law, scale=scale, rounding=rounding, products=products or None)
    choices |= _given(floors=floors, split=split or None, everywhere=everywhere or None)
    with warnings_as_sentences():
        found = Profile.load(source)
        made = found.plan(None if bits is None else _bits(bits), sparsity, **goal, **menu, **choices)
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


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _check(
    bits: str | None,
    sparsity: float | None,
    allocation: str | None,
    scale: str | None,
    rounding: str | None,
    *,
    everywhere: bool,
) -> None:
    """Refuse options that belong to others which are not given."""
    if bits is None and sparsity is None:
        raise InvalidValue("a plan needs --bits, --sparsity or both, or a goal: --noise or --objective; got neither.")
    if sparsity is None and allocation is not None:
        raise InvalidValue("--allocation splits a sparsity over layers, so it needs --sparsity.")
    if everywhere and sparsity is None:
        raise InvalidValue("--everywhere says where to prune, so it needs --sparsity.")
    if bits is None and (scale is not None or rounding is not None):
        raise InvalidValue(f"--{'rounding' if scale is None else 'scale'} is of a format, so it needs --bits.")


def _bits(text: str) -> Any:
    try:
        return text if text == "recommended" else int(text)
    except ValueError:
        near = nearest_name(text, ("recommended",))
        raise InvalidValue(f"--bits must be a number of bits, such as 6, or recommended; got {text!r}.{near}") from None


def _floor(text: str) -> tuple[str, float]:
    pattern, _, cosine = text.rpartition("=")
    try:
        return pattern, float(cosine)
    except ValueError:
        raise InvalidValue(f"--floor must be PATTERN=COSINE, such as 'blocks.2.*=0.98'; got {text!r}.") from None
