"""Monte Carlo with a computed band: a prediction must lie within 4 standard errors of the simulated mean."""

from experiments.simulate import Estimate


def assert_in_band(predicted, samples, what="", slack=0.0):
    estimate = Estimate.of(samples)
    assert estimate.agrees(predicted, slack), f"{what}: predicted {predicted}, simulated {estimate}"
