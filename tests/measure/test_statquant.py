"""The claims of the StatQuant paper on a network that has learned: which quantizer adds less, unbiased, additive."""

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch.nn.functional as F
from everyday import daily
from trained import trained_resnet

import lograd
from lograd.measure import Variance
from lograd.measure.values import SIGMAS
from lograd.treatments import Interval, both

METHODS = ("ptq", "psq", "bhq")
UNBIASED = ("int5-bhq", "int4-psq", "fp4-luq", "prune70", "int8-full")
BIASED = ("int8-ptq-nearest", "topk70", "saw80")


@lru_cache(maxsize=32)
def measured(recipe: str, contributions: bool = False) -> Variance:
    model, batches = trained_resnet()
    plan = lograd.Plan.uniform(recipe)
    options = {"steps": 4, "repeats": 8, "treated": 1} if contributions else {"steps": 3, "repeats": 6}
    return lograd.variance(model, batches, plan, F.cross_entropy, contributions=contributions, **options)


@pytest.mark.parametrize("bits", daily([4, 5, 8], [4]))
def test_ptq_adds_more_than_psq_and_psq_more_than_bhq(bits):
    """The gradient for dX alone is treated, as the paper's methods differ in nothing else."""
    totals = [measured(f"int{bits}-{method}/identity").total.noise for method in METHODS]
    for larger, smaller in pairwise(totals):
        assert larger.mean - smaller.mean > SIGMAS * np.hypot(larger.error, smaller.error)


@pytest.mark.slow
def test_the_order_holds_for_whole_recipes_with_eight_bits_for_dW():
    totals = [measured(f"int4-{method}").total.noise.mean for method in METHODS]
    assert totals[0] > totals[1] > totals[2]


@pytest.mark.slow
def test_five_bits_of_bhq_are_about_as_good_as_eight_of_ptq():
    five, eight, worse = (measured(name).total.noise.mean for name in ("int5-bhq", "int8-ptq", "int5-ptq"))
    assert five < 1.6 * eight
    assert worse > 5 * five


def test_more_bits_add_less_and_a_bit_is_worth_a_factor_of_about_four():
    noise = [measured(f"int{bits}-psq/identity").total.noise.mean for bits in (4, 5)]
    assert 3 < noise[0] / noise[1] < 6


@pytest.mark.parametrize("recipe", daily(UNBIASED, ("prune70", "int8-full")))
def test_unbiased_recipes_stay_inside_the_band(recipe):
    found = measured(recipe)
    assert found.biased == ()
    assert found.total.inside_band
    assert found.total.noise.mean > 0


@pytest.mark.parametrize("recipe", daily(BIASED, ("topk70",)))
def test_biased_recipes_are_outside(recipe):
    found = measured(recipe)
    assert not found.total.inside_band
    assert len(found.biased) >= len(found.tensors) - 1
    assert found.total.bias.mean == pytest.approx(found.total.noise.mean, rel=1e-6), "there is nothing but bias"


def test_a_bias_is_seen_amid_noise():
    """An interval that clips one element in a hundred, and rounds the others stochastically."""
    model, batches = trained_resnet()
    treatment = Interval(4, alpha=0.15)
    plan = lograd.Plan(every=lograd.LayerPlan.of(both(treatment)))
    found = lograd.variance(model, batches, plan, F.cross_entropy, steps=3, repeats=16, contributions=False)
    assert not found.total.inside_band
    assert 0 < found.total.bias.mean < found.total.noise.mean
    assert found.total.noise.error > 0


def test_contributions_add_up_to_the_whole_where_noise_is_small():
    found = measured("int5-bhq", contributions=True)
    matrix = found.contributions
    assert matrix.layers == tuple(dict.fromkeys(site.layer for site in found.sites))
    for one in (*found.tensors, found.total):
        assert matrix.sum(one.name).agrees(one.noise.mean, one.noise.error), one.name
    assert matrix.sum().mean == pytest.approx(found.total.noise.mean, rel=0.15)


def test_noise_flows_towards_the_input_and_never_back():
    matrix = measured("int5-bhq", contributions=True).contributions
    row, column = matrix.layers.index, matrix.tensors.index
    first, last = row("conv1"), row("fc")
    for name in ("blocks.0.conv1.weight", "blocks.2.conv2.weight", "fc.weight"):
        assert matrix.noise[first, column(name)] == 0, "the first layer's own weight is the only one behind it"
    assert matrix.noise[row("blocks.1.conv2"), column("blocks.1.conv1.weight")] > 0
    assert matrix.noise[row("blocks.1.conv2"), column("blocks.1.shortcut.0.weight")] == 0, "a parallel branch"
    assert all(matrix.noise[last, :] > 0)


@pytest.mark.slow
def test_strong_noise_grows_on_its_way_so_that_single_layers_add_up_to_less():
    found = measured("int3-ptq", contributions=True)
    matrix = found.contributions
    assert matrix.sum().mean < 0.7 * found.total.noise.mean
    assert not matrix.sum().agrees(found.total.noise.mean, found.total.noise.error)
    assert "they differ by more than 4 sigma in" in found.layers_table()


@pytest.mark.parametrize("recipe", ["int4-ptq", "int4-psq", "int5-bhq"])
def test_quantizers_add_what_the_law_predicts(recipe):
    sites = measured(recipe).sites
    assert {"conv1", "blocks.1.shortcut.0", "fc"} <= {site.layer for site in sites}
    for site in sites:
        assert site.noise.mean > 0
    assert not any(site.layer == "conv1" and site.product == "dX" for site in sites), "nobody needs its dX"
    tensors = [site for site in sites if site.product == "dW"]
    assert all(0.5 < site.predicted / site.noise.mean < 2 for site in tensors), "by the law of |G|, for PTQ"


def test_a_quantized_forward_is_told_apart_from_noise():
    found = measured("int8-full")
    assert 0.98 < found.total.forward.cosine < 1
    assert found["conv1.weight"].forward.norm == pytest.approx(1, abs=0.1)
    assert found["fc.weight"].noise.mean == 0, "kept: its gradient is exact, and so is what arrives there"
    assert found["fc.weight"].forward.cosine < 1
    assert measured("int5-bhq").total.forward is None
