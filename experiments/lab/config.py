"""The settings of a training run: a frozen value that is checked when it is made, with an exact inverse in JSON.

A setting that is not given gets the usual value of the model at once, so a config never depends on defaults that may
change after the run was started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, final, get_args

from lograd import InvalidType, InvalidValue, LogradError, Plan
from lograd.errors import nearest_name, sentence
from lograd.files.checks import MAX_FLOAT
from lograd.treatments import Backend
from lograd.weights.coding import coding_of

from .checking import MOST_THREADS
from .tasks import TASKS, Task

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["cosine", "step", "constant"]
PipelineSchedule = Literal["1f1b", "gpipe"]
LARGEST_SEED = 2**63 - 1
MOST_RANKS = 2**16

USUAL: dict[str, tuple[float, float]] = {"sgd": (0.1, 1e-4), "adamw": (1e-3, 0.01)}
"""Learning rate and weight decay of an optimizer that is not the model's own."""
PLAIN = "none"
"""The word for edges of a pipeline that carry tensors as they are."""
OF_PIPELINES: dict[str, Any] = {"microbatches": 4, "edges": "prune90", "activations": PLAIN}
"""Settings of a pipeline, with their usual values."""
ONLY_IF_GIVEN = (
    "weights", "state_bits", "fast", "guard", "ranks", "common_statistics", "pixels", "channels_last", "pipeline",
    *OF_PIPELINES,
)  # fmt: skip
"""Settings that are left out of the JSON where they are None or False: runs from before these existed have the
checksums that they had."""


