"""Predicted against measured noise and time of mixed plans: `./dev bench predictions`.

Each network is trained for some steps, profiled, and run under plans with a method of its own in each layer.  Parts:

- variance: the variance that a plan adds to the gradient, over many draws at fixed weights;
- time: seconds of forward and backward, in turns with the plain step, minima;
- frontier: noise and time of plans that are chosen by layer, beside uniform pruning, uniform integers and pruning to a
  common cosine: which chosen plan is as fast with less noise, or as noisy in less time.

A finished part of a network is kept in a folder and not measured again.  Writes benchmarks/results/predictions.json and
predictions.md, of all parts that are finished.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import lograd
from experiments.data import digits, shakespeare
from experiments.models import CharTransformer, CifarResNet, ResNet18, Vgg
from experiments.models.transformer import Layer
from lograd import Plan
from lograd.measure import Profile
from lograd.measure.passes import loss_of, restored
from lograd.measure.planner import GoalProblem, goal_problem, option_of
from lograd.measure.timing import DENSE, WARM_UP, Timer, method
from lograd.measure.timing import TIMED as STEPS
from lograd.text import markdown
from lograd.theory import Selection

from .timing import conditions, versions, write

PARTS = ("variance", "time", "frontier")
TIMED = ("int8-full", "int6-full", "int4-full", "prune80", "prune90", "prune95", "identity/prune90")
RANDOM = (DENSE, "int8-full", "int6-full", "prune80", "identity/prune90")
"""The methods of random plans; with coarser ones they would add many times the minibatch's variance."""
BUDGETS = (0.05, 0.2)
FRONTIER_BUDGETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
STRENGTHS = (80, 85, 90, 95)
"""Sparsities of plans beside the frontier, in percent."""
WRONG_LABELS = 0.3
BATCHES = 12
REPEATS = 4
"""Draws for each batch."""
TURNS = 3
"""Comparisons with the plain step, each of several steps."""

Batch = tuple[Tensor, Tensor]


class Encoder(nn.Module):
    """Layers of BERT."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        visible = torch.ones(x.shape[0], 1, 1, x.shape[1], dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, visible)
        return x


def images(count: int, size: int, generator: torch.Generator) -> Batch:
    """Handwritten digits, enlarged and in three channels; some with a random label.

    Without those a network soon knows all digits, gradients come from the few that it does not, and batches differ by
    ten times in energy, as they do not where a task is hard.
    """
    data = digits()
    places = torch.randint(len(data.train_labels), (count,), generator=generator)
    grown = F.interpolate(data.train_images[places], scale_factor=size // 8)
    labels = data.train_labels[places]
    wrong = torch.rand(count, generator=generator) < WRONG_LABELS
    return grown.repeat(1, 3, 1, 1), torch.where(wrong, torch.randint(10, (count,), generator=generator), labels)


@lru_cache
def tokens() -> Tensor:
    """The text as numbers of characters."""
    written = shakespeare()
    numbers = {one: number for number, one in enumerate(sorted(set(written)))}
    return torch.tensor([numbers[one] for one in written])


def text(count: int, length: int, generator: torch.Generator) -> Batch:
    """Windows of a text, and the same one character later."""
    starts = torch.randint(len(tokens()) - length - 1, (count,), generator=generator)
    places = starts[:, None] + torch.arange(length)
    return tokens()[places], tokens()[places + 1]


def vectors(count: int, length: int, width: int, generator: torch.Generator) -> Batch:
    """Random vectors, to be moved by one place."""
    x = torch.randn(count, length, width, generator=generator)
    return x, x.roll(1, 1)


@dataclass(frozen=True)
class Case:
    """A network with its data."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]


def characters() -> int:
    """The number of different characters in the text."""
    return len(set(shakespeare()))


