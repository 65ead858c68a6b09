"""Records: the numbers of a histogram agree with the data, and records add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.laws import LogNormal, ks_distance


def test_numbers_of_a_record_agree_with_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=generator).mul(2).exp() * torch.randn(200_000, generator=generator).sign()
    model = nn.Sequential(nn.Identity())
    with lograd.observe(model, every=1, filter_fn=lambda module, name: name == "0") as profile:
        leaf = torch.zeros_like(x, requires_grad=True)
        (model(leaf * 1.0) * x).sum().backward()
    record = profile["0"].last
    assert record.mu == pytest.approx(float(x.abs().log().mean()), abs=1e-3)
    assert record.sigma == pytest.approx(float(x.abs().log().std()), abs=1e-3)
    largest, smallest = float(x.abs().max()), float(x.abs().min())
    assert largest <= record.largest <= largest * 17 / 16
    assert smallest * 15 / 16 <= record.smallest <= smallest
    assert record.ks(LogNormal) == pytest.approx(ks_distance(LogNormal.fit(x), x), abs=2e-3)


def test_masked_shares_merge_by_elements():
    halves = [lograd.profile(conv_net(), [batch], cross_entropy) for batch in image_batches(2)]
    merged = lograd.Profile.merge(halves)
    assert merged["0"].masked == pytest.approx(np.mean([half["0"].masked for half in halves]))
