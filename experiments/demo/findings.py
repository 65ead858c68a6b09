"""Findings of the demo about one task: numbers only, from which tables, page and JSON are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from lograd.formats import FloatFormat
from lograd.laws import Exponential, HalfNormal, Law, LogNormal
from lograd.measure import LayerProfile, Profile
from lograd.plan import Plan
from lograd.progress import Advance
from lograd.treatments import Prediction, Prune, Quantize, Statistics, apply, numbers_of, predict
from lograd.treatments.prune import PruningLaw

from .racing import DENSE, Run, race, scout
from .tasks import Task

BITS = 6
DRAWS = 8
"""Stochastic roundings of the sample that a measurement averages."""
TARGET = 0.85
PERCENT = f"{100 * TARGET:.0f} %"
LOW_BITS, SPARSE = f"FP{BITS}", f"{PERCENT} zeros"
WAYS = (DENSE, LOW_BITS, SPARSE)
LAWS: dict[str, type[Law]] = {"lognormal": LogNormal, "normal": HalfNormal, "Laplace": Exponential}
"""The laws by their names on the page; a normal g has a half-normal |g|, and a Laplace g an exponential one."""
PRUNING_LAWS: tuple[PruningLaw, ...] = ("empirical", "lognormal", "normal")


@final
@dataclass(frozen=True)
class Rounding:
    """The format that the plan gives to a layer, and its error on the gradient of the scout's last observed step.

    Relative errors are of rounding to nearest, as in Eq. 3 of [chmiel2021].  Under stochastic rounding a tiny element
    that is rounded up has an error of millions, so that a mean over a few draws scatters widely.
    """

    format: FloatFormat
    predicted_error: float
    measured_error: float
    predicted_cosine: float
    """The cosine of stochastic rounding, as in training."""
    measured_cosine: float

    @property
    def gap(self) -> float:
        """The gap between the two errors, as a share of the measured one."""
        return abs(self.predicted_error / self.measured_error - 1)


@final
@dataclass(frozen=True)
class Zeros:
    """The zeros that the plan asks of a layer, and those that it got."""

    asked: float
    cosine: float
    """Predicted, between the gradient and its pruned copy."""
    trained: float
    """By the counters while training, mean over the seeds."""


@final
@dataclass(frozen=True)
class Layer:
    """One layer; `rounding` and `zeros` are None where the plans keep it."""

    profile: LayerProfile
    distances: dict[str, float]
    """Kolmogorov-Smirnov distance to the fitted law of each name in LAWS, mean over the observed steps."""
    by_law: dict[str, float]
    """Share of zeros on the last observed gradient if TARGET is asked with the threshold of each law."""
    rounding: Rounding | None
    zeros: Zeros | None

    @property
    def name(self) -> str:
        """The name of the layer in the model."""
        return self.profile.name

    @property
    def nearest(self) -> str:
        """The law in LAWS that is nearest to the gradient."""
        return min(self.distances, key=lambda law: self.distances[law])

    @property
    def operations(self) -> int:
        """Multiply-adds of the two products of its backward, in one step."""
        return (self.profile.flops_input or 0) + (self.profile.flops_weight or 0)


@final
@dataclass(frozen=True)
class Result:
    """One way to train, over all seeds; differences are to the dense run of the same seed."""

    way: str
    scores: list[float]
    differences: list[float]
    milliseconds: float
    """A step: forward, backward, optimizer and treatment; the median."""
    backward: float
    """Milliseconds of the backward alone, its treatment included; the median."""
    bits: float | None
    """An element of the gradients would take in its format, mean over all elements; None where zeros have no code."""
    zeros: float
    """Share of exact zeros in all gradients handed to products, while training."""
    skippable: float
    """Share of the multiply-adds of the backward that have such a zero as a factor."""

    @property
    def score(self) -> float:
        """The final score, mean over seeds."""
        return fmean(self.scores)

    @property
    def difference(self) -> float:
        """The difference to dense, mean over seeds."""
        return fmean(self.differences)


@final
@dataclass(frozen=True)
class Finding:
    """Everything about one task."""

    task: Task
    profile: Profile
    plans: dict[str, Plan]
    layers: list[Layer]
    runs: list[Run]

    def of(self, way: str) -> list[Run]:
        """The runs of a way, one for each seed."""
        return [run for run in self.runs if run.way == way]

    @property
    def treated(self) -> list[Layer]:
        """The layers that the plans treat."""
        return [layer for layer in self.layers if layer.zeros is not None]

    @property
    def typical(self) -> Layer:
        """The treated layer whose distance to lognormal is the median: neither the best nor the worst to show."""
        ordered = sorted(self.treated, key=lambda layer: layer.distances["lognormal"])
        return ordered[(len(ordered) - 1) // 2]

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return sum(parameter.numel() for parameter in self.task.fresh_model(0).parameters())

    @cached_property
    def results(self) -> list[Result]:
        """The results of all ways, in the order of WAYS."""
        dense = {run.seed: run.final for run in self.of(DENSE)}
        return [self._result(way, dense) for way in WAYS]

    def result(self, way: str) -> Result:
        """The result of one way."""
        return next(result for result in self.results if result.way == way)

    def _result(self, way: str, dense: dict[int, float]) -> Result:
        runs = self.of(way)
        shares = {layer.name: layer.profile.zero_share for layer in self.layers}
        for name in runs[0].zeros:
            shares[name] = fmean(run.zeros[name] for run in runs)
        elements = sum(layer.profile.elements for layer in self.layers)
        operations = sum(layer.operations for layer in self.layers)
        bits = None if way == SPARSE else sum(
            layer.profile.elements * (layer.rounding.format.bits if way == LOW_BITS and layer.rounding else 32)
            for layer in self.layers
        ) / elements  # fmt: skip
        return Result(
            way,
            [run.final for run in runs],
            [run.final - dense[run.seed] for run in runs],
            median(time for run in runs for time in run.milliseconds),
            median(time for run in runs for time in run.backward),
            bits,
            sum(layer.profile.elements * shares[layer.name] for layer in self.layers) / elements,
            sum(layer.operations * shares[layer.name] for layer in self.layers) / operations,
        )

    def trained_miss(self) -> float:
        """The largest difference between the zeros asked of a layer and those it got while training."""
        return max(abs(layer.zeros.trained - layer.zeros.asked) for layer in self.layers if layer.zeros)

    def law_miss(self, law: str) -> float:
        """The largest difference between TARGET and what a law's threshold gives on a treated layer."""
        return max(abs(layer.by_law[law] - TARGET) for layer in self.treated)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        task = self.task
        return {
            "name": task.name,
            "model": task.model_name,
            "parameters": self.parameters,
            "data": task.data_name,
            "score": task.score_name,
            "higher_is_better": task.higher_is_better,
            "batch": task.batch,
            "steps": task.steps,
            "seeds": task.seeds,
            "layers": [_layer_to_json(layer) for layer in self.layers],
            "ways": [
                {
                    "way": result.way,
                    "score": result.score,
                    "scores": result.scores,
                    "difference": result.difference,
                    "differences": result.differences,
                    "bits_per_element": result.bits,
                    "zeros": result.zeros,
                    "skippable": result.skippable,
                    "loss": np.mean([run.losses for run in self.of(result.way)], axis=0).tolist(),
                }
                for result in self.results
            ],
            "milliseconds_per_step": {result.way: result.milliseconds for result in self.results},
            "milliseconds_per_backward": {result.way: result.backward for result in self.results},
        }


