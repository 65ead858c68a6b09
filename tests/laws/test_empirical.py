"""The empirical law: it counts exactly, merges exactly, and keeps its error bound."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lograd import MomentDoesNotExist
from lograd.laws import (
    Empirical,
    Exponential,
    HalfCauchy,
    HalfNormal,
    LogLaplace,
    LogNormal,
    Uniform,
)

positive = st.floats(min_value=1e-300, max_value=1e300)


arrays = hnp.arrays(np.float64, st.integers(1, 60), elements=positive)


@given(arrays, st.sampled_from([-1, 0, 1, 2]), positive)
@settings(max_examples=400)
def test_the_error_bound_of_empirical_holds(x, order, t):
    x = np.clip(x, 1e-100, 1e100)
    t = float(np.clip(t, 1e-100, 1e100))
    law = Empirical.fit(x)
    exact = np.mean(np.where(x <= t, x**order, 0.0))
    error = abs(law.partial_moment(order, t) - exact)
    assert error <= law.error_bound(order, t) * (1 + 1e-9) + 1e-12 * np.mean(x**order)
    # At an edge the documented form: a factor of (1 + 1/16)^|order|.
    edge = float(law.edges[len(law.edges) // 2])
    exact = np.mean(np.where(x < edge, x**order, 0.0))
    assert abs(law.partial_moment(order, edge) - exact) <= ((1 + 1 / 16) ** abs(order) - 1) * exact * (
        1 + 1e-9
    ) + 1e-12 * np.mean(x**order)


@given(arrays, arrays, arrays)
def test_merging_is_exact_in_any_order(x, y, z):
    a, b, c = Empirical.fit(x), Empirical.fit(y), Empirical.fit(np.append(z, 0.0))
    whole = Empirical.fit(np.concatenate([x, y, z, [0.0]]))
    assert (a + b) + c == a + (b + c) == (c + a) + b == Empirical.merge([b, c, a]) == whole
    assert whole.zeros == 1
    assert whole.count == x.size + y.size + z.size


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: hnp.arrays(
            dtype,
            st.integers(1, 200),
            elements=st.floats(allow_nan=False, allow_infinity=False, width=np.dtype(dtype).itemsize * 8),
        )
    )
)
def test_empirical_counts_like_its_definition(x):
    nonzero = np.abs(x[x != 0].astype(np.float64))
    if nonzero.size == 0:
        return
    law = Empirical.fit(x)  # the native kernel where there is one
    assert law == Empirical.fit(x.tolist())  # a list always takes the plain path
    assert law.count == nonzero.size
    assert law.zeros == x.size - nonzero.size
    assert law.edges[0] <= nonzero.min() <= nonzero.max() <= law.maximum
    normal = law.edges[:-1] >= 2.0**-1022  # among float64 subnormals neighbouring edges can coincide
    bins = np.searchsorted(law.edges[:-1], nonzero, side="right") - 1
    counted = np.bincount(bins, minlength=normal.size)
    assert np.array_equal(counted[normal], law.counts[normal])


def test_empirical_from_a_tensor_of_any_type_and_layout():
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    assert Empirical.fit(x) == Empirical.fit(x.t()) == Empirical.fit(x[:, ::2]) + Empirical.fit(x[:, 1::2])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert Empirical.fit(x.to(dtype)) == Empirical.fit(x.to(dtype).double().numpy())


def test_empirical_is_close_to_the_law_it_was_drawn_from():
    for law in (LogNormal(-5.0, 2.0), HalfNormal(3.0), Exponential(1e-6)):
        x = law.sample(200_000, seed=6)
        empirical = Empirical.fit(x)
        p = np.linspace(0.01, 0.99, 50)
        assert np.abs(empirical.cdf(law.quantile(p)) - p).max() < 0.005
        assert np.allclose(empirical.quantile(p), np.quantile(x, p), rtol=0.01)
        assert empirical.log_mean == pytest.approx(np.log(x).mean(), abs=0.002)
        assert empirical.log_std == pytest.approx(np.log(x).std(), abs=0.002)
        for order in (1, 2):
            assert empirical.moment(order) == pytest.approx(np.mean(x**order), rel=0.01)


def test_empirical_stack_equals_one_by_one():
    laws = [Empirical.fit(LogNormal(m, s).sample(1000, seed=7)) for m, s in [(-20, 1), (0, 3), (5, 0.2)]]
    stacked = Empirical.stack(laws)
    t, p = np.array([1e-9, 1.0, 150.0]), np.array([0.2, 0.0, 1.0])
    for order in (-1, 0, 1, 2):
        expected = [law.partial_moment(order, x) for law, x in zip(laws, t, strict=True)]
        assert np.allclose(stacked.partial_moment(order, t), expected, rtol=1e-12)
    assert np.allclose(stacked.quantile(p), [law.quantile(q) for law, q in zip(laws, p, strict=True)], rtol=1e-12)
    assert np.allclose(stacked.log_mean, [law.log_mean for law in laws])
    assert stacked.maximum.tolist() == [law.maximum for law in laws]


def test_a_stack_of_one_layer_answers_for_every_p():
    law = Empirical.fit(LogNormal(0.0, 1.0).sample(1000))
    p = np.array([0.1, 0.2, 0.3])
    assert Empirical.stack([law]).quantile(p).tolist() == law.quantile(p).tolist()
    assert LogNormal.stack([LogNormal(0.0, 1.0)]).quantile(p).tolist() == LogNormal(0.0, 1.0).quantile(p).tolist()


def test_stacks_keep_what_was_counted():
    tensors = [np.concatenate([LogNormal(0.0, 1.0).sample(n), np.zeros(9 * n)]) for n in (10, 1000)]
    for family in (LogNormal, HalfNormal, Empirical):
        stacked = family.stack([family.fit(x) for x in tensors])
        assert stacked.count.tolist() == [10, 1000]
        assert stacked.zeros.tolist() == [90, 9000]
        assert stacked.zero_share == pytest.approx([0.9, 0.9])


def test_empirical_keeps_all_mass_of_subnormals():
    for x in ([5e-324], [1e-323, 1.5e-323, 2e-323, 2.5e-323]):
        law = Empirical.fit(x)
        assert law.cdf(np.inf) == law.moment(0) == 1
        with pytest.raises(MomentDoesNotExist, match="beyond the largest float64"):
            law.moment(-1)


def test_moments_at_the_edges():
    assert HalfCauchy(1.0).partial_moment(1, 1e160) == pytest.approx(2 / np.pi * np.log(1e160), rel=1e-12)
    assert HalfCauchy(1.0).partial_moment(1, 1e-9) == pytest.approx(1e-18 / np.pi, rel=1e-9)
    for law in (HalfCauchy(1.0), Uniform(0.0, 1.0), HalfNormal(1.0), LogLaplace(0.0, 0.2)):
        for order in (-1, 0, 1, 2):
            assert law.interval_moment(order, np.inf, np.inf) == 0
            assert law.interval_moment(order, 0.0, 0.0) == 0


def test_inverse_moments_of_empirical_do_not_cancel():
    # One element at 1e-30 makes M_-1 huge; the interval around 1 must keep its digits.
    law = Empirical.fit(np.concatenate([[1e-30], np.linspace(1.0, 2.0, 1000, endpoint=False)]))
    assert law.interval_moment(-1, 1.0, 2.0) == pytest.approx(np.log(2) * 1000 / 1001, rel=1e-3)
