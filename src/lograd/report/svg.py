"""Pieces of SVG text: escaped strings, numbers as a reader writes them, estimates of text width, and paths."""

from __future__ import annotations

import html
import math
import re

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: object) -> str:
    """Return text that is safe inside an element or an attribute; characters that XML forbids become U+FFFD."""
    return html.escape(_NOT_XML.sub("\ufffd", str(text)))


def power(base: int, exponent: int) -> str:
    """Return a power with its exponent in superscript digits.

    >>> power(10, -3)
    '10⁻³'
    """
    return f"{base}{str(exponent).translate(_SUPERSCRIPT)}"


def number(value: float, percent: bool = False) -> str:
    """Return a value with four significant digits, as a reader writes it.

    >>> number(1.5e-7), number(-3), number(0.125, percent=True)
    ('1.5×10⁻⁷', '−3', '12.5%')
    """
    mantissa, _, exponent = f"{value * 100 if percent else value:.4g}".partition("e")
    return mantissa.replace("-", "−") + (f"×{power(10, int(exponent))}" if exponent else "") + "%" * percent


def text_width(text: str, size: float = 12) -> float:
    """Estimate the pixels that text takes, rather too many than too few, as no font metrics are known."""
    return size * sum(0.34 if c in " .,:;'|!()[]fijlt" else 0.9 if c in "mwMW%@" or c > "\u2e7f" else 0.6 for c in text)


def cut(text: str, room: float, size: float = 12) -> str:
    """Return the text, shortened to end in an ellipsis where it is wider than `room` pixels."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, room: float, size: float = 12) -> list[str]:
    """Return the text in lines of at most `room` pixels."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(cut(word, room, size))
    return lines


def text_at(x: float, y: float, text: str, kind: str = "", anchor: str = "start", extra: str = "") -> str:
    """Return a text element at a point; `kind` is its CSS class."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def path(x: Array, y: Array) -> str:
    """Return the path through the points, interrupted at each one that is not finite.

    `h0` draws a line of no length, so that a point between two gaps is visible as a dot.
    """
    out, down = [], False
    for px, py in zip(x.tolist(), y.tolist(), strict=True):
        if drawn := math.isfinite(px) and math.isfinite(py):
            out.append(f"L{px:.1f} {py:.1f}" if down else f"M{px:.1f} {py:.1f}h0")
        down = drawn
    return "".join(out)
