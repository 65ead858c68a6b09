"""Squared norms by group, and the variance of minibatches, against gradients whose law is known."""

import numpy as np
import pytest
import torch

from lograd.measure.passes import Groups, Minibatches, energy
from lograd.measure.values import TOTAL, VECTORS


def test_groups_add_up():
    parameters = {"a": torch.zeros(3, 2), "b": torch.zeros(3), "c": torch.zeros(2, 2, 2), "d": torch.zeros(1)}
    groups = Groups(parameters)
    assert groups.names == ("a", "c", VECTORS, TOTAL)
    assert groups.elements == [6, 8, 4, 18]
    generator = torch.Generator().manual_seed(0)
    draws = [[torch.randn(one.shape, generator=generator) for one in parameters.values()] for _ in range(3)]
    gram = groups.gram(draws)
    for place, one in enumerate(draws):
        assert gram[:, place, place] == pytest.approx(groups.energies(one), rel=1e-15)
        assert groups.products(one, draws[0]) == pytest.approx(gram[:, place, 0], rel=1e-12)
    assert energy(draws[0][0]) == pytest.approx(float(draws[0][0].double().square().sum()), rel=1e-15)


@pytest.mark.parametrize("count", [3, 8])
def test_minibatch_variance_and_its_standard_error(count):
    """Each of 2,000 tensors is a trial of its own, with normal gradients of unequal variances."""
    trials, scales = 2000, torch.linspace(0.5, 2, 12).reshape(3, 4)
    found = Minibatches(Groups({f"trial {place}": scales for place in range(trials)}))
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        found.add(list(1 + scales * torch.randn(trials, 3, 4, generator=generator)))
    means, errors = np.array([(one.mean, one.error) for one in found.variance()[:-1]]).T
    assert means.mean() == pytest.approx(float(scales.square().sum()), rel=0.02)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(means.std(ddof=1), rel=0.06)
    assert found.signal()[:-1].mean() == pytest.approx(scales.numel(), rel=0.03)
