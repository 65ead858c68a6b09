"""Steps of a pipeline: closed forms where they exist, limits where a link is the bottleneck, and torch's own orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lograd import InvalidValue
from lograd.theory.pipelines import SCHEDULES, Link, Pipeline, Work, orders, step_seconds

PIPELINES = st.builds(
    Pipeline, st.integers(1, 6), st.integers(1, 9), st.floats(0.0, 2.0), st.floats(0.0, 4.0)
)  # fmt: skip
LINKS = st.builds(Link, *4 * [st.floats(0.0, 3.0)])


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(PIPELINES)
def test_without_a_wire_the_bubble_is_that_of_the_textbook(schedule, pipeline):
    expected = (pipeline.microbatches + pipeline.stages - 1) * (pipeline.forward + pipeline.backward)
    assert step_seconds(schedule, pipeline) == pytest.approx(expected)


def test_a_slow_link_decides():
    """Messages cross it one after the other; 1F1B lets both directions work at a time, and GPipe does not."""
    pipeline, slow = Pipeline(2, 10, 0.01, 0.02), Link(5.0)
    for schedule in SCHEDULES:
        assert step_seconds(schedule, pipeline, None, slow) == pytest.approx(10 * 5, abs=0.5)
    assert step_seconds("1f1b", pipeline, slow, slow) == pytest.approx(10 * 5 + 5, abs=0.5)
    assert step_seconds("gpipe", pipeline, slow, slow) == pytest.approx(10 * 5 + 10 * 5, abs=0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(PIPELINES, LINKS, LINKS)
def test_nothing_is_faster_than_its_parts_and_a_better_link_never_hurts(schedule, pipeline, forward, backward):
    found = step_seconds(schedule, pipeline, forward, backward)
    assert found >= step_seconds(schedule, pipeline) * (1 - 1e-12)
    better = Link(forward.seconds / 2, forward.latency / 2, forward.encode / 2, forward.decode / 2)
    assert step_seconds(schedule, pipeline, better, backward) <= found * (1 + 1e-12)
    if pipeline.stages > 1:
        sent = pipeline.microbatches * max(forward.seconds, backward.seconds)
        assert found >= sent * (1 - 1e-12)


def test_one_microbatch_goes_there_and_back():
    there, back = Link(1.0, 0.1, 0.2, 0.3), Link(2.0, 0.4, 0.5, 0.6)
    found = step_seconds("1f1b", Pipeline(3, 1, 10.0, 20.0), there, back)
    assert found == pytest.approx(3 * 30 + 2 * (1.0 + 0.1 + 0.2 + 0.3) + 2 * (2.0 + 0.4 + 0.5 + 0.6))


def test_orders_are_those_of_torch():
    """1F1B: as many forwards ahead as there are stages from here to the end, then one backward, one forward."""
    first, second = orders("1f1b", Pipeline(2, 3, 1.0, 1.0))
    assert [("B" if one.backward else "F") + str(one.microbatch) for one in first] == [
        "F0",
        "F1",
        "B0",
        "F2",
        "B1",
        "B2",
    ]
    assert [("B" if one.backward else "F") + str(one.microbatch) for one in second] == [
        "F0",
        "B0",
        "F1",
        "B1",
        "F2",
        "B2",
    ]
    assert orders("gpipe", Pipeline(1, 2, 1.0, 1.0)) == [[Work(False, 0), Work(False, 1), Work(True, 0), Work(True, 1)]]


def test_bad_values_are_refused():
    with pytest.raises(InvalidValue, match="at least one stage"):
        Pipeline(0, 1, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="0 or more"):
        Pipeline(1, 1, -1.0, 1.0)
    with pytest.raises(InvalidValue, match="seconds of a link"):
        Link(float("nan"))
    with pytest.raises(InvalidValue, match=r"gpipe or 1f1b; got 'gpip'\. Did you mean"):
        step_seconds("gpip", Pipeline(1, 1, 1.0, 1.0))
