"""Every method by its recipe, in one table: what each claims is measured, also on odd gradients.

A family of recipes joins by standing in `ALL_RECIPES`; its example is tested here without a further word.
"""

import math

import numpy as np
import pytest
import torch
from everyday import daily
from methods import EXAMPLES, NAMES, gradient, sides
from torch import nn

import lograd
from lograd import Plan
from lograd.laws import Empirical
from lograd.ops.layouts import dense
from lograd.theory import per_sample_variance_bound
from lograd.treatments import Statistics, apply, numbers_of, predict, recipe

NO_NAN = ("integers", "learned", "sawb")
"""Kinds of treatments that have no code for NaN."""

# -- bias --

UNBIASED = [name for name in NAMES if sides(name) and all(one.unbiased for part, _ in sides(name) for one in part)]
BIASED = [
    "topk85", "topk85-sample", "topk85-batch", "fp6-lognormal", "s2fp8", "int4-interval", "hfp8", "saw80",
    "mxfp4-nearest", "fp6-nearest", "int8-psq-nearest", "fp4-luq-nearest", "int4wa", "int8wa-lsq",
]  # fmt: skip


def projections(sentence, contracted, draws, g):
    """The error of each draw, against what it would be if it grew with the gradient, its sign, or nothing."""
    directions = torch.stack([g.flatten(), g.sign().flatten(), torch.ones(g.numel())]).double()
    numbers = numbers_of(sentence, Statistics(Empirical.fit(g)))
    results = [apply(sentence, g, seed, numbers=numbers, contracted=contracted).result for seed in range(draws)]
    errors = torch.stack([(result - g).double().flatten() for result in results])
    return (errors @ directions.T).numpy()


@pytest.mark.parametrize("name", daily(UNBIASED, ("prune85", "fp6", "int8-psq", "fp4-luq")))
def test_a_claim_of_no_bias_holds_within_the_band_over_seeds(name):
    for sentence, contracted in sides(name):
        found = projections(sentence, contracted, 400, gradient(16, 64))
        band = 4 * found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert np.all(np.abs(found.mean(axis=0)) <= band + 1e-12), (found.mean(axis=0), band)
        assert np.all(band > 0), "nothing was random"


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_is_admitted_is_there(name):
    assert name not in UNBIASED
    for sentence, contracted in sides(name):
        found = projections(sentence, contracted, 50, gradient())
        band = 4 * found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert np.any(np.abs(found.mean(axis=0)) > band)


# -- prediction and measurement --


@pytest.mark.parametrize("name", daily(NAMES, EXAMPLES))
def test_predicted_is_measured(name):
    half = gradient(128, 512)
    g = torch.cat([half, -half])  # ranges are symmetric, which quantizers per tensor are predicted for
    x, statistics = g.double().flatten(), Statistics(Empirical.fit(g))
    for sentence, contracted in sides(name):
        predicted = predict(sentence, statistics)
        draws = [apply(sentence, g, seed, contracted=contracted).result.double().flatten() for seed in range(4)]
        if predicted is None:
            # Not foreseen from magnitudes alone; then it must be good, or a pruning to a known share.
            if name == "rows85":  # rows here are all about as long, so what is kept is as long as what is dropped
                kept = 1 - np.mean([float((y.reshape(g.shape) == 0).all(1).double().mean()) for y in draws])
                assert kept == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / (4 * len(g))))
            elif name != "fp4-dynamic":  # its scale is that of the loss
                assert np.mean([float(x @ y / (x.norm() * y.norm())) for y in draws]) > 0.75
            continue
        zeros = np.mean([float((y == 0).double().mean()) for y in draws])
        cosine = np.mean([float(x @ y / (x.norm() * y.norm())) for y in draws])
        error = np.mean([float((y[x != 0] / x[x != 0] - 1).abs().mean()) for y in draws])
        # Ranges come from the histogram: up to 1/16 of the largest magnitude too wide.
        assert predicted.sparsity == pytest.approx(zeros, abs=0.01)
        assert predicted.cosine == pytest.approx(cosine, rel=0.02)
        assert predicted.relative_error == pytest.approx(error, rel=0.08, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "share"), [("topk85", 0.85), ("topk85-sample", 0.85), ("topk85-batch", 0.85), ("prune85", 0.85)]
)
def test_zeros_asked_are_zeros_got(name, share):
    result, counts = apply(recipe(name).input_gradient.gradient, gradient(zeros=0.0))
    assert int(counts[0]) == int((result == 0).sum())
    band = 0.004 if "topk" in name else 4 * math.sqrt(share * (1 - share) / result.numel())
    assert abs(float((result == 0).double().mean()) - share) < band