CASES = (
    Case("ResNet18 of width 32, batch 32", lambda: ResNet18(10, 32), partial(images, 32, 32)),
    Case("ResNet-20, batch 32", lambda: CifarResNet(20, 10), partial(images, 32, 32)),
    Case(
        "character transformer of width 256, 16 x 128",
        lambda: CharTransformer(characters(), 256, 4, 4, 128),
        lambda generator: text(16, 128, generator),
    ),
    Case("VGG16 of width 32, batch 32", lambda: Vgg(10, 32), partial(images, 32, 32)),
    Case("two BERT-base layers, 8 x 128", lambda: Encoder(768, 12, 2), partial(vectors, 8, 128, 768)),
)
SMALL = (
    Case("ResNet-20 of width 8, 16x16, batch 16", lambda: CifarResNet(20, 10, 8), partial(images, 16, 16)),
    Case(
        "character transformer of width 64, 8 x 48",
        lambda: CharTransformer(characters(), 64, 3, 4, 64),
        lambda generator: text(8, 48, generator),
    ),
    Case("ResNet18 of width 8, 16x16, batch 16", lambda: ResNet18(10, 8), partial(images, 16, 16)),
)
"""For a loaded machine: variance, not time."""


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of classes, or the squared error of vectors."""
    if target.dtype == torch.float32:
        return F.mse_loss(output, target)
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


class Network:
    """A network after some steps of training, its batches, its profile, and plans for it."""

    def __init__(self, case: Case, steps: int, firsts: int) -> None:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        self.case, self.model, self.firsts = case, case.build(), firsts
        optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(self.model, case.batch(generator), loss_fn).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.batches = [case.batch(generator) for _ in range(BATCHES)]
        self.profile: Profile = lograd.profile(
            self.model, self.batches, loss_fn, steps=BATCHES, noise=2, times=True, methods=TIMED
        )
        found = self.profile
        assert found.menus is not None
        self.task: GoalProblem = goal_problem(found)
        options = [
            [option_of(one, found.layers.get(name)) for one in found.menus.layers[name].values()]
            for name in self.task.names
        ]
        self.timed = replace(self.task.problem, menus=options)  # all methods, also those that are slower than dense

    def of_methods(self, methods: dict[str, str]) -> tuple[Plan, Selection]:
        """Return a plan with a method for each layer, and what is predicted of it."""
        menus = [[option.name for option in menu] for menu in self.timed.menus]
        places = [menu.index(methods[name]) for name, menu in zip(self.task.names, menus, strict=True)]
        layers = {name: method(one).plan for name, one in methods.items() if one != DENSE}
        return Plan(layers), self.timed.choice(places)

    def random(self, seed: int) -> tuple[Plan, Selection]:
        """Return a plan with random methods."""
        rng = np.random.default_rng(seed)
        return self.of_methods({name: str(rng.choice(RANDOM)) for name in self.task.names})

    def chosen(self, budget: float) -> tuple[Plan, Selection]:
        """Return the fastest plan within a budget of noise."""
        plan = self.profile.plan(noise=budget)
        expected = plan.evidence.expected
        assert expected is not None
        assert expected.seconds is not None
        return plan, Selection((), expected.seconds, expected.rho or 0.0, expected.penalty or 0.0)

    def plans(self) -> dict[str, tuple[Plan, Selection]]:
        """Return mixed plans by name."""
        found = {f"random {seed}": self.random(seed) for seed in (0, 1)}
        return found | {f"chosen for {budget:g}": self.chosen(budget) for budget in BUDGETS}

    def beside(self) -> dict[str, Plan]:
        """Return plans that choose nothing by layer: uniform ones, and those with a common cosine."""
        found = {name: self._everywhere(name) for name in ("int8-full", "int6-full", "int4-full")}
        for percent in STRENGTHS:
            found[f"prune{percent}"] = self._everywhere(f"prune{percent}")
            pruned = self.profile.plan(sparsity=percent / 100, allocation="cosine", everywhere=True, keep=())
            found[f"cosine{percent}"] = replace(
                pruned, layers={name: _with_backends(layer) for name, layer in pruned.layers.items()}
            )
        return found

    def _everywhere(self, name: str) -> Plan:
        return Plan(dict.fromkeys(self.task.names, method(name).plan))

    def noise(self, plan: Plan, firsts: int = 1) -> dict[str, float]:
        """Measure the variance of a plan in units of the minibatch's, and the forward's squared change.

        Thresholds are those of the first batch, and noise grows with them: so several batches may take turns as the
        first.  The spread is that over these.
        """
        if not plan.layers:
            return {"rho": 0.0, "spread": 0.0, "pi": 0.0}
        found = [self._noise_from(first, plan) for first in range(0, BATCHES, -(-BATCHES // firsts))]
        rho, pi = np.mean(found, axis=0).tolist()
        return {"rho": rho, "spread": float(np.std(found, axis=0)[0]), "pi": pi}

    def _noise_from(self, first: int, plan: Plan) -> tuple[float, float]:
        """Measure rho and pi with thresholds of one batch."""
        batches = self.batches[first:] + self.batches[:first]
        found = lograd.variance(
            self.model, batches, plan, loss_fn, steps=BATCHES, treated=BATCHES, repeats=REPEATS, contributions=False,
            progress=False,
        ).total  # fmt: skip
        unit, moved = self.task.problem.unit, 0.0
        if found.forward is not None:
            norm, cosine = found.forward.norm, found.forward.cosine
            moved = found.energy / norm**2 * (norm**2 - 2 * norm * cosine + 1)
        return found.noise.mean / unit, moved / unit

    def seconds(self, plan: Plan) -> dict[str, float]:
        """Measure a step with a plan and the plain one, in turns."""
        loss = partial(loss_of, self.model, self.batches[-1], loss_fn)
        with restored(self.model), torch.enable_grad():
            timer = Timer(self.model, loss, {}, lambda count: None)
            for _ in range(TURNS):
                for _ in range(2 * STEPS):
                    timer.plain()
                timer.time("plan", plan, WARM_UP + 1, watched=0, whole=STEPS)
        return {"seconds": timer.times["plan"].step, "plain": timer.times[DENSE].step}


def _with_backends(layer: Any) -> Any:
    """Return the plan of a pruned layer with sparse products."""
    products = {name: replace(getattr(layer, name), backend="sparse") for name in ("input_gradient", "weight_gradient")}
    return replace(layer, **products)


def variance_rows(network: Network) -> list[dict[str, Any]]:
    """Predicted and measured variance of mixed plans."""
    rows = []
    for name, (plan, predicted) in network.plans().items():
        rows.append({"plan": name, "predicted": predicted.noise, **network.noise(plan, network.firsts)})
        _say(network, rows[-1])
    return rows


def time_rows(network: Network) -> list[dict[str, Any]]:
    """Predicted and measured seconds of mixed plans."""
    rows = []
    for name, (plan, predicted) in network.plans().items():
        rows.append({"plan": name, "predicted": predicted.seconds, **network.seconds(plan)})
        _say(network, rows[-1])
    return rows


def frontier_rows(network: Network) -> list[dict[str, Any]]:
    """Measured noise and seconds of chosen plans and of those beside them."""
    plans = {f"chosen for {budget:g}": network.chosen(budget)[0] for budget in FRONTIER_BUDGETS} | network.beside()
    rows = []
    for name, plan in plans.items():
        rows.append({"plan": name, **network.noise(plan), **network.seconds(plan)})
        _say(network, rows[-1])
    return rows


def _say(network: Network, row: dict[str, Any]) -> None:
    print(f"{network.case.name}: {row}", file=sys.stderr, flush=True)


MEASURES: dict[str, Callable[[Network], list[dict[str, Any]]]] = {
    "variance": variance_rows,
    "time": time_rows,
    "frontier": frontier_rows,
}


def tables(results: dict[str, dict[str, Any]]) -> str:
    """Return the tables of all finished parts."""
    rows: dict[str, list[dict[str, str]]] = {part: [] for part in PARTS}
    for name, parts in results.items():
        for row in parts.get("variance", ()):
            rows["variance"].append(_variance_cells(name, row))
        for row in parts.get("time", ()):
            rows["time"].append(_time_cells(name, row))
        rows["frontier"] += _frontier_cells(name, parts.get("frontier", ()))
    return "\n\n".join(markdown(found, list(found[0])) for found in rows.values() if found)


def _variance_cells(name: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "network": name, "plan": row["plan"], "predicted rho": f"{row['predicted']:.3g}",
        "measured rho": f"{row['rho']:.3g} ± {row['spread']:.1g}",
        "predicted / measured": f"{row['predicted'] / row['rho']:.2f}" if row["rho"] else "",
    }  # fmt: skip


def _time_cells(name: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "network": name, "plan": row["plan"], "plain, ms": f"{1e3 * row['plain']:.1f}",
        "predicted, ms": f"{1e3 * row['predicted']:.1f}", "measured, ms": f"{1e3 * row['seconds']:.1f}",
        "predicted / measured": f"{row['predicted'] / row['seconds']:.2f}",
    }  # fmt: skip


def _frontier_cells(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each plan beside the frontier, with the chosen plans that are as fast and as quiet."""
    chosen = [row for row in rows if row["plan"].startswith("chosen")]
    found = []
    for row in rows:
        if row in chosen:
            continue
        as_fast = [_total(one) for one in chosen if one["seconds"] <= row["seconds"]]
        as_quiet = [one["seconds"] for one in chosen if _total(one) <= _total(row)]
        found.append(
            {
                "network": name, "plan": row["plan"], "ms": f"{1e3 * row['seconds']:.1f}",
                "rho + pi": f"{_total(row):.3g}",
                "rho + pi of a chosen plan as fast": f"{min(as_fast):.3g}" if as_fast else "none as fast",
                "ms of a chosen plan as quiet": f"{1e3 * min(as_quiet):.1f}" if as_quiet else "none as quiet",
            }
        )  # fmt: skip
    return found