def _layer_to_json(layer: Layer) -> dict[str, Any]:
    rounding, zeros = layer.rounding, layer.zeros
    return {
        "name": layer.name,
        "elements": layer.profile.elements,
        "operations": layer.operations,
        "sigma": layer.profile.sigma,
        "zeros_before": layer.profile.zero_share,
        "ks": layer.distances,
        "nearest": layer.nearest,
        "rounding": rounding and {
            "format": str(rounding.format),
            "predicted_error": rounding.predicted_error,
            "measured_error": rounding.measured_error,
            "predicted_cosine": rounding.predicted_cosine,
            "measured_cosine": rounding.measured_cosine,
        },
        "zeros_by_law": layer.by_law,
        "zeros": zeros and {"asked": zeros.asked, "trained": zeros.trained, "predicted_cosine": zeros.cosine},
    }  # fmt: skip


def investigate(task: Task, progress: Advance) -> Finding:
    """The whole story of one task: scout, plan, train, compare."""
    profile = scout(task, progress)
    plans = {
        LOW_BITS: profile.plan(bits=BITS),
        SPARSE: profile.plan(sparsity=TARGET, allocation="cosine", everywhere=True),
    }
    # Not "auto": what is faster may change from run to run, and with it the last bits.
    runs = [run for seed in range(task.seeds) for run in race(task, plans, seed, progress, backend="sparse")]
    layers = [_layer(layer, plans, runs) for layer in profile.layers.values()]
    return Finding(task, profile, plans, layers, runs)


