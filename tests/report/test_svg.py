"""Pieces of SVG: numbers, escaped text, texts that fit their room, and paths with gaps."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lograd.report.svg import cut, escape, number, path, power, text_at, text_width, wrap


def test_numbers_read_as_a_person_would_write_them() -> None:
    assert [number(v) for v in (0.0, -3.0, 1.5e-7, 123456.0)] == ["0", "−3", "1.5×10⁻⁷", "1.235×10⁵"]
    assert number(0.125, percent=True) == "12.5%"


def test_powers_have_superscript_digits() -> None:
    assert power(2, -12) == "2⁻¹²"


@given(st.text())
def test_any_text_is_safe_in_an_element_and_in_an_attribute(text: str) -> None:
    ET.fromstring(f'<text title="{escape(text)}">{escape(text)}</text>')
    ET.fromstring(text_at(1.0, 2.0, text))


@given(st.text(st.characters(categories=("L", "N", "Zs")), max_size=60), st.floats(20.0, 400.0))
def test_cut_and_wrapped_texts_fit_their_room(text: str, room: float) -> None:
    assert text_width(cut(text, room)) <= room
    lines = wrap(text, room)
    assert all(text_width(line) <= room for line in lines)
    if text_width(text) <= room:
        assert cut(text, room) == text
        assert " ".join(lines) == " ".join(text.split())


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([1.0, 2.0, 3.0], "M0.0 1.0h0L1.0 2.0L2.0 3.0"),
        ([1.0, np.nan, 3.0], "M0.0 1.0h0M2.0 3.0h0"),
        ([np.inf, 2.0, 3.0], "M1.0 2.0h0L2.0 3.0"),
        ([np.nan, np.nan, np.nan], ""),
    ],
)
def test_a_path_is_interrupted_where_a_point_is_not_finite(y: list[float], expected: str) -> None:
    assert path(np.arange(3.0), np.array(y)) == expected