def _total(row: dict[str, Any]) -> float:
    return float(row["rho"] + row["pi"])


def main(
    parts: str = typer.Option(",".join(PARTS), help="What to measure."),
    only: str = typer.Option("", help="Networks whose name contains this."),
    small: bool = typer.Option(False, help="Small networks instead, for variance on a loaded machine."),
    steps: int = typer.Option(100, min=0, help="Steps of training before the profile."),
    firsts: int = typer.Option(
        3, min=1, max=BATCHES, help="Batches that give thresholds, in turn, where variance is compared."
    ),
    threads: int = typer.Option(1, min=1, max=256, help="Threads."),
    folder: Path = typer.Option(Path("runs/predictions"), help="Where finished parts are kept."),
    save: bool = typer.Option(True, help="Write benchmarks/results/predictions.*."),
) -> None:
    """Predicted against measured noise and time of mixed plans."""
    wanted = [part for part in PARTS if part in parts.split(",")]
    if unknown := set(parts.split(",")) - set(PARTS):
        raise typer.BadParameter(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    cases = [case for case in (SMALL if small else CASES) if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no network contains {only!r}")
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        path = folder / f"{case.name.replace(' ', '-').replace(',', '')}-{threads}.json"
        done = json.loads(path.read_text()) if path.exists() else {"name": case.name, "threads": threads}
        left = [part for part in wanted if part not in done]
        network = Network(case, steps, firsts) if left else None
        for part in left:
            assert network is not None
            done[part] = MEASURES[part](network)
            path.write_text(json.dumps(done, indent=2))
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    results = {f"{one['name']}, {one['threads']} thread{'s' * (one['threads'] > 1)}": one for one in found}
    text = tables(results)
    print(text)
    what = (
        f"Mixed plans, predicted and measured, after {steps} steps of training. rho: added variance in units of the "
        f"minibatch's, over {REPEATS} draws of {BATCHES} batches with thresholds from one of them; mean and spread "
        "over several such batches. pi: the squared change by a rounded forward. Times are minima of forward and "
        "backward, in turns with the plain step. `./dev bench predictions` makes this table."
    )
    if save:
        content = {"what": what, "versions": versions("torch"), "machine": conditions(), "rows": list(results.values())}
        write("predictions", content, what, text)


if __name__ == "__main__":
    typer.run(main)
