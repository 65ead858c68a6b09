"""`lograd profile`: look at the gradients of a model of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Json, out, print_json, show, warnings_as_sentences

Make = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="A function that returns (model, batches, loss function); the last may be None.",
    ),
]
Steps = Annotated[int, typer.Option(help="Batches to run.")]
Every = Annotated[int, typer.Option(help="Of so many steps one is observed.")]
Noise = Annotated[
    int, typer.Option(help="Disturb each layer so often, for lograd plan --allocation noise; 2 are enough.")
]
Times = Annotated[
    bool,
    typer.Option("--times", help="Time each method in each layer, for lograd plan --noise and --objective."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for profile.npz and profile.html; it is made.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a profile in the folder.")]


def profile(
    make: Make,
    steps: Steps = 20,
    every: Every = 1,
    noise: Noise = 0,
    times: Times = False,
    output: Output = Path("run"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Look at the gradients of a model: their laws, zeros and formats, layer by layer.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from .. import InvalidValue
    from .. import profile as observe
    from ..report.progress import as_lines
    from .loading import folder_for_results, load_model, own_words

    if (output / "profile.npz").exists() and not overwrite:
        raise InvalidValue(
            f"the folder {output} has a profile already; replace it by --overwrite, or give another folder by -o."
        )
    with as_lines(not as_json):
        network, batches, loss = load_model(make)
    with as_lines(not as_json), folder_for_results(output) as folder:  # made before the work, not after it
        with warnings_as_sentences(), own_words("a step of the model"):
            found = observe(network, batches, loss, steps, every=every, noise=noise, times=times)
        found.save(folder / "profile.npz")
        found.to_html(folder / "profile.html", f"Gradients of {make}")
    if as_json:
        layers = [_row(layer) for layer in found.layers.values()]
        work = None if found.work is None else found.work.to_dict()
        menus = None if found.menus is None else found.menus.to_json()
        broken = {"broken": found.broken, "work": work, "menus": menus}
        print_json({"folder": str(folder), "steps": found.steps, "layers": layers, "missed": found.missed, **broken})
        return
    show(found.table())
    if found.menus is not None:
        out.print()
        show(found.menus.table())
    out.print(f"\nThe profile: {folder / 'profile.npz'}\nThe page: {folder / 'profile.html'} (open it in a browser)")


def _row(layer: Any) -> dict[str, Any]:
    from ..laws import HalfNormal, LogNormal
    from ..measure.sparsity import pruning_outlook

    numbers: dict[str, Any] = {
        "zeros": layer.zero_share,
        "masked": layer.masked,
        "sigma": layer.sigma,
        "ks_lognormal": layer.ks(LogNormal),
        "ks_normal": layer.ks(HalfNormal),
    }
    zeros = pruning_outlook(layer)
    numbers |= {"good_sparsity": zeros and zeros.good, "fair_sparsity": zeros and zeros.fair}
    return {
        "name": layer.name,
        "kind": layer.kind,
        "weight": list(layer.weight_shape or ()),
        "elements": layer.elements,
        **{key: None if value is None or value != value else float(value) for key, value in numbers.items()},
        "nearest_law": layer.nearest_law,
        "nan": sum(record.nan for record in layer.records),
        "infinities": sum(record.infinities for record in layer.records),
        "first_broken_step": next((one.step for one in layer.records if one.nan or one.infinities), None),
        **{name: getattr(layer, name) for name in ("flops_forward", "flops_input", "flops_weight")},
        "no_gain": zeros and zeros.no_gain,
    }
