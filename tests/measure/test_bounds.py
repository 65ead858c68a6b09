"""The paper's bounds against the quantizers that they are about."""

import pytest
import torch

from lograd.measure.estimates import bound_of
from lograd.theory.variance import per_sample_variance_bound
from lograd.treatments import Hadamard, Luq, StatQuant, apply


def rows(spread=1.5, shape=(24, 40)):
    generator = torch.Generator().manual_seed(0)
    scale = torch.exp(spread * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=generator))
    return scale * torch.randn(shape, generator=generator)


def measured(treatment, g, draws=20):
    return (
        sum(float((apply((treatment,), g, seed).result - g).double().square().sum()) for seed in range(draws)) / draws
    )


@pytest.mark.parametrize("method", ["ptq", "psq", "bhq"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("g", [rows(0.0), rows(2.0), rows(1.0, (12, 4, 5, 5))], ids=["even", "uneven", "images"])
def test_bounds_hold_and_are_not_far_above(method, bits, g):
    treatment = StatQuant(bits, method)
    noise, bound = measured(treatment, g), bound_of((treatment,), g)
    assert noise < bound
    if method == "psq":
        assert bound < 3 * noise


def test_the_bound_per_sample_is_the_formula():
    g = rows()
    ranges = (g.amax(1) - g.amin(1)).double().numpy()
    assert bound_of((StatQuant(5, "psq"),), g) == pytest.approx(float(per_sample_variance_bound(ranges, 40, 5)))


def test_a_vector_and_zeros():
    vector = torch.linspace(-1, 2, 50)
    bounds = [bound_of((StatQuant(4, method),), vector) for method in ("ptq", "psq", "bhq")]
    assert bounds[0] == bounds[1] == bounds[2] > measured(StatQuant(4, "psq"), vector)
    assert bound_of((StatQuant(4, "bhq"),), torch.zeros(4, 6)) == 0
    assert bound_of((StatQuant(4, "psq"),), torch.zeros(4, 6)) == 0


@pytest.mark.parametrize(
    "treatments",
    [(), (Luq(4),), (StatQuant(4), StatQuant(4)), (StatQuant(4, "ptq", "nearest"),), (Hadamard(StatQuant(4)),)],
)
def test_what_the_paper_does_not_have_has_no_bound(treatments):
    assert bound_of(treatments, rows()) is None
