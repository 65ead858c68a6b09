"""Axes: ticks, labels and margins read as a person would draw them."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lograd.report import Chart, Line
from lograd.report.axis import Axis

SCALES = ("linear", "log2", "log10")


# Whatever a measurement can hand over, and then some.
special = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e300, 1.7e308, -1.7e308, 1.0])


values = st.one_of(st.floats(), special, st.floats(-10, 10))


scales = st.sampled_from(SCALES)


@given(scales, values, values, st.integers(4, 10), st.booleans())
@example("log2", 1.0, 2.0**899, 4, True)  # the margin once led to an overflow
def test_ticks_are_inside_ascending_and_few(scale: str, a: float, b: float, most: int, percent: bool) -> None:
    axis = Axis.around(np.array([a, b]), scale, percent, None, 0.05)
    units = [unit for unit, _ in axis.ticks(most)]
    labels = [label for _, label in axis.ticks(most)]
    assert 1 <= len(units) <= most
    assert all(axis.low <= unit <= axis.high for unit in units)
    assert all(low < high for low, high in pairwise(units))
    assert len(set(labels)) == len(labels), "two ticks never read the same"


@pytest.mark.parametrize(
    ("scale", "low", "high", "percent", "expected"),
    [
        ("linear", 0, 10, False, ["0", "2", "4", "6", "8", "10"]),
        ("linear", -0.5, 0.5, False, ["−0.4", "−0.2", "0", "0.2", "0.4"]),
        ("linear", 0, 1, True, ["0", "20%", "40%", "60%", "80%", "100%"]),
        ("linear", 0, 4e-7, False, ["0", "1×10⁻⁷", "2×10⁻⁷", "3×10⁻⁷", "4×10⁻⁷"]),
        ("linear", 0, 30000, False, ["0", "10,000", "20,000", "30,000"]),
        ("log2", 2**-8, 2**8, False, ["2⁻⁸", "2⁻⁴", "2⁰", "2⁴", "2⁸"]),
        ("log2", 1, 3, False, ["1.0", "1.5", "2.0", "2.5", "3.0"]),
        ("log10", 1e-3, 10, False, ["10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹"]),
        ("log10", 1e-3, 1, True, ["0.1%", "1%", "10%", "100%"]),
        ("log10", 2, 150, False, ["2", "5", "10", "20", "50", "100"]),
    ],
)
def test_ticks_read_as_a_person_would_write_them(
    scale: str, low: float, high: float, percent: bool, expected: list[str]
) -> None:
    axis = Axis.around(np.zeros(0), scale, percent, (low, high), 0.0)
    assert [label for _, label in axis.ticks(6)] == expected


def test_an_axis_of_steps_has_no_ticks_between_them() -> None:
    def labels(x: list[int]) -> list[str]:
        svg = Chart("t", "step", "y", [Line(x, [1.5] * len(x), markers=True)], y_percent=True, x_whole=True).svg()
        return [label for label in re.findall(r">([^<>]+)</text>", svg) if label.isdigit()]

    assert labels([0, 1, 2]) == ["0", "1", "2"]
    assert labels([7]) == [str(step) for step in range(4, 11)]
    assert labels([0, 50, 100]) == ["0", "20", "40", "60", "80", "100"]


def test_a_margin_never_crosses_zero_or_the_whole() -> None:
    assert Axis.around(np.array([0.0, 0.97]), "linear", True, None, 0.05).low == 0
    assert Axis.around(np.array([0.0, 0.97]), "linear", True, None, 0.05).high == 1
    assert Axis.around(np.array([0.1, 9.0]), "linear", False, None, 0.05).low == 0
    assert Axis.around(np.array([-1.0, 9.0]), "linear", False, None, 0.1).low == -2
