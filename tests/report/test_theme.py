"""Colours of charts have enough contrast."""

from __future__ import annotations

import numpy as np
import pytest

from lograd.report.theme import PALETTE, TONES


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_colour_has_enough_contrast(mode: str) -> None:
    def luminance(color: str) -> float:
        rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    def contrast(color: str) -> float:
        low, high = sorted((luminance(color), luminance(TONES[mode]["surface"])))
        return (high + 0.05) / (low + 0.05)

    assert min(map(contrast, PALETTE[mode])) >= 3  # WCAG 2.1, 1.4.11: graphics
    assert min(contrast(TONES[mode][tone]) for tone in ("ink", "muted")) >= 4.5  # 1.4.3: text
