"""Hugging Face's Trainer with `LogradCallback`: real trainings of a tiny network."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import zoo
from torch import nn

import lograd
from lograd.errors import InvalidType, LogradWarning
from lograd.integrations import LogradCallback
from lograd.integrations.trainer import STATE

zoo.torchvision()  # which transformers imports with its Trainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Network(nn.Module):
    """Two layers and a loss, in the form that Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 96), nn.Linear(96, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.last(self.first(x).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data() -> list[dict[str, Any]]:
    """Return 64 examples, always the same."""
    made = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(128, generator=made), "labels": number % 5} for number in range(64)]


def trainer(folder: Path, callback: LogradCallback, steps: int, **options: Any) -> transformers.Trainer:
    """Return a Trainer of a new network that saves every third step."""
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, learning_rate=0.1, optim="sgd",
        lr_scheduler_type="constant", save_steps=3, logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True,
        seed=0, **options,
    )  # fmt: skip
    return transformers.Trainer(Network(), arguments, train_dataset=data(), callbacks=[callback])


def test_a_recipe_is_attached_counted_logged_and_removed(tmp_path: Path) -> None:
    callback = LogradCallback("prune50", backend="dense")
    made = trainer(tmp_path, callback, 4)
    made.train()
    assert callback.handle is not None
    assert callback.handle.steps == 4
    assert type(made.model.first) is nn.Linear
    assert "prune 0.5" in callback.handle.explain()
    logged = [one for one in made.state.log_history if "loss" in one]
    assert logged[-1]["lograd/steps"] == 4
    assert 0.3 < logged[-1]["lograd/sparsity"] < 0.8
    assert (tmp_path / "checkpoint-3" / STATE).exists()


def test_gradient_accumulation_counts_steps_of_the_optimizer(tmp_path: Path) -> None:
    callback = LogradCallback("fp6")
    trainer(tmp_path, callback, 3, gradient_accumulation_steps=2).train()
    assert callback.handle is not None
    assert callback.handle.steps == 3


def test_a_resumed_run_ends_with_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", LogradCallback("prune50", backend="dense"), 6)
    whole.train()
    trainer(tmp_path / "parts", LogradCallback("prune50", backend="dense"), 3).train()
    callback = LogradCallback("prune50", backend="dense")
    resumed = trainer(tmp_path / "parts", callback, 6)
    resumed.train(resume_from_checkpoint=True)
    assert callback.handle is not None
    assert callback.handle.steps == 6
    for name, expected in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], expected, rtol=0, atol=0)


def test_a_checkpoint_without_state_begins_anew_with_a_warning(tmp_path: Path) -> None:
    trainer(tmp_path, LogradCallback("fp6"), 3).train()
    (tmp_path / "checkpoint-3" / STATE).unlink()
    callback = LogradCallback("fp6")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer(tmp_path, callback, 6).train(resume_from_checkpoint=True)
    assert any(one.category is LogradWarning and STATE in str(one.message) for one in said)
    assert callback.handle is not None
    assert callback.handle.steps == 3


@pytest.mark.skipif(not lograd.native.status().available, reason="accelerate needs the kernels")
def test_auto_accelerates(tmp_path: Path) -> None:
    callback = LogradCallback("auto", quiet=True)
    trainer(tmp_path, callback, 6).train()
    assert callback.handle is not None
    assert "stays as it is" in callback.handle.explain()  # these layers are too small


def test_a_plan_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidType, match="plan"):
        LogradCallback(3)  # type: ignore[arg-type]
