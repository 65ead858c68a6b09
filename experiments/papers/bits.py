"""Does a network learn with all three products in few bits?  Float32 against whole methods, each step timed.

    ./dev reproduce bits --data cifar100_20k.npz --set model=resnet8

Each way is trained with the same seeds and schedule, its products in whichever form is faster: integers where the
kernels serve, else rounded values in dense products.  Then one step of each is timed, in turns.  Several processes may
share a folder, each with ways of its own (--only).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev
from typing import ClassVar, final

from lograd import InvalidValue
from lograd.errors import nearest_name

from ..lab import TASKS, Config, metric_of
from .cells import Cell, CellFolder, Found, Measured, Trained
from .comparison import BASE, Way
from .experiment import Experiment
from .result import Result
from .runs import finished, speeds, timed_in_turns
from .sources import Kind

TIMES = "times"


def _statquant() -> dict[str, Way]:
    words = {"ptq": "per tensor", "psq": "per sample", "bhq": "block Householder"}
    return {
        f"fqt{bits}-{method}": Way(f"StatQuant, gradients of {bits} bits, {words[method]}", f"fqt{bits}-{method}")
        for bits in (8, 6, 5, 4)
        for method in words
    }


WAYS = {
    BASE: Way("float32", None),
    "qat8": Way("forward of 8 bits, gradients as they are", "int8wa"),
    "int8-weights": Way("INT8 weights without float32 copies, products in float32", None, "int8"),
    **_statquant(),
    "int8-full": Way("INT8, largest magnitudes", "int8-full"),
    "int8-full-weights": Way("INT8, largest magnitudes, weights without float32 copies", "int8-full", "int8"),
    "int6-full": Way("INT6, largest magnitudes", "int6-full"),
    "int4-full": Way("INT4, largest magnitudes", "int4-full"),
    "int4-minmax": Way("INT4, learned clips, gradients by largest magnitudes", "int4wa-clips+int4"),
    "int4-full-interval": Way("INT4, learned clips, gradients in the interval", "int4-full-interval"),
    "luq4": Way("INT4 forward by SAWB, gradients by LUQ", "luq4"),
    "luq4-smp2": Way("INT4 forward by SAWB, gradients by LUQ, two draws for dW", "luq4-smp2"),
    "mxfp4-full": Way("MXFP4", "mxfp4-full"),
}


@final
@dataclass(frozen=True)
class Bits(Experiment):
    """One model on one data set, trained in each way.

    Args:
        data: images, text or sentences, as the model wants.
        only: names of ways, with commas between them; empty for all.
        model: resnet8, resnet20, resnet18, vgg, charlm or bert-mini.
        width: of the model; None takes its usual one.
        epochs: length of each run; steps: its length in steps, where less than an epoch is enough.
        batch, lr: None takes the usual one of the model.
        warmup: first steps over which the learning rate rises.
        seeds: how many; 0, 1, ...
        turns: steps of each way that are made in turns to time them, of which the last third counts; 0 times nothing.
    """

    needs_data: ClassVar[bool] = True
    words: ClassVar[str] = "accuracy and step time with all three products in few bits, against float32"
    core_hours: ClassVar = 13.0
    presets: ClassVar = {
        "smoke": {"model": "resnet8", "width": 8, "epochs": 1, "batch": 16, "seeds": 1, "turns": 3,
                  "only": "fp32,int4-full,fqt5-bhq"},
        "cpu": {},
    }  # fmt: skip

    model: str = "resnet8"
    width: int | None = None
    epochs: int = 20
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    warmup: int = 0
    seeds: int = 3
    turns: int = 30

    @property
    def label(self) -> str:
        return f"bits-{self.model}"

    @property
    def data_kind(self) -> Kind | None:
        return TASKS[self.model].kind if self.model in TASKS else None

    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        chosen = self._chosen()
        for seed in range(self.seeds):
            for name in chosen:
                yield Trained(f"{name}-{seed}", replace(self._config(name), seed=seed))
        if not self.turns:
            return
        given = {"model": self.model, "width": self.width, "batch": self.batch, "turns": self.turns, "ways": [*chosen]}
        # One for each choice of ways: processes that share a folder time their own, beside float32.
        name = "-".join([TIMES, *chosen]) if self.only else TIMES
        yield Measured(name, given, partial(self._time, [*chosen]), threads=1)

    def draw(self, folder: CellFolder) -> list[Result]:
        config = self._config(BASE)
        metric = metric_of(config.task.kind)
        columns = [
            "way to train", "seeds", f"test {metric.words}, mean", "difference to float32, mean", "spread over seeds",
            "steps in the time of a float32 one",
        ]  # fmt: skip
        command = self.command("model", "width", "epochs", "steps", "batch", "lr", "warmup", "seeds")
        length = f"{self.epochs} epochs" if self.steps is None else f"{self.steps} steps"
        claim = (
            f"{self.model}, {length}, batch {config.batch}, {config.optimizer}, learning rate "
            f"{config.lr:g} with a {config.schedule} schedule, one thread. Differences are those of runs of the same "
            "seed. The first convolution and the last linear layer stay as they are. Products are integers where the "
            "kernels serve, else dense products of rounded values. Weights without float32 copies are stored as codes "
            "in all layers, decoded where they are used, and rounded stochastically once a step. "
            f"`{command}` makes this table."
        )
        title = f"Training in few bits: {self.model}"
        return [Result(self.label, title, claim, columns, list(self._rows(folder)))]

    def _chosen(self) -> dict[str, Way]:
        names = [name.strip() for name in self.only.split(",")] if self.only else list(WAYS)
        for name in names:
            if name not in WAYS:
                raise InvalidValue(f"{name!r} is not one of {', '.join(WAYS)}.{nearest_name(name, WAYS)}")
        return {name: WAYS[name] for name in names}

    def _config(self, name: str) -> Config:
        _, recipe, weights, *_ = WAYS[name]
        return Config(
            self.model, str(self._data()), recipe=recipe, width=self.width,
            epochs=self.epochs if self.steps is None else None, steps=self.steps, batch=self.batch,
            lr=self.lr, warmup=self.warmup, threads=1,
            backend="dense" if recipe is None else "auto", evaluate_every=10**6, weights=weights,
        )  # fmt: skip

    def _time(self, names: list[str]) -> Found:
        configs = {name: self._config(name) for name in dict.fromkeys([BASE, *names])}
        return timed_in_turns({name: (config, config.load_plan()) for name, config in configs.items()}, self.turns)

    def _rows(self, folder: CellFolder) -> Iterator[list[object]]:
        """A row for each way with a finished run: means over the seeds, and differences to float32 of the same seed."""
        metric = metric_of(self._config(BASE).task.kind)
        factor, unit, digits = (100, " %", 2) if metric.percent else (1, "", 3)
        timed = [name for name in folder.names if name.startswith(TIMES)]
        faster = {way: speed for name in timed for way, speed in speeds(folder.found(name), BASE).items()}

        def result(run: Found) -> float:
            return factor * float(run["final"][metric.name])

        by_name = {
            name: {seed: run for seed in range(self.seeds) if (run := finished(folder, f"{name}-{seed}"))}
            for name in WAYS
        }
        for name, runs in by_name.items():
            if not runs:
                continue
            base = {} if name == BASE else by_name[BASE]
            differences = [result(run) - result(base[seed]) for seed, run in runs.items() if seed in base]
            yield [
                WAYS[name].title, len(runs), f"{mean(map(result, runs.values())):.{digits}f}{unit}",
                f"{mean(differences):+.{digits}f}" if differences else None,
                f"{stdev(differences):.{digits}f}" if len(differences) > 1 else None,
                f"{faster[name]:.2f}" if name in faster else None,
            ]  # fmt: skip
