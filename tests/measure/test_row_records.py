"""The law of row norms in a profile: what it predicts is what `Rows` keeps."""

import pytest
import torch
from torch import nn

import lograd
from lograd import LayerPlan, Plan, Profile, theory
from lograd.laws import LogNormal
from lograd.ops.row_pruning import expected_rows, row_threshold
from lograd.treatments import Rows, both


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 8))


def loss(network: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    x, sizes = batch[..., :-1], batch[..., -1:]
    return (network(x).square() * sizes).sum()


def batches() -> list[torch.Tensor]:
    torch.manual_seed(1)
    sizes = torch.distributions.LogNormal(0.0, 1.5).sample((64, 16, 1)) * (torch.rand(64, 16, 1) < 0.5)
    return [torch.cat([torch.randn(64, 16, 32), sizes], dim=2)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_the_predicted_share_of_rows_is_kept(noise, tmp_path):
    network = model()
    profile = lograd.profile(network, batches(), loss, steps=1)
    path = profile.save(tmp_path / "profile.npz")
    again = Profile.load(path)
    assert again.layers["0"].row_records == profile.layers["0"].row_records
    with lograd.attach(network, Plan(every=LayerPlan.of(both(Rows(noise=noise))))) as handle:
        loss(network, batches()[0]).backward()
        counts = handle.counters().layers
    last = again.layers["2"]  # what it drops is missing in the gradients of the layer before it
    measured = counts["2"].rows_kept / counts["2"].rows
    assert last.rows_kept(noise) == pytest.approx(measured, rel=0.15, abs=0.02)
    assert last.row_records[-1].zeros == counts["2"].rows_zero
    assert "rows that are zero" in str(profile.row_table())


def test_the_law_of_rows_tells_how_many_are_kept():
    law = LogNormal(0.0, 2.0)
    assert theory.rows_kept(law, 0.0, zeros=0.25) == 0.75
    torch.manual_seed(2)
    drawn = torch.distributions.LogNormal(0.0, 2.0).sample((200_000,)).double()
    kept = expected_rows(drawn, row_threshold(drawn, noise=0.1)) / len(drawn)
    assert theory.rows_kept(law, 0.1) == pytest.approx(kept, rel=0.25)
