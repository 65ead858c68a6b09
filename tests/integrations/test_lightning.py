"""Lightning's Trainer with `LightningCallback`: real trainings of a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

zoo.torchvision()  # which Lightning imports with its metrics

lightning = pytest.importorskip("pytorch_lightning")

from lograd.integrations import LightningCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Network(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(128, 96), nn.Linear(96, 5)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, labels = batch
        return nn.functional.cross_entropy(self.last(self.first(x).relu()), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(
    folder: Path, callback: LightningCallback, steps: int, *, network: Network | None = None,
    resume: Path | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Train a new network, or the given one, and return the Trainer."""
    made = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(24, 128, generator=made), torch.arange(24) % 5)  # an epoch is three steps
    saving = lightning.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, log_every_n_steps=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback, saving], **options,
    )  # fmt: skip
    trainer.fit(network or Network(), DataLoader(data, batch_size=8), ckpt_path=resume)
    return trainer


def test_a_recipe_is_attached_counted_logged_and_removed(tmp_path: Path) -> None:
    callback = LightningCallback("prune50", backend="dense")
    trainer = train(tmp_path, callback, 4)
    assert callback.handle is not None
    assert callback.handle.steps == 4
    assert type(trainer.lightning_module.first) is nn.Linear
    assert "prune 0.5" in callback.handle.explain()
    assert trainer.logged_metrics["lograd/steps"] == 4
    assert 0.3 < trainer.logged_metrics["lograd/sparsity"] < 0.8


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    callback = LightningCallback("fp6")
    train(tmp_path, callback, 3, accumulate_grad_batches=2)
    assert callback.handle is not None
    assert callback.handle.steps == 3


def test_a_resumed_run_ends_with_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", LightningCallback("prune50", backend="dense"), 6)
    train(tmp_path / "parts", LightningCallback("prune50", backend="dense"), 3)
    callback = LightningCallback("prune50", backend="dense")
    resumed = train(tmp_path / "parts", callback, 6, resume=next((tmp_path / "parts").glob("*step=3.ckpt")))
    assert callback.handle is not None
    assert callback.handle.steps == 6
    for name, expected in whole.lightning_module.state_dict().items():
        torch.testing.assert_close(resumed.lightning_module.state_dict()[name], expected, rtol=0, atol=0)


def test_a_training_that_fails_leaves_a_plain_model(tmp_path: Path) -> None:
    class Failing(Network):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert type(self.first) is not nn.Linear
            raise KeyError("from the user's code")

    network = Failing()
    with pytest.raises(KeyError, match="user's code"):
        train(tmp_path, LightningCallback("fp6"), 4, network=network)
    assert type(network.first) is nn.Linear
