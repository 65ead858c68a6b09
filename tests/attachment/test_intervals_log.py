"""Errors of clipped levels while training: from the last histogram and the interval in force, by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lograd
from lograd.theory import measured_interval_errors


def trained(recipe: str, steps: int = 4, **options: object) -> tuple[lograd.Handle, torch.Tensor]:
    """A handle after some steps, and the last gradient of the first layer's output."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    handle = lograd.attach(model, lograd.Plan.uniform(recipe), refresh=1, **options)  # type: ignore[arg-type]
    seen = []
    for step in range(steps):
        x = torch.randn(256, 64, generator=torch.Generator().manual_seed(step))
        y = model[0](x)
        y.register_hook(lambda g: seen.append(g.clone()))
        nn.functional.cross_entropy(model[2](model[1](y)), torch.arange(256) % 10).backward()
        handle.step()
    return handle, seen[-1] if seen else torch.zeros(0)


@pytest.mark.parametrize("recipe", ["int4", "int4-squared", "int4-cosine"])
def test_scales_in_force_are_intervals(recipe: str) -> None:
    handle, g = trained(recipe)
    found = handle.intervals(0.01)
    assert list(found) == ["0", "2"]
    one = found["0"]
    assert one.step == 3
    assert one.gamma == pytest.approx(1.0, rel=1e-5) if recipe == "int4" else one.gamma < 0.9
    largest = float(g.abs().max())
    (scale,) = handle.layers["0"].sites["gradient"].numbers.tolist()
    wanted = measured_interval_errors(g, 4, 7 / scale / largest, 0.01)
    assert one.error_all == pytest.approx(float(wanted.all), rel=0.1)
    assert one.error_large == pytest.approx(float(wanted.large), rel=0.15, abs=2e-3)
    assert one.error_large <= one.bound
    assert "gamma by law" in str(found)


def test_the_interval_of_the_paper_goes_to_its_law() -> None:
    handle, _ = trained("int4-interval", steps=1)
    one = handle.intervals()["0"]
    assert one.gamma == pytest.approx(one.gamma_by_law, rel=0.07, abs=2e-3)  # a bin of the histogram, a step of gamma


def test_other_treatments_have_none() -> None:
    assert not trained("prune80+fp6")[0].intervals()
    assert not trained("int4", steps=0)[0].intervals()
    assert not trained("prune50+int4")[0].intervals()  # what pruning leaves over is not what was counted


def test_a_loss_scale_changes_nothing() -> None:
    handle, _ = trained("int4-squared", loss_scale=1.0)
    before = handle.intervals()["0"]
    handle.step(loss_scale=64.0)
    after = handle.intervals()["0"]
    assert after.gamma == pytest.approx(before.gamma, rel=1e-6)
    assert after.error_large == pytest.approx(before.error_large, rel=1e-6)
