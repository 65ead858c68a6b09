"""Formats tried on a layer: predicted and measured errors agree."""

from __future__ import annotations

import pytest
from networks import conv_net, image_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd.measure import prediction as precision
from lograd.treatments.verdicts import GOOD_COSINE


def test_predicted_and_measured_errors_stand_side_by_side():
    profile = lograd.profile(conv_net(), image_batches(1, size=64), cross_entropy, sample=2**20)
    errors = precision.format_trials(profile["0"])
    assert [error.name for error in errors] == [f"{kind}{bits}" for kind in ("FP", "INT") for bits in (4, 5, 6, 7, 8)]
    for error in errors:
        assert error.format.bits == int(error.name[-1])
        assert error.measured.relative_error == pytest.approx(error.predicted.relative_error, rel=0.05)
        assert error.measured.cosine == pytest.approx(error.predicted.cosine, rel=0.02)
        assert error.measured.sparsity == pytest.approx(error.predicted.sparsity, abs=0.01)
    best = precision.recommended(errors)
    assert best.predicted.cosine >= GOOD_COSINE
    floats = [error for error in errors if error.name.startswith("FP")]
    assert all(error.predicted.cosine < GOOD_COSINE for error in floats if error.format.bits < best.format.bits)
