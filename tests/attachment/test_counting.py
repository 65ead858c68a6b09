"""What attached layers count: what pruning has zeroed apart from what a format has flushed to zero."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lograd
from lograd.treatments import apply, mixes, recipe


def _attached(name: str, steps: int = 4) -> lograd.Handle:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    handle = lograd.attach(model, lograd.Plan.uniform(name), backend="dense")
    for _ in range(steps):
        model(torch.randn(64, 16)).square().mean().backward()
        handle.step()
    return handle


@pytest.mark.parametrize(
    ("name", "prunes", "rounds"),
    [
        ("prune85", True, False),
        ("topk85", True, False),
        ("atp85", True, False),
        ("fp4", False, True),
        ("fp4-luq", False, True),
        ("prune50+fp4", True, True),
        ("identity", False, False),
    ],
)
def test_zeros_are_counted_by_what_made_them(name: str, prunes: bool, rounds: bool) -> None:
    with _attached(name) as handle:
        total = handle.counters().total
    assert (total.pruned > 0) == prunes
    assert (total.underflowed > 0) == rounds
    assert total.zeros_before + total.pruned + total.underflowed == total.zeros_after


def test_of_a_mixed_sentence_the_pruned_elements_are_those_that_pruning_alone_makes_zero() -> None:
    g = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).mul(4).exp()
    g[:100] = 0
    sentence = recipe("topk20+fp4").input_gradient.gradient
    assert mixes(sentence)
    counts = apply(sentence, g).counts.tolist()
    alone = apply(sentence[:1], g).result
    assert counts[3] == 100
    assert counts[4] == int((alone == 0).sum()) - 100
    assert counts[0] > counts[3] + counts[4]  # and the format has flushed some more
