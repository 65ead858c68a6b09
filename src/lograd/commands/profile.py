"""`lograd profile`: look at the gradients of a model of the user's, or of a built-in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Json, out, print_json, show, warnings_as_sentences

Make = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE:FUNCTION]",
        help="A function that returns (model, batches, loss function); the last may be None.",
    ),
]
Model = Annotated[str | None, typer.Option(help="A built-in model instead, as lograd train starts it.")]
Data = Annotated[Path | None, typer.Option(help="The data of the built-in model.")]
Batch = Annotated[int | None, typer.Option(help="Examples of a step of the built-in model.")]
Width = Annotated[int | None, typer.Option(help="Width of the built-in model.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the built-in model and its data.", show_default="0")]
After = Annotated[int | None, typer.Option(help="Train the built-in model for so many steps first.", show_default="0")]
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
    make: Make = None,
    model: Model = None,
    data: Data = None,
    batch: Batch = None,
    width: Width = None,
    seed: Seed = None,
    after: After = None,
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
    from ..training.folder import folder_for_results
    from ..training.loading import own_words

    given = {"data": data, "batch": batch, "width": width, "seed": seed, "after": after}
    check_model("profile", make, model, given)
    if (output / "profile.npz").exists() and not overwrite:
        raise InvalidValue(
            f"the folder {output} has a profile already; replace it by --overwrite, or give another folder by -o."
        )
    with as_lines(not as_json):
        network, batches, loss = load_model(make, model, given)
    with as_lines(not as_json), folder_for_results(output) as folder:  # made before the work, not after it
        with warnings_as_sentences(), own_words("a step of the model"):
            found = observe(network, batches, loss, steps, every=every, noise=noise, times=times)
        found.save(folder / "profile.npz")
        found.to_html(folder / "profile.html", f"Gradients of {make or model}")
    if as_json:
        layers = [_row(layer) for layer in found.layers.values()]
        work = None if found.work is None else found.work.to_json()
        menus = None if found.menus is None else found.menus.to_json()
        broken = {"broken": found.broken, "work": work, "menus": menus}
        print_json({"folder": str(folder), "steps": found.steps, "layers": layers, "missed": found.missed, **broken})
        return
    show(found.table())
    if found.menus is not None:
        out.print()
        show(found.menus.table())
    out.print(f"\nThe profile: {folder / 'profile.npz'}\nThe page: {folder / 'profile.html'} (open it in a browser)")


def check_model(command: str, make: str | None, model: str | None, given: dict[str, Any]) -> None:
    """Refuse both a function and a built-in model, neither, and options of the latter without it."""
    from .. import InvalidValue

    if (make is None) == (model is None):
        raise InvalidValue(f"{command} needs MODULE:FUNCTION or --model NAME, one of them.")
    if make is not None and (extra := [f"--{name}" for name, value in given.items() if value is not None]):
        raise InvalidValue(f"{', '.join(extra)} belongs to --model; {make} brings its own model and data.")


def load_model(make: str | None, model: str | None, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return model, batches and loss of a user's function, or of a built-in model."""
    return _own(make) if make is not None else _built_in(str(model), given)


def _own(target: str) -> tuple[Any, Any, Any]:
    """Model, batches and loss of a user's function; what it returns for `lograd train` beside them is left aside."""
    from ..training.loading import call_make, own_words

    made = call_make(target)
    with own_words(f"the batches of {target}"):
        return made.model, made.epoch(0), made.loss


def _built_in(name: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Model, endless batches and loss of a built-in model, with the weights that so many steps of training give it."""
    from itertools import count

    from .. import InvalidValue
    from ..report.progress import tracked
    from ..training import Config, load_data
    from ..training.measuring import loss_of
    from ..training.session import Session
    from ..training.work import BuiltIn

    if given["data"] is None:
        raise InvalidValue(f"--model {name} needs --data with the file or folder to take batches from.")
    after = given.pop("after") or 0
    if after < 0:
        raise InvalidValue(f"--after must be zero or more steps; got {after}.")
    config = Config(name, schedule="constant", **{key: value for key, value in given.items() if value is not None})
    data = load_data(config)
    session = Session(BuiltIn(config, data), None)
    for _ in tracked(range(after), after, "training first"):
        session.step()
    places = (divmod(step, data.steps_per_epoch) for step in count(after))
    return session.model, (data.batch(*place) for place in places), loss_of


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
