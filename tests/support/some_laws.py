"""One law of each family, for tests that hold for any law."""

from __future__ import annotations

from lograd.laws import Empirical, Exponential, HalfNormal, LogLaplace, LogNormal, Uniform

LAWS = [
    LogNormal(-3.0, 0.5),
    LogNormal(0.0, 1.5),
    HalfNormal(0.3),
    Exponential(2.0),
    Uniform(0.0, 1.0),
    Uniform(0.5, 3.0),
    LogLaplace(0.0, 0.2),
    Empirical.fit(LogNormal(-2.0, 1.2).sample(20_000, seed=9)),
]
