"""`lograd train`: train a model of the user's or a built-in one, dense or with a plan, and resume it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidValue, plural
from .console import Json, out, print_json, say, warnings_as_sentences

SLOW = (
    "pruned gradients take dense products, which save no time; --backend auto takes the faster ones, and then the last "
    "bits of two runs may differ."
)
SIMULATED = (
    "products of few bits are simulated, which saves neither time nor memory; --backend auto takes integer ones where "
    "they are faster."
)


Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; it is made.")]
Make = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE:FUNCTION]", help="A function that returns (model, batches, loss) and more."),
]
Model = Annotated[
    str | None, typer.Option(help="Built in instead: resnet8, resnet20, resnet18, vgg, charlm, charlm6 or bert-mini.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Images: an .npz; charlm, charlm6: a text; bert-mini: a folder with train.tsv and dev.tsv."),
]
PlanFile = Annotated[Path | None, typer.Option(help="A plan from lograd plan.")]
Recipe = Annotated[
    str | None, typer.Option(help="One treatment for all layers, such as fp6 or prune85. Neither means dense.")
]
Fast = Annotated[
    bool | None,
    typer.Option("--fast", help="Time methods first, and train with the plan of most progress per second."),
]
Seed = Annotated[int | None, typer.Option(help="Of weights, data order, augmentation and noise.", show_default="0")]
Epochs = Annotated[int | None, typer.Option(help="Length of the run.", show_default="by model")]
Steps = Annotated[int | None, typer.Option(help="Length of the run in steps instead.")]
Batch = Annotated[int | None, typer.Option(help="Examples of a step.", show_default="by model")]
Lr = Annotated[float | None, typer.Option(help="Largest learning rate.", show_default="by model")]
OptimizerName = Annotated[
    str | None, typer.Option(help="sgd (momentum 0.9) or adamw.", show_default="sgd; transformers adamw")
]
WeightDecay = Annotated[float | None, typer.Option(help="Of the optimizer.", show_default="1e-4; adamw 0.01")]
Schedule = Annotated[str | None, typer.Option(help="cosine, step or constant.", show_default="cosine")]
Warmup = Annotated[int | None, typer.Option(help="Steps over which the rate rises.", show_default="0")]
Width = Annotated[int | None, typer.Option(help="Channels or width.", show_default="by model")]
Augment = Annotated[
    bool | None, typer.Option("--augment/--no-augment", help="Random crops and flips.", show_default="for images")
]
Pixels = Annotated[
    int | None,
    typer.Option(
        help="Side in pixels that images are averaged down to; those of folders are cut to it.",
        show_default="as they are",
    ),
]
ChannelsLast = Annotated[
    bool | None, typer.Option("--channels-last", help="Lay images out with channels side by side in memory.")
]
Threads = Annotated[int | None, typer.Option(help="Threads of torch.", show_default="its own")]
Backend = Annotated[
    str | None,
    typer.Option(help="Products: dense, sparse, integer, or auto (the fastest that serves).", show_default="dense"),
]
Products = Annotated[str | None, typer.Option(hidden=True)]
Start = Annotated[int | None, typer.Option(help="First step that is treated.", show_default="0")]
Guard = Annotated[bool | None, typer.Option("--guard", help="Treat layers only while their noise fits a budget.")]
LogEvery = Annotated[int | None, typer.Option(help="Steps to a line of metrics.", show_default="10")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Steps to an evaluation.", show_default="an epoch")]
CheckpointEvery = Annotated[int | None, typer.Option(help="Steps to a checkpoint.", show_default="100")]
Tensorboard = Annotated[bool | None, typer.Option("--tensorboard", help="Write events for TensorBoard as well.")]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Store weights as int8, e4m3fn, bfloat16 or another such format, without a float32 copy.",
        show_default="as the model has them",
    ),
]
StateBits = Annotated[
    int | None,
    typer.Option(help="8 keeps the optimizer's moments of such weights as FP8 codes.", show_default="float32"),
]
CommonStatistics = Annotated[
    bool | None,
    typer.Option("--common-statistics", help="Under torchrun: thresholds from the gradients of all ranks."),
]
Pipeline = Annotated[
    str | None,
    typer.Option(help="Under torchrun: a stage of the model on each rank; the schedule, 1f1b or gpipe."),
]
Microbatches = Annotated[int | None, typer.Option(help="Of a pipeline, in a batch.", show_default="4")]
Edges = Annotated[
    str | None,
    typer.Option(help="Gradients between stages: a recipe, or none for plain tensors.", show_default="prune90"),
]
Activations = Annotated[
    str | None, typer.Option(help="Activations between stages, such as int8-nearest.", show_default="none")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder; it knows its settings.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]


def train(
    output: Output,
    make: Make = None,
    model: Model = None,
    data: Data = None,
    plan: PlanFile = None,
    recipe: Recipe = None,
    fast: Fast = None,
    seed: Seed = None,
    epochs: Epochs = None,
    steps: Steps = None,
    batch: Batch = None,
    lr: Lr = None,
    optimizer: OptimizerName = None,
    weight_decay: WeightDecay = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    width: Width = None,
    augment: Augment = None,
    threads: Threads = None,
    backend: Backend = None,
    products: Products = None,
    start: Start = None,
    guard: Guard = None,
    log_every: LogEvery = None,
    evaluate_every: EvaluateEvery = None,
    checkpoint_every: CheckpointEvery = None,
    tensorboard: Tensorboard = None,
    weights: Weights = None,
    state_bits: StateBits = None,
    common_statistics: CommonStatistics = None, pipeline: Pipeline = None, microbatches: Microbatches = None,
    edges: Edges = None, activations: Activations = None, pixels: Pixels = None,
    channels_last: ChannelsLast = None,
    resume: Resume = False, overwrite: Overwrite = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Train a model and leave the run in a folder; a run that was killed is resumed to the same bits.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make;
    the current folder is searched first. It returns (model, batches, loss), or
    these with an optimizer and a metric, or a mapping with these five names.

    batches: a list, a DataLoader, or a function of the number of the epoch
    loss: as for lograd profile
    optimizer: of torch.optim, or a function that makes it from the parameters;
    it keeps its learning rate unless --lr, --schedule or --warmup is given
    metric: a function of the model that returns a number, or several by name;
    runs are compared by the first, or by the training loss without a metric
    """
    settings = {
        "model": _one_model(make, model), "data": data, "plan": plan, "recipe": recipe, "seed": seed, "epochs": epochs,
        "steps": steps, "batch": batch, "lr": lr, "optimizer": optimizer, "weight_decay": weight_decay,
        "schedule": schedule, "warmup": warmup, "width": width, "augment": augment, "threads": threads,
        "backend": _renamed(products, backend), "start": start, "log_every": log_every,
        "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every, "tensorboard": tensorboard,
        "weights": weights, "state_bits": state_bits, "fast": fast, "guard": guard,
        "common_statistics": common_statistics, "pipeline": pipeline, "microbatches": microbatches, "edges": edges,
        "activations": activations, "pixels": pixels, "channels_last": channels_last,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    _show(_run_or_exit(output, given, resume=resume, overwrite=overwrite, quiet=as_json), as_json)


def _show(run: Any, as_json: bool) -> None:
    """Print the end of a run; None, on ranks other than the first, prints nothing."""
    if run is None:
        return
    if as_json:
        print_json({"run": str(run.path), "settings": run.config.to_json(), "summary": run.summary})
        return
    out.print(_result(run))
    out.print(f"The run: {run.path}")


def _renamed(products: str | None, backend: str | None) -> str | None:
    """The backend, also by the former name of its option."""
    if products is None:
        return backend
    if backend is not None:
        raise InvalidValue("--products is the former name of --backend; give --backend alone.")
    from ..training.config import check_backend

    check_backend("--products, the former name of --backend,", products)
    say(f"--products has a new name; write --backend {products}.")
    return products


def _one_model(make: str | None, model: str | None) -> str | None:
    """The user's model or the built-in one."""
    if make is not None and model is not None:
        raise InvalidValue("train needs MODULE:FUNCTION or --model NAME, one of them.")
    if make is not None and ":" not in make:
        raise InvalidValue(
            f"{make!r} is not MODULE:FUNCTION, such as mypkg.train:make; a built-in model is --model NAME."
        )
    return make if model is None else model


def _run_or_exit(output: Path, given: dict[str, Any], *, resume: bool, overwrite: bool, quiet: bool) -> Any:
    """The finished run; one that diverged or was stopped ends the command with a sentence.

    Under torchrun rank 0 speaks for all, but for an error that is another rank's own; elsewhere the run is None.
    """
    from ..training import Diverged, FailedElsewhere, Interrupted, LostRank, joined

    main = True
    try:
        with joined() as ranks, warnings_as_sentences(silent=not ranks.main):
            main = ranks.main
            run = _run(output, given, ranks, resume=resume, overwrite=overwrite, quiet=quiet)
            return run if main else None
    except (Diverged, Interrupted) as error:
        if main:
            say(str(error))
        raise typer.Exit(128 + error.number if isinstance(error, Interrupted) else 1) from None
    except LostRank as error:
        say(str(error))
        raise typer.Exit(1) from None
    except FailedElsewhere:
        raise typer.Exit(2) from None


def _result(run: Any) -> str:
    """The end of a run in one line."""
    from ..training.measuring import EDGE_RATIO

    final, metric = run.summary["final"], run.metric
    value = final[metric.name]
    reached = f"{value:.2%}" if metric.percent else f"{value:.4f}"
    parts = [
        f"{metric.words} {reached} after {plural(run.summary['steps'], 'step')}",
        f"{1e3 * (run.summary['seconds_per_step'] or 0.0):.1f} ms a step",
    ]
    if final["sparsity"] is not None:
        parts.append(f"{final['sparsity']:.1%} zeros")
    if run.config.backend == "dense" and run.summary.get("pruned"):
        parts.append("dense products, which save no time (--backend auto)")
    if stored := run.summary.get("weights"):
        parts.append(f"{run.config.weights} weights, {stored['bytes'] / max(stored['weights'], 1):.2f} bytes each")
    if ratios := [line[EDGE_RATIO] for line in run.lines if EDGE_RATIO in line]:
        parts.append(f"{ratios[-1]:.1f} times fewer bytes between stages than float32")
    if skipped := run.summary.get("skipped_steps"):
        parts.append(f"{plural(skipped, 'step')} skipped by the loss scale")
    return ", ".join(parts)


def _run(output: Path, given: dict[str, Any], ranks: Any, *, resume: bool, overwrite: bool, quiet: bool) -> Any:
    from ..training import Run
    from ..training import resume as resume_run
    from ..training import train as train_run
    from ..training.session import has_levels, prunes
    from .progress import display, saying

    quiet = quiet or not ranks.main
    with ranks.together():
        if resume and overwrite:
            raise InvalidValue("--resume goes on with a run and --overwrite replaces it; give one of them.")
        if resume:
            before = Run.load(output, metrics=False)  # resume cuts what follows the checkpoint
        else:
            config = _config(given)
            plan = config.load_plan()
    if resume:
        if before.status == "finished":
            run = resume_run(output, expected=given)
            if ranks.main:
                say(f"the run {output} is finished; there is nothing to resume.")
            return run
        with display(before.config.model, quiet) as progress:
            return resume_run(output, expected=given, progress=progress)
    with display(config.model, quiet) as progress:
        if "backend" not in given and (prunes(plan) or has_levels(plan)):
            progress = saying(SLOW if prunes(plan) else SIMULATED, progress)
        return train_run(config, output, progress=progress, overwrite=overwrite, tell=say)


def _config(given: dict[str, Any]) -> Any:
    """The settings of a new run."""
    from ..training import Config

    for name in ("model",) if ":" in given.get("model", "") else ("model", "data"):
        if name not in given:
            other = " or MODULE:FUNCTION" if name == "model" else ""
            raise InvalidValue(f"train needs --{name}{other}; with --resume, a run knows its own.")
    return Config(**given)