@final
@dataclass(frozen=True)
class Config:
    """How to train a built-in model or one of the user's; None means the usual value of the model.

    Args:
        model: a name in `TASKS`, or MODULE:FUNCTION, such as mypkg.train:make; `Made` says what the function returns.
        data: the file or folder to train a built-in model on.  With `batch`, `width` and `augment` it belongs to
            built-in models; a model of the user's brings its own batches.
        plan: the file of a plan; recipe: the name of one for all layers.  Neither means dense.
        seed: of the initial weights, the order of the data, its augmentation, and the noise of the treatments.
        epochs, steps: how long; one of them.  A model of the user's is trained for one epoch unless told otherwise.
        batch: examples of a step.  What an epoch has beyond a multiple of it is left out, so that all steps are alike.
        lr: the largest learning rate.
        optimizer: "sgd", with momentum 0.9, or "adamw".  An optimizer that the user brings keeps its own learning
            rates; `lr` gives it another, `schedule` and `warmup` let its rates change with the step.
        schedule: "cosine" to zero, which is the usual one, "step" (a tenth at half and at three quarters of the run) or
            "constant".
        warmup: first steps over which the learning rate rises linearly.
        width: channels of the first convolution, or the width of a transformer.
        augment: random crops, by up to 4 pixels, and flips; images only.
        pixels: sides that images are averaged down to, after crops and flips; images of a folder are cut to this size.
            None leaves the size that the images have, and takes the usual one of the model for a folder.
        channels_last: lay a network for images out with its channels side by side in memory, which is often faster.
        threads: of torch; None leaves its own number.
        backend: of the products, "dense", "sparse", "integer" or "auto" as in `attach`.  With "auto" a layer
            takes what is faster when it is timed, so that the last bits of two runs may differ.
        start: the first step whose gradients are treated, counted from 0.
        guard: let a layer be treated only while its noise fits a budget, as `attach(guard=True)` does.
        log_every: steps to a line of metrics.
        evaluate_every: steps to an evaluation; None means once an epoch.  There is one at the end in any case.
        checkpoint_every: steps to a checkpoint.
        tensorboard: write events for TensorBoard as well.
        weights: the format in which weights are stored, "int8", "e4m3fn", "bfloat16" or another one that
            `low_precision_weights` takes, without a copy in float32; None stores them as the model has them.
        fast: measure before the run which plan makes the most progress per second, and train with it under a guard, as
            `lograd.accelerate` does.
        state_bits: 8 keeps the optimizer's moments of such weights as FP8 codes; None keeps them in float32.
        ranks: processes of the run, which torchrun starts; `train` fills it in.  None means one.
        common_statistics: take the statistics of gradients on all ranks together, so that thresholds and scales are
            alike; else each rank follows its own part of the batch.
        pipeline: the schedule of a pipeline, "1f1b" or "gpipe": the model is cut into a stage for each rank, and all
            ranks work on the same batch.  None lets each rank have the whole model and a part of the batch.
        microbatches: parts of a batch that follow each other through a pipeline; 4 unless given.
        edges: what is done to gradients between stages, a recipe such as "prune90", which is the usual one; "none"
            sends them as they are.
        activations: the same for activations, such as "int8-nearest"; "none" is the usual one.
    """

    model: str
    data: str | None = None
    plan: str | None = None
    recipe: str | None = None
    seed: int = 0
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    optimizer: Optimizer | None = None
    weight_decay: float | None = None
    schedule: Schedule | None = None
    warmup: int = 0
    width: int | None = None
    augment: bool | None = None
    threads: int | None = None
    backend: Backend = "dense"
    start: int = 0
    log_every: int = 10
    evaluate_every: int | None = None
    checkpoint_every: int = 100
    tensorboard: bool = False
    weights: str | None = None
    state_bits: Literal[8] | None = None
    fast: bool = False
    guard: bool = False
    ranks: int | None = None
    common_statistics: bool = False
    pipeline: PipelineSchedule | None = None
    microbatches: int | None = None
    edges: str | None = None
    activations: str | None = None
    pixels: int | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "plan"):
            if isinstance(value := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        for name in ("plan", "recipe"):
            if not isinstance(value := getattr(self, name), str | None):
                raise InvalidType(sentence(name, value, "a text, or nothing"))
        if self.own:
            self._check_own()
        else:
            _one_of(
                "model", self.model, TASKS, f"one of {', '.join(TASKS)}, or MODULE:FUNCTION such as mypkg.train:make"
            )
            if not isinstance(self.data, str) or not self.data:
                raise InvalidType(sentence("data", self.data, "the path of a file or folder"))
            self._fill()
        for name in ("log_every", "checkpoint_every"):
            self._whole(name, 1)
        for name in ("batch", "width", "epochs", "steps", "threads", "evaluate_every", "pixels"):
            if getattr(self, name) is not None:
                self._whole(name, 1, MOST_THREADS if name == "threads" else 2**31)
        self._whole("warmup", 0)
        self._whole("start", 0)
        self._whole("seed", 0, LARGEST_SEED)
        self._number("lr", above=True)
        self._number("weight_decay", above=False)
        for name, valid in (("optimizer", get_args(Optimizer)), ("schedule", get_args(Schedule))):
            if getattr(self, name) is not None:
                _one_of(name, getattr(self, name), valid)
        check_backend("backend", self.backend)
        switches = ("fast", "guard", "tensorboard", "common_statistics", "channels_last")
        for name in (*switches, *(() if self.own else ("augment",))):
            if not isinstance(getattr(self, name), bool):
                raise InvalidType(sentence(name, getattr(self, name), "true or false"))
        self._check_weights()
        self._check_together()
        self._check_pipeline()
        self._check_ranks()

    def _check_own(self) -> None:
        """Refuse settings that belong to built-in models; a run of no given length is one epoch."""
        check_target(self.model)
        for name in ("data", "batch", "width", "augment", "pixels", "channels_last"):
            if getattr(self, name) is not getattr(Config, name):  # its default
                raise InvalidValue(
                    f"{name} belongs to the built-in models; {self.model} brings its own model and batches."
                )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)

    def _fill(self) -> None:
        task = self.task
        optimizer = task.optimizer if self.optimizer is None else self.optimizer
        lr, decay = USUAL.get(str(optimizer), USUAL["sgd"])
        usual = {
            "optimizer": optimizer,
            "lr": task.lr if optimizer == task.optimizer else lr,
            "weight_decay": decay,
            "schedule": "cosine",
            "batch": task.batch,
            "width": task.width,
            "augment": task.kind == "images",
            "epochs": task.epochs if self.steps is None else None,
        }
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_weights(self) -> None:
        """Refuse formats that weights cannot have, and 8-bit state of weights that are not in low precision."""
        if not isinstance(self.weights, str | None):
            raise InvalidType(sentence("weights", self.weights, "the name of a format, or nothing"))
        if self.weights is not None:
            try:
                coding_of(self.weights)
            except LogradError:  # its words are for formats of all kinds
                valid = "int8, e4m3fn, e5m2, another signed format of at most 8 bits, or bfloat16"
                raise InvalidValue(sentence("weights", self.weights, valid)) from None
        if self.state_bits is None:
            return
        if isinstance(self.state_bits, bool) or self.state_bits != 8:
            raise InvalidValue(sentence("state_bits", self.state_bits, "8, or nothing for state in float32"))
        if self.weights is None:
            raise InvalidValue("state_bits is for weights in low precision; give weights as well, such as int8.")

    def _check_together(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise InvalidValue("the length of a run is given by epochs or by steps; got both.")
        if self.fast and (self.plan is not None or self.recipe is not None or self.start or self.backend != "dense"):
            raise InvalidValue(
                "a fast run finds its own plan and begins by itself; leave out plan, recipe, start and backend."
            )
        if self.guard and not self.fast and self.plan is None and self.recipe is None:
            raise InvalidValue("a guard watches the layers that a plan treats; give a plan or a recipe as well.")
        if self.plan is not None and self.recipe is not None:
            raise InvalidValue("a run has a plan or a recipe; got both.")
        if self.common_statistics and self.plan is None and self.recipe is None:
            raise InvalidValue("common_statistics are those of treated gradients; give a plan or a recipe as well.")
        if self.recipe is not None:
            Plan.uniform(self.recipe)  # refuses a name that nobody knows
        if self.own:
            return
        for name in ("augment", "pixels", "channels_last"):
            if getattr(self, name) and self.task.kind != "images":
                raise InvalidValue(f"{name} is for images, and {self.model} is trained on {self.task.kind}.")
        if self.pixels is not None and self.pixels < self.task.smallest:
            raise InvalidValue(sentence(f"pixels of {self.model}", self.pixels, f"{self.task.smallest} or more"))
        if self.settled("width") % self.task.multiple:
            raise InvalidValue(sentence(f"width of {self.model}", self.width, f"a multiple of {self.task.multiple}"))

    def _check_pipeline(self) -> None:
        """Fill in the usual settings of a pipeline, and refuse what it cannot do."""
        if self.pipeline is None:
            for name in OF_PIPELINES:
                if getattr(self, name) is not None:
                    raise InvalidValue(f"{name} belongs to a pipeline; give pipeline as well, 1f1b or gpipe.")
            return
        _one_of("pipeline", self.pipeline, get_args(PipelineSchedule))
        for name, value in OF_PIPELINES.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        from lograd.wire.plans import (  # slow to import, and for pipelines alone
            BACKWARD,
            FORWARD,
            edge_sentences,
        )

        self._whole("microbatches", 1)
        for name, way in (("edges", BACKWARD), ("activations", FORWARD)):
            if not isinstance(value := getattr(self, name), str):
                raise InvalidType(sentence(name, value, f"a recipe such as prune90, or {PLAIN}"))
            if value != PLAIN:
                edge_sentences(value, way, 2)  # refuses what edges cannot carry
        for name in ("fast", "guard", "common_statistics", "weights"):
            if getattr(self, name):
                raise InvalidValue(f"{name} is not for a pipeline, whose ranks have different layers; leave it out.")
        if not self.own and self.settled("batch") % self.settled("microbatches"):
            raise InvalidValue(
                f"batch must be a multiple of microbatches, {self.microbatches}, so that all of them are alike; got "
                f"{self.batch}."
            )

    def _check_ranks(self) -> None:
        """Refuse what several processes cannot do; one process is the same as none given."""
        if self.ranks is None:
            return
        self._whole("ranks", 1, MOST_RANKS)
        if self.ranks == 1:
            object.__setattr__(self, "ranks", None)
            return
        if self.pipeline is not None:
            self._check_stages()
            return
        for name in ("fast", "guard"):
            if getattr(self, name):
                raise InvalidValue(f"{name} is for a run of one process, and this one has {self.ranks}; leave it out.")
        if not self.own and self.settled("batch") % self.ranks:
            raise InvalidValue(
                f"batch, the examples of a step on all processes together, must be a multiple of {self.ranks}, their "
                f"number; got {self.batch}."
            )

    def _check_stages(self) -> None:
        """Refuse fewer microbatches than the schedule needs to keep each stage busy."""
        if self.pipeline == "1f1b" and self.settled("microbatches") < self.settled("ranks"):
            raise InvalidValue(
                f"microbatches must be at least {self.ranks}, the number of stages, for 1f1b; got {self.microbatches}. "
                "gpipe takes fewer."
            )

    def _whole(self, name: str, least: int, most: int = 2**31) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidValue(sentence(name, value, f"a whole number from {least} to {most}"))

    def _number(self, name: str, *, above: bool) -> None:
        value = getattr(self, name)
        if value is None:
            return
        valid = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT
        if not valid or not (value > 0 if above else value >= 0):
            raise InvalidValue(sentence(name, value, "finite and above 0" if above else "finite and not below 0"))
        object.__setattr__(self, name, float(value))

    def settled(self, name: str) -> Any:
        """A setting that has a value by now, whatever its annotation says about the constructor."""
        value = getattr(self, name)
        assert value is not None
        return value

    @property
    def own(self) -> bool:
        """True if the model is the user's, and not one of `TASKS`."""
        return isinstance(self.model, str) and ":" in self.model

    @property
    def task(self) -> Task:
        """The built-in model, with its usual settings."""
        return TASKS[self.model]

    @property
    def treatment(self) -> str:
        """The recipe, the name of the plan's file, or "dense"; and weights in low precision, or edges of a pipeline."""
        plan = self.recipe or (os.path.basename(self.plan) if self.plan else "fast" if self.fast else "dense")
        if self.pipeline is not None:
            return f"{plan}, edges {self.edges}" + ("" if self.activations == PLAIN else f" and {self.activations}")
        return plan if self.weights is None else f"{plan}, {self.weights} weights"

    def load_plan(self) -> Plan | None:
        """The plan of the run, from its file or its recipe; None if it trains dense."""
        if self.recipe is not None:
            return Plan.uniform(self.recipe)
        return None if self.plan is None else Plan.load(self.plan)

    def total_steps(self, steps_per_epoch: int | None) -> int:
        """The length of the run in steps, whichever way it is given."""
        if self.steps is not None:
            return self.steps
        if steps_per_epoch is None:
            raise InvalidValue(
                f"the batches of {self.model} have no length, so epochs cannot be counted; give the length of the run "
                "in steps, or batches that have a len()."
            )
        return cast(int, self.epochs) * steps_per_epoch

    def to_json(self) -> dict[str, Any]:
        """The settings as plain values, without those of `ONLY_IF_GIVEN` that are None or False."""
        return {name: value for name, value in asdict(self).items() if value or name not in ONLY_IF_GIVEN}

    @classmethod
    def from_json(cls, data: Any) -> Config:
        """The exact inverse of `to_json`."""
        names = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping):
            raise InvalidValue(sentence("settings of a run", data, "an object with " + ", ".join(names)))
        if "products" in data and "backend" not in data:  # its former name
            data = {"backend" if name == "products" else name: value for name, value in data.items()}
        for name in data:
            if name not in names:
                raise InvalidValue(f"a run has no setting {name!r}.{nearest_name(str(name), names)}")
        for name in ("model",) if ":" in str(data.get("model")) else ("model", "data"):
            if name not in data:
                raise InvalidValue(f"a run needs the setting {name!r}; got {sorted(map(str, data))}.")
        return cls(**data)

    def with_data(self, data: str) -> Config:
        """This run on data that have moved."""
        return replace(self, data=data)


def _one_of(what: str, value: Any, valid: Any, words: str = "") -> None:
    if not isinstance(value, str) or value not in valid:
        hint = nearest_name(str(value), valid)
        raise InvalidValue(sentence(what, value, words or "one of " + ", ".join(valid)) + hint)


def check_backend(what: str, value: Any) -> None:
    """Refuse what is no backend of products; `what` is its name in the sentence."""
    _one_of(what, value, get_args(Backend))


def check_target(target: str) -> tuple[str, str]:
    """Return the module and the function of MODULE:FUNCTION; InvalidValue for any other text."""
    module, colon, function = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), function]):
        raise InvalidValue(f"{target!r} is not MODULE:FUNCTION, such as mypkg.train:make.")
    return module, function
