"""The choice between dense and sparse products: what sparse ones serve, and how both are timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lograd
from lograd import native
from lograd.engine.backends import choice as choosing
from lograd.engine.backends.choice import DENSE, SPARSE, Times, timed, unserved, unserved_here

Call = Any


def test_reasons_to_stay_dense() -> None:
    image = torch.zeros(2, 64, 8, 8)
    if native.status().available:
        assert unserved_here("sparse", image) is None
    else:
        assert "native" in str(unserved_here("sparse", image))
    assert unserved("sparse", (32, 64, 3, 3)) is None
    assert unserved("sparse", (5, 3)) is None
    assert "depthwise" in str(unserved("sparse", (64, 1, 3, 3), groups=64))
    assert "transposed" in str(unserved("sparse", (32, 64, 3, 3), transposed=True))
    assert "three dimensions" in str(unserved("sparse", (2, 64, 3, 3, 3)))
    assert "3 input channels" in str(unserved("sparse", (32, 3, 3, 3)))
    assert "meta" in str(unserved_here("sparse", image.to("meta")))
    assert "float64" in str(unserved_here("sparse", image.double()))


class Clock:
    """Time that passes only where a way says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(choosing.time, "perf_counter", lambda: self.now)

    def way(self, *milliseconds: float) -> Call:
        """A way that takes so long, one call after the other, and then always as long as the last one."""
        left = list(milliseconds)

        def call() -> None:
            self.calls += 1
            self.now += 1e-3 * (left.pop(0) if len(left) > 1 else left[0])

        return call


def test_the_smallest_time_counts_but_not_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed(dense=clock.way(1.0, 30.0, 20.0), sparse=clock.way(1.0, 3.0, 4.0))
    assert times[:2] == pytest.approx((20.0, 3.0))
    assert times.integer is None
    assert clock.calls == 6


def test_short_ways_are_timed_often_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert timed(dense=clock.way(*[0.3] * 10, 0.1), sparse=clock.way(0.2))[:2] == pytest.approx((0.1, 0.2))
    assert 40 < clock.calls < 2 * choosing.MOST_TURNS
    clock.calls = 0
    timed(dense=clock.way(0.0), integer=clock.way(0.0))
    assert clock.calls == 2 * (choosing.MOST_TURNS + 1)


def test_sparse_wins_by_a_margin() -> None:
    assert Times(1.0, 0.9).fastest == SPARSE
    assert Times(1.0, 0.97).fastest == DENSE
    assert Times(1.0, 1.1).fastest == DENSE


def test_what_is_no_backend_is_refused() -> None:
    layer = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(lograd.InvalidValue, match=r"backend must be .* got 'spars'\. Did you mean 'sparse'\?"):
        lograd.attach(layer, lograd.Plan.uniform("prune85"), backend="spars")  # type: ignore[arg-type]
    assert type(layer[0]) is nn.Linear
