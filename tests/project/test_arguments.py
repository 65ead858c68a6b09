"""Public arguments against what they are not: an error of ours that names the argument, never a raw one of Python's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lograd
from lograd import laws, ops, theory
from lograd.errors import InvalidType, InvalidValue, LogradError

BAD = ["0.85", None, float("nan"), float("inf"), -1.0, 1j, {}, object(), 10**400, np.complex64(1j)]
X = torch.linspace(-3, 3, 64).reshape(8, 8)
LAW, FORMAT = laws.LogNormal(0.0, 2.0), lograd.FloatFormat(exponent=4, mantissa=1)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


BATCHES = [(torch.randn(16, 6), torch.randint(3, (16,)))]
PROFILE = lograd.profile(_model(), BATCHES, F.cross_entropy)
PLAN = PROFILE.plan(sparsity=0.5)


def _attach(**given: Any) -> None:
    lograd.attach(**{"model": _model(), "plan": PLAN, **given}).remove()


def _step(**given: Any) -> None:
    handle = lograd.attach(_model(), PLAN)
    try:
        handle.step(**given)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no gradient came by
            handle.remove()


def _weights(**given: Any) -> None:
    lograd.low_precision_weights(**{"model": _model(), "format": "int8", **given}).remove()


def _profile(**given: Any) -> None:
    lograd.profile(**{"model": _model(), "batches": BATCHES, "loss_fn": F.cross_entropy, "steps": 1, **given})


Row = tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]
TABLE: dict[str, Row] = {
    "profile": (_profile, {}, (
        "model", "loss_fn", "steps", "filter_fn", "every", "weight_gradients", "sample", "noise",
    )),
    "observe": (lograd.observe, {"model": _model()}, ("model", "every", "filter_fn", "weight_gradients", "sample")),
    "plan of zeros": (PROFILE.plan, {"sparsity": 0.5}, (
        "bits", "sparsity", "allocation", "law", "keep", "products", "split",
    )),
    "plan of bits": (PROFILE.plan, {"bits": 6}, ("bits", "keep", "law", "products")),
    "override": (PLAN.override, {"pattern": "0", "sparsity": 0.6}, (
        "pattern", "sparsity", "law", "bits", "format", "scale", "rounding", "products", "treat",
    )),
    "uniform": (lograd.Plan.uniform, {}, ("name",)),
    "attach": (_attach, {}, ("model", "plan", "seed", "refresh", "backend", "loss_scale", "start")),
    "step": (_step, {}, ("loss_scale",)),
    "low_precision_weights": (_weights, {}, (
        "model", "format", "optimizer", "keep", "seed",
    )),
    "FloatFormat": (lograd.FloatFormat, {"exponent": 4, "mantissa": 1}, ("exponent", "mantissa", "bias")),
    "IntFormat": (lograd.IntFormat, {}, ("bits",)),
    "sparsity": (theory.sparsity, {"law": LAW, "threshold": 0.5}, ("law", "threshold")),
    "threshold": (theory.threshold, {"law": LAW, "sparsity": 0.5}, ("law", "sparsity")),
    "cosine": (theory.cosine, {"law": LAW, "threshold": 0.5}, ("law", "threshold")),
    "threshold_for_cosine": (theory.threshold_for_cosine, {"law": LAW, "cosine": 0.5}, ("law", "cosine")),
    "threshold_for_noise": (theory.threshold_for_noise, {"law": LAW, "noise": 0.5}, ("law", "noise")),
    "atp_sparsity": (theory.atp_sparsity, {"law": LAW, "target": 0.5}, ("law", "target")),
    "topk_sparsity": (theory.topk_sparsity, {"law": LAW, "target": 0.5}, ("law", "target")),
    "nonzero_sparsity": (theory.nonzero_sparsity, {"sparsity": 0.5, "zero_share": 0.1}, ("sparsity", "zero_share")),
    "relative_error": (theory.relative_error, {"law": LAW, "format": FORMAT}, ("law", "format", "scale", "rounding")),
    "squared_error": (theory.squared_error, {"law": LAW, "format": FORMAT}, ("law", "format", "scale", "rounding")),
    "lognormal_relative_error": (
        theory.lognormal_relative_error, {"exponent": 4, "mantissa": 1, "sigma_log2": 2.0},
        ("exponent", "mantissa", "sigma_log2"),
    ),
    "float_formats": (theory.float_formats, {}, ("bits",)),
    "best_format": (theory.best_format, {"law": LAW, "bits": 6}, ("law", "bits", "scale", "criterion", "candidates")),
    "format_errors": (
        theory.format_errors, {"law": LAW, "formats": [FORMAT]}, ("law", "formats", "scale", "criterion"),
    ),
    "scale": (theory.scale, {"law": LAW, "format": FORMAT, "rule": "mean"}, ("law", "format", "rule")),
    "allocate": (theory.allocate, {"laws": [LAW, LAW], "counts": [1, 2], "sparsity": 0.5}, (
        "laws", "counts", "sparsity", "method", "costs", "zero_share", "max_sparsity",
    )),
    "LogNormal": (laws.LogNormal, {"mu": 0.0, "sigma": 1.0}, ("mu", "sigma")),
    "from_log2": (laws.LogNormal.from_log2, {"mu_log2": 0.0, "sigma_log2": 1.0}, ("mu_log2", "sigma_log2")),
    "HalfNormal": (laws.HalfNormal, {}, ("scale",)),
    "ks_distance": (laws.ks_distance, {"law": LAW, "x": X}, ("law", "x")),
    "qq": (laws.qq, {"law": LAW, "x": X}, ("law", "x", "points")),
    "rank_laws": (laws.rank_laws, {"x": X}, ("x", "families")),
    "stochastic_prune": (ops.stochastic_prune, {"x": X, "threshold": 0.5}, ("x", "threshold", "seed", "offset")),
    "threshold_prune": (ops.threshold_prune, {"x": X, "threshold": 0.5}, ("x", "threshold")),
    "quantize": (ops.quantize, {"x": X, "format": FORMAT}, ("x", "format", "scale", "rounding", "seed", "offset")),
    "log_histogram": (ops.log_histogram, {"x": X}, ("x",)),
    "luq": (ops.luq, {"x": X, "bits": 4}, ("x", "bits", "seed")),
    "dither": (ops.dither, {"x": X, "step": 0.1}, ("x", "step", "seed", "offset")),
    "kth_magnitude": (ops.kth_magnitude, {"x": X, "k": 3}, ("x", "k")),
    "quantize_per_tensor": (ops.quantize_per_tensor, {"x": X, "bits": 4}, ("x", "bits", "seed", "offset")),
    "quantize_per_sample": (ops.quantize_per_sample, {"x": X, "bits": 4}, ("x", "bits", "seed", "offset")),
    "quantize_interval": (ops.quantize_interval, {"x": X, "bits": 4, "gamma": 0.5}, ("x", "bits", "gamma")),
    "Prune": (lograd.treatments.Prune, {"sparsity": 0.5}, ("sparsity", "law", "allocation")),
    "Quantize": (lograd.treatments.Quantize, {"format": FORMAT}, ("format", "scale", "rounding")),
    "recipe": (lograd.treatments.recipe, {}, ("name",)),
    "encode": (lograd.encode, {"x": X}, ("x", "values", "entropy", "alpha")),
    "decode": (lograd.decode, {"packet": lograd.encode(X)}, ("packet", "limit")),
    "prune_and_encode": (lograd.wire.prune_and_encode, {"x": X, "threshold": 0.5}, (
        "x", "threshold", "seed", "offset", "values", "entropy", "counted",
    )),
}  # fmt: skip
for each in (LAW, laws.HalfNormal(1.0), laws.Exponential(1.0), laws.HalfCauchy(1.0), laws.Empirical.fit(X)):
    name = type(each).__name__
    TABLE |= {
        f"{name}.cdf": (each.cdf, {}, ("t",)),
        f"{name}.quantile": (each.quantile, {}, ("p",)),
        f"{name}.partial_moment": (each.partial_moment, {"order": 1, "t": 1.0}, ("order", "t")),
        f"{name}.interval_moment": (each.interval_moment, {"order": 1, "low": 0.5, "high": 1.0}, ("low", "high")),
        f"{name}.expected_max": (each.expected_max, {}, ("count",)),
        f"{name}.sample": (each.sample, {"size": 3}, ("size", "seed")),
        f"{name}.fit": (type(each).fit, {}, ("x",)),
    }


def _said(call: Callable[[], Any], what: str) -> str | None:
    """Return what our error says; None where the argument was taken."""
    try:
        call()
    except LogradError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    return None


@pytest.mark.parametrize("what", TABLE)
def test_a_bad_argument_gets_an_error_that_names_it_or_shows_what_was_given(what: str) -> None:
    function, base, names = TABLE[what]
    for argument in names:
        for value in BAD:
            said = _said(partial(function, **{**base, argument: value}), f"{what}({argument}={value!r})")
            if said is not None and not isinstance(value, float):
                assert argument in said or "got" in said or repr(value) in said, (argument, value)


NUMBERS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda value: theory.threshold(LAW, value), 0.85),
    (lambda value: theory.sparsity(LAW, value), 17.0),
    (lambda value: laws.LogNormal(value, 1.0).mu, 0.5),
    (lambda value: PROFILE.plan(sparsity=value).to_dict(), 0.75),
    (lambda value: PLAN.override("0", sparsity=value).to_dict(), 0.75),
    (lambda value: lograd.treatments.Prune(value), 0.75),
    (lambda value: ops.stochastic_prune(X, value).tolist(), 0.5),
    (lambda value: LAW.cdf(value), 2.0),
]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_numbers_of_numpy_are_numbers(kind: Any) -> None:
    for function, value in NUMBERS:
        assert function(kind(value)) == function(float(kind(value)))


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert PROFILE.plan(bits=np.int64(6)) == PROFILE.plan(bits=6)
    assert lograd.IntFormat(bits=np.int32(4)) == lograd.IntFormat(bits=4)
    with lograd.attach(_model(), PLAN, seed=np.int64(3), loss_scale=np.float32(1024)) as handle:
        assert (type(handle.seed), handle.seed) == (int, 3)


@pytest.mark.parametrize("path", [None, True, 3, 1.5, b"x", [], {}, "a\0b"])
def test_a_path_that_is_none_gets_a_sentence(path: Any) -> None:
    for use in (PLAN.save, PROFILE.save, PROFILE.to_html, lograd.Plan.load, lograd.Profile.load):
        with pytest.raises((InvalidType, InvalidValue), match="a path must be"):
            use(path)


def test_nothing_is_written_where_the_path_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (None, "a\0b"):
        with pytest.raises(LogradError):
            PLAN.save(path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
