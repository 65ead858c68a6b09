"""`lograd train`: train a built-in model, dense or with a plan, and resume it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Json, out, print_json, say, warnings_as_sentences


def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; it is made.")],
    model: Annotated[str | None, typer.Option(help="resnet8, resnet20, resnet18, vgg, charlm or bert-mini.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Images: an .npz; charlm: a text file; bert-mini: a folder with train.tsv and dev.tsv."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan from lograd plan.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="One treatment for all layers, such as fp6 or prune85. Neither means dense.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, data order, augmentation and noise.", show_default="0")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Length of the run.", show_default="by model")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run in steps instead.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples of a step.", show_default="by model")] = None,
    lr: Annotated[float | None, typer.Option(help="Largest learning rate.", show_default="by model")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd (momentum 0.9) or adamw.", show_default="sgd; transformers adamw")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of the optimizer.", show_default="1e-4; adamw 0.01")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="cosine, step or constant.", show_default="cosine")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which the rate rises.", show_default="0")] = None,
    width: Annotated[int | None, typer.Option(help="Channels or width.", show_default="by model")] = None,
    augment: Annotated[
        bool | None, typer.Option("--augment/--no-augment", help="Random crops and flips.", show_default="for images")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.", show_default="its own")] = None,
    products: Annotated[
        str | None,
        typer.Option(help="Of pruned gradients: dense, sparse, or auto (the faster).", show_default="dense"),
    ] = None,
    start: Annotated[int | None, typer.Option(help="First step that is treated.", show_default="0")] = None,
    log_every: Annotated[int | None, typer.Option(help="Steps to a line of metrics.", show_default="10")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps to an evaluation.", show_default="an epoch")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps to a checkpoint.", show_default="100")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write events for TensorBoard as well.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder; it knows its settings.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model and leave the run in a folder; a run that was killed is resumed to the same bits."""
    settings = {
        "model": model, "data": data, "plan": plan, "recipe": recipe, "seed": seed, "epochs": epochs, "steps": steps,
        "batch": batch, "lr": lr, "optimizer": optimizer, "weight_decay": weight_decay, "schedule": schedule,
        "warmup": warmup, "width": width, "augment": augment, "threads": threads, "products": products,
        "start": start, "log_every": log_every, "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every,
        "tensorboard": tensorboard,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    from ..training import Diverged, Interrupted

    try:
        run = _run(output, given, resume=resume, overwrite=overwrite, quiet=as_json)
    except Diverged as error:
        say(str(error))
        raise typer.Exit(1) from None
    except Interrupted as error:
        say(str(error))
        raise typer.Exit(128 + error.number) from None
    if as_json:
        print_json({"run": str(run.path), "settings": run.config.to_json(), "summary": run.summary})
        return
    final, words = run.summary["final"], run.metric.words
    value = final[run.metric.name]
    shown = f"{value:.2%}" if run.metric.name == "accuracy" else f"{value:.4f}"
    zeros = "" if final["sparsity"] is None else f", {final['sparsity']:.1%} zeros"
    time = 1e3 * (run.summary["seconds_per_step"] or 0.0)
    out.print(f"{words} {shown} after {run.summary['steps']} steps, {time:.1f} ms a step{zeros}")
    out.print(f"The run: {run.path}")


def _run(output: Path, given: dict[str, Any], *, resume: bool, overwrite: bool, quiet: bool) -> Any:
    from .. import InvalidValue
    from ..training import Config, Run
    from ..training import resume as resume_run
    from ..training import train as train_run
    from .progress import display

    if resume and overwrite:
        raise InvalidValue("--resume goes on with a run and --overwrite replaces it; give one of them.")
    with warnings_as_sentences():
        if resume:
            before = Run.load(output, metrics=False)  # resume cuts what follows the checkpoint
            if before.status == "finished":
                run = resume_run(output, expected=given)
                say(f"the run {output} is finished; there is nothing to resume.")
                return run
            with display(before.config.model, quiet) as progress:
                return resume_run(output, expected=given, progress=progress)
        for name in ("model", "data"):
            if name not in given:
                raise InvalidValue(f"train needs --{name}; with --resume, a run knows its own.")
        config = Config(**given)
        with display(config.model, quiet) as progress:
            return train_run(config, output, progress=progress, overwrite=overwrite)