def test_top_k_of_the_batch_is_one_set_of_positions():
    result = apply(recipe("topk85-batch").input_gradient.gradient, gradient(zeros=0.0)).result
    assert torch.equal(result == 0, (result[:1] == 0).expand_as(result))


@pytest.mark.parametrize("name", ["topk85", "topk85-sample", "topk85-batch", "topk85-stochastic"])
def test_the_largest_stays(name):
    g = torch.tensor([[1.0, -3.0, 2.0]])
    assert apply(recipe(name).input_gradient.gradient, g).result[0, 1] == -3.0
    same = torch.ones(4, 4)
    assert torch.equal(apply(recipe(name).input_gradient.gradient, same).result, same)


@pytest.mark.parametrize("name", NAMES)
def test_an_infinite_gradient_is_seen_by_whoever_looks_for_it(name):
    g = gradient(16, 64)
    numbers_from = Statistics(Empirical.fit(g))
    g[7, 9] = -math.inf
    for sentence, contracted in sides(name):
        numbers = [one.numbers(numbers_from) for one in sentence]
        result = apply(sentence, g, numbers=numbers, contracted=contracted).result
        assert not bool(result[7, 9].isfinite())


def test_two_backwards_of_a_step_draw_independent_noise():
    """Rows of ten are padded to 64: each of the padded elements has its number."""
    layer = nn.Linear(40, 10, bias=False)
    g, x = torch.randn(1, 10).expand(64, 10).contiguous(), torch.randn(64, 40, requires_grad=True)
    with lograd.attach(layer, Plan.uniform("int4-ptq-rht"), seed=1):
        errors = []
        for _ in range(2):
            x.grad = None
            layer(x).backward(g)
            errors.append(x.grad - g @ layer.weight.detach())
    for shift in range(12):
        pair = torch.stack([errors[0][shift:].flatten(), errors[1][: 64 - shift].flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.5


def test_atp_gives_what_its_law_gives_and_not_its_share():
    normal = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    found = apply(recipe("atp90").input_gradient.gradient, normal).counts[0] / normal.numel()
    assert float(found) == pytest.approx(0.54, abs=0.01)  # for p = 0.9 and a normal law


def test_the_variance_per_sample_is_within_its_bound():
    g = gradient(zeros=0.0)
    draws = torch.stack(
        [apply(recipe("int5-psq").input_gradient.gradient, g, seed).result for seed in range(100)]
    ).double()
    ranges = (g.amax(1) - g.amin(1)).numpy()
    assert float(draws.var(0).sum()) < float(per_sample_variance_bound(ranges, g.shape[1], 5))


def test_hadamard_spreads_an_outlier():
    g = gradient(32, 256, sigma=0.5, zeros=0.0)
    g[:, 7] *= 300
    error = {
        name: float((apply(recipe(name).input_gradient.gradient, g, contracted=(1,)).result - g).norm())
        for name in ("int4-ptq", "int4-ptq-rht")
    }
    assert error["int4-ptq-rht"] < 0.7 * error["int4-ptq"]


IDEMPOTENT = [
    "prune85", "prune85-lognormal", "topk85", "topk85-sample", "topk85-batch", "fp6-lognormal", "fp6-nearest",
    "fp4-static16", "fp4-dynamic", "mxfp4-nearest",
]  # fmt: skip


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_twice_is_once(name):
    g = gradient()
    sentence = recipe(name).input_gradient.gradient
    numbers = [one.numbers(Statistics(Empirical.fit(g))) for one in sentence]
    once = apply(sentence, g, 1, numbers=numbers).result
    assert not torch.equal(once, g)
    assert torch.equal(apply(sentence, once, 2, numbers=numbers).result, once)


# -- odd gradients --

ODD = {
    "zero": lambda: torch.zeros(4, 6),
    "tiny": lambda: torch.full((4, 6), 1e-42),
    "huge": lambda: torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).sign() * 3.3e38,
    "one row": lambda: gradient(1, 40),
    "one element": lambda: torch.tensor([[3e-4]]),
    "one large element": lambda: torch.tensor([[1e20]]),
    "constant": lambda: torch.full((4, 6), 1000.0),
    "empty": lambda: torch.zeros(0, 6),
    "bfloat16": lambda: gradient(8, 40).bfloat16(),
    "float16": lambda: gradient(8, 40).mul(100).half(),
    "transposed": lambda: gradient(8, 40).T,
    "with gaps": lambda: gradient(8, 80)[:, ::2],
    "images": lambda: gradient(8, 108).reshape(8, 3, 6, 6),
    "channels last": lambda: gradient(8, 108).reshape(8, 3, 6, 6).to(memory_format=torch.channels_last),
    "sequence": lambda: gradient(8, 33).reshape(8, 3, 11),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", NAMES)
def test_odd_gradients(name, odd):
    g = ODD[odd]()
    for sentence, _ in sides(name):
        if odd == "huge" and (getattr(sentence[-1], "rotation", None) is not None or "bhq" in str(sentence[-1])):
            g = ODD[odd]() * 1e-3  # sums of rows or neighbours overflow beyond
        numbers = None
        if not bool(g.any()):  # there are no statistics of zeros; those of an earlier step are in force
            numbers = [one.numbers(Statistics(Empirical.fit(gradient()))) for one in sentence]
        for contracted in ((1,), (0, *range(2, g.dim()))):
            result, counts = apply(sentence, g, numbers=numbers, contracted=contracted)
            assert result.shape == g.shape
            assert result.dtype == g.dtype
            assert result.stride() == torch.empty_like(dense(g)).stride() or g.numel() <= 1
            assert int(counts[0]) == int((result == 0).sum())
            if name != "fp4-dynamic":
                assert bool(result.isfinite().all())
            if odd == "zero":
                assert float(result.abs().max()) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_and_is_counted(name):
    g = gradient(16, 64)
    numbers_from = Statistics(Empirical.fit(g))
    g[3, 5] = float("nan")
    g[7, 9] = float("inf")
    for sentence, contracted in sides(name):
        numbers = [one.numbers(numbers_from) for one in sentence]
        result, counts = apply(sentence, g, numbers=numbers, contracted=contracted)
        assert bool(result[3, 5].isnan())
        assert int(counts[1]) == int(result.isnan().sum()) >= 1
        # These mix rows or blocks, or have no code for NaN, so that all of a scale decodes to it.
        if not any(one.per_product or "bhq" in str(one) or one.kind in NO_NAN for one in sentence):
            assert int(counts[1]) == 1


@pytest.mark.parametrize("name", daily(NAMES, ("prune85", "fp6", "int6-full", "int5-bhq", "topk85", "mxfp4-rht")))
def test_equal_bits_for_any_number_of_threads(name):
    g = gradient(307, 1009)  # vectors have tails, in every thread's part
    threads = torch.get_num_threads()
    try:
        for sentence, contracted in sides(name):
            found = []
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                found.append(apply(sentence, g, 3, contracted=contracted).result)
            assert all(torch.equal(one, found[0]) for one in found)
    finally:
        torch.set_num_threads(threads)