def _layer(profile: LayerProfile, plans: dict[str, Plan], runs: list[Run]) -> Layer:
    name = profile.name
    rounding = zeros = None
    if name in plans[LOW_BITS].layers:
        (treatment,) = plans[LOW_BITS].layers[name].input_gradient.gradient
        assert isinstance(treatment, Quantize)
        assert isinstance(treatment.format, FloatFormat)
        nearest = _errors(replace(treatment, rounding="nearest"), profile)
        stochastic = _errors(treatment, profile)
        rounding = Rounding(
            treatment.format,
            *(one.relative_error for one in nearest),
            *(one.cosine for one in stochastic),
        )
    if name in plans[SPARSE].layers:
        plan = plans[SPARSE].layers[name]
        (treatment,) = plan.input_gradient.gradient
        assert isinstance(treatment, Prune)
        assert plan.predicted_input_gradient is not None
        trained = fmean(run.zeros[name] for run in runs if run.way == SPARSE)
        zeros = Zeros(treatment.sparsity, plan.predicted_input_gradient.cosine, trained)
    return Layer(
        profile,
        {law: profile.ks(family) for law, family in LAWS.items()},
        {law: _zeros_by(law, profile) for law in PRUNING_LAWS},
        rounding,
        zeros,
    )


def _errors(treatment: Quantize, profile: LayerProfile) -> tuple[Prediction, Prediction]:
    """Predicted from the histogram, and measured on the captured gradient."""
    statistics = _statistics(profile)
    numbers = numbers_of((treatment,), statistics)
    measured = _measured(treatment, numbers[0]["scale"], profile.sample)
    predicted = predict((treatment,), statistics, numbers)
    assert predicted is not None
    return predicted, measured


def _measured(treatment: Quantize, scale: float, sample: NDArray[np.float32]) -> Prediction:
    """Measure sparsity, cosine and relative error by rounding a sample of the gradient."""
    finite = sample[np.isfinite(sample)]
    values = torch.from_numpy(finite)
    draws = [apply((treatment,), values, seed, numbers=[{"scale": scale}]).result for seed in range(DRAWS)]
    x, y = finite.astype(np.float64), torch.stack(draws).double().numpy()
    nonzero = x != 0
    length = np.linalg.norm(x) * np.linalg.norm(y, axis=1)
    return Prediction(
        sparsity=float(np.mean(y == 0)),
        cosine=float(np.mean(np.divide(y @ x, length, out=np.zeros(DRAWS), where=length > 0))),
        relative_error=float(np.mean(np.abs(y[:, nonzero] / x[nonzero] - 1))),
    )


def _statistics(profile: LayerProfile) -> Statistics:
    assert profile.law is not None
    return Statistics(profile.law, profile.masked or 0.0)


def _zeros_by(law: PruningLaw, profile: LayerProfile) -> float:
    """The share of zeros that pruning really leaves in the captured gradient."""
    treatment = (Prune(TARGET, law),)
    result = apply(
        treatment, torch.from_numpy(profile.sample), numbers=numbers_of(treatment, _statistics(profile))
    ).result
    return float((result == 0).double().mean())
