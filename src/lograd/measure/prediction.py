"""Predictions from a profile's histograms: the noise of a plan, zeros that save time, and formats.

The noise of a plan in units of the minibatch's variance is rho = W / V with

    W = energies.total(n_dX, n_dW, r_dX, r_dW)

n is the noise-to-signal ratio of the gradient's treatments, r that on noise that arrives (`theory.rises`): gradients
have many tiny elements and a few large ones, noise that has passed through some layers has not, so pruning adds more to
noise than to a gradient of the same energy.  Both follow from the law of |g|; energies from how far noise of one layer
alone moved the gradient of all parameters (`noise`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from .. import theory
from ..engine.backends import LEAST_WORK
from ..engine.backends.choice import unserved
from ..formats import FloatFormat
from ..laws import Empirical
from ..plan import Expected, Forecast, LayerPlan, Plan, predicted
from ..theory import Rise, risen
from ..treatments import (
    BACKWARD,
    OPERANDS,
    Quantize,
    Sentence,
    Statistics,
    describe,
    numbers_of,
    predict,
)
from ..treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of
from .records import LayerProfile, thinned
from .values import Minibatch, NoiseFactors

# -- noise-to-signal ratios --

MOST_NOISE = 1e6
"""The largest noise-to-signal ratio of one layer; that of a format which rounds all to zero would be infinite."""
LEAST_LEVEL = 1e-3
"""Noise that is weaker tells little: differences of two histograms would be divided by it."""
MOST_STEPS = 12
"""The most steps over which noise is summed; a dozen tell how batches differ."""


def statistics_of(layer: LayerProfile) -> Statistics | None:
    """Return the law of a layer's gradient, what is masked, and its range; None for a gradient of zeros."""
    return None if layer.law is None else Statistics(layer.law, round(layer.masked or 0.0, 6), range=layer.range)


def ratio_of(treatments: Sentence, statistics: Statistics) -> float | None:
    """Return the noise-to-signal ratio that theory predicts of unbiased treatments; None where it does not tell."""
    found = predict(treatments, statistics)
    return None if found is None else min(noise_of(found.cosine), MOST_NOISE)


def ratio_over(treatments: Sentence, layer: LayerProfile) -> float | None:
    """Return the noise-to-signal ratio of unbiased treatments over all observed steps; None where theory tells none.

    Batches differ in energy, and a threshold is that of an earlier one.  So noise and gradients are summed over the
    steps before they are compared, and numbers follow from the step before each.
    """
    known = [record.law for record in thinned(layer.records, MOST_STEPS) if record.law is not None]
    signal = noise = 0.0
    for before, law in zip(known[:1] + known, known, strict=False):
        numbers = numbers_of(treatments, _with_range(layer, before))
        fixed = [{name: of[name] for name in one.number_names} for one, of in zip(treatments, numbers, strict=True)]
        found = predict(treatments, _with_range(layer, law), fixed)
        if found is None:
            return None
        energy = float(law.count) * float(law.moment(2))
        signal, noise = signal + energy, noise + energy * min(noise_of(found.cosine), MOST_NOISE)
    return noise / signal if signal else None


def _with_range(layer: LayerProfile, law: Empirical) -> Statistics:
    """Return statistics of a layer with the law of one step; its range grows with the largest magnitude."""
    factor = 1.0 if layer.range is None or layer.law is None else float(law.maximum) / float(layer.law.maximum)
    range_ = None if layer.range is None else (layer.range[0] * factor, layer.range[1] * factor)
    return Statistics(law, round(layer.masked or 0.0, 6), range=range_)


def steps_over_last(treatments: Sentence, layer: LayerProfile | None) -> float:
    """Return the factor from the noise-to-signal ratio of the last step to `ratio_over`; 1 where theory tells none."""
    last = None if layer is None else statistics_of(layer)
    if layer is None or last is None or not treatments:
        return 1.0
    alone, over = ratio_of(treatments, last), ratio_over(treatments, layer)
    return over / alone if alone and over is not None else 1.0


def rise_of(treatments: Sentence, layer: LayerProfile | None, noise: float) -> Rise:
    """Return the noise-to-signal ratio of treatments on noise that arrives at a layer.

    Args:
        treatments: unbiased ones.
        layer: None where it was not observed; the rise is then the ratio itself, as it is where theory tells nothing
            or no noise arrives.
        noise: their ratio on the layer's gradient.  Where that was measured, the rise by theory is scaled to it.
    """
    clean = None if layer is None else statistics_of(layer)
    before = ratio_of(treatments, clean) if clean is not None and noise else None
    if layer is None or clean is None or not before:
        return Rise.constant(noise)
    levels: list[float] = []
    added: list[float] = []
    for one in layer.noisy:
        after = ratio_of(treatments, Statistics(one.law, clean.masked, range=one.range))
        if one.level >= LEAST_LEVEL and one.level > max(levels, default=0.0) and after is not None:
            levels.append(one.level)
            added.append(after * (1 + one.level))
    return Rise.through(before, levels, added).times(noise / before) if levels else Rise.constant(noise)


# -- growth and noise of a whole plan --


def forecast(layers: Mapping[str, LayerPlan], noise: NoiseFactors | None) -> Forecast | None:
    """Predict the growth of the gradient that grows most under a plan; None without measured noise, or without noise.

    Args:
        layers: the layers of a plan.  Noise also reaches those that it leaves alone, so all measured layers take part.
        noise: how noise travels, where that was measured.
    """
    handed = {
        name: min(noise_of(layer.predicted_input_gradient.cosine), MOST_NOISE)
        for name, layer in layers.items()
        if layer.input_gradient.gradient and layer.predicted_input_gradient is not None
    }
    if noise is None or not handed or not set(layers) <= set(noise.layers):
        return None
    growth = noise.factors.growth([handed.get(name, 0.0) for name in noise.layers])
    worst = int(np.argmax(growth))
    return Forecast(noise.layers[worst], six_digits(max(float(growth[worst]), 1.0)), len(handed))


def six_digits(value: float) -> float:
    """Return a number as a plan holds it: short enough to read, and finite."""
    return float(f"{min(value, 1e300):.6g}")


def expected_of(
    layers: Mapping[str, LayerPlan],
    profiles: Mapping[str, LayerProfile],
    noise: NoiseFactors | None,
    minibatch: Minibatch | None,
    plan: Plan | None = None,
) -> Expected | None:
    """Return the noise of treated layers with their predictions; None where noise or its unit was not measured.

    Args:
        layers: those that a plan treats.
        profiles: the observed layers.
        noise, minibatch: as the profile has measured them.
        plan: the whole plan, if it may treat more than layers.
    """
    if noise is None or noise.energies is None or minibatch is None or not minibatch.unit > 0:
        return None
    reason = next((why for name, layer in layers.items() if (why := _unknown(name, layer, noise))), "")
    if plan is not None and (plan.attention is not None or plan.saved is not None):
        reason = "attention or saved activations are treated, and lograd.variance measures such plans"
    if reason:
        return Expected(None, minibatch.unit, reason)
    ratios = [
        [_ratio(layers[name], product, profiles.get(name)) if name in layers else 0.0 for name in noise.layers]
        for product in BACKWARD
    ]
    rises = [
        [
            rise_of(layers[name].site(product, "gradient") if name in layers else (), profiles.get(name), ratio)
            for name, ratio in zip(noise.layers, column, strict=True)
        ]
        for product, column in zip(BACKWARD, ratios, strict=True)
    ]
    added, _ = risen(noise.energies, ratios, rises)
    return Expected(six_digits(added / minibatch.unit), six_digits(minibatch.unit))


def _ratio(layer: LayerPlan, product: str, profile: LayerProfile | None) -> float:
    """Return the noise-to-signal ratio that a layer's treatment adds to the gradient in a product."""
    found, treatments = layer.prediction(product), layer.site(product, "gradient")
    if not treatments or found is None:
        return 0.0
    return min(noise_of(found.cosine) * steps_over_last(treatments, profile), MOST_NOISE)


def _unknown(name: str, layer: LayerPlan, noise: NoiseFactors) -> str:
    """Return the reason why theory does not tell the noise of a layer; empty where it does."""
    operands = [layer.site(product, one) for product in BACKWARD for one in OPERANDS[product] if one != "gradient"]
    if layer.output.treats or any(operands):
        return f"{name!r} has more than its gradient treated, and lograd.variance measures such plans"
    for product in BACKWARD:
        sentence = layer.site(product, "gradient")
        if not all(one.unbiased for one in sentence):
            return f"{describe(sentence)} in {name!r} has a bias, which is more than noise"
        if sentence and layer.prediction(product) is None:
            return f"{describe(sentence)} in {name!r} depends on more than the law of magnitudes; lograd.variance tells"
    if layer.treats and name not in noise.layers:
        return f"it was not measured how far noise of {name!r} travels"
    return ""


def planned_layers(plan: Plan, layers: Mapping[str, LayerProfile]) -> dict[str, LayerPlan]:
    """Return the plan of each layer of a profile that a plan treats, with predictions by the profile's laws.

    Args:
        plan: with names of layers, or one sentence for every layer.
        layers: of the profile; observed modules that are neither linear layers nor convolutions are left out.
    """
    supported = {name: layer for name, layer in layers.items() if layer.flops_weight is not None}
    found = dict(plan.layers)
    if plan.every is not None:
        left = {*plan.kept, *_kept_by_place(plan, supported)}
        found |= {name: plan.every for name in supported if name not in left and name not in found}
    return {name: _predicted(layer, supported.get(name)) for name, layer in found.items()}


def _predicted(layer: LayerPlan, profile: LayerProfile | None) -> LayerPlan:
    statistics = None if profile is None else statistics_of(profile)
    if statistics is None:
        return layer

    def of(sentence: Sentence) -> object:
        return predicted(sentence, statistics) if sentence else None

    changes = {f"predicted_{product}": of(layer.site(product, "gradient")) for product in BACKWARD}
    return replace(layer, **changes)  # type: ignore[arg-type]


def _kept_by_place(plan: Plan, layers: Mapping[str, LayerProfile]) -> list[str]:
    """Return the layers that `Plan.keep` leaves alone, as far as the order of execution is that of the model."""
    names = list(layers)
    found = names[:1] if "first" in plan.keep and names and "Conv" in layers[names[0]].kind else []
    linear = [name for name in names if "Linear" in layers[name].kind or layers[name].kind == "Conv1D"]
    found += linear[-1:] if "last" in plan.keep else []
    return [name for name in found if name not in plan.layers] if len(found) < len(names) else []


# -- zeros --

USUAL = 0.85
"""The sparsity at which layers are judged."""
NO_TIME = "zeros save no time here"


def why_no_gain(layer: LayerProfile, products: Iterable[str] = BACKWARD) -> str | None:
    """Return the reason why zeros in a layer's gradient save no time at the profile's batch size; None where they may.

    Only the layer is judged and not this machine: the plan may be carried out on another one.

    Args:
        products: the products in which the gradient is pruned.
    """
    reason = (
        None if layer.weight_shape is None else unserved("sparse", layer.weight_shape, layer.groups, layer.transposed)
    )
    if reason:
        return f"{NO_TIME}: {reason}"
    counts = dict(zip(BACKWARD, (layer.flops_input or 0, layer.flops_weight or 0), strict=True))
    work = max((counts[product] for product in products), default=0) // 2
    if not work:
        return f"{NO_TIME}: nothing is computed from its gradient in the pruned product"
    if work < LEAST_WORK:
        return f"{NO_TIME}: {work:,} multiply-adds a product; sparse products are tried from {LEAST_WORK:,} on"
    return None


def without_gain(layers: Mapping[str, LayerProfile], products: Iterable[str]) -> dict[str, str]:
    """Return the layers in which zeros save no time, each with the reason."""
    sides = tuple(products)
    return {name: reason for name, layer in layers.items() if (reason := why_no_gain(layer, sides)) is not None}


@dataclass(frozen=True)
class PruningOutlook:
    """The predicted effect of pruning one layer, from its law at the last observed step."""

    good: float
    """The sparsity up to which the cosine is good."""
    fair: float
    """The sparsity up to which it is at least fair."""
    cosine: float
    """The cosine at `USUAL`.  Existing zeros count, so it may be 1."""
    noise: float | None
    """|error of dW|^2 / |dW|^2, summed over all layers, if this layer alone is pruned so; None if not measured."""
    no_gain: str | None
    """The reason why zeros save no time; None where they may."""


def pruning_outlook(layer: LayerProfile, noise: NoiseFactors | None = None) -> PruningOutlook | None:
    """Predict the effect of pruning one layer; None for a module that is no layer, or a gradient of zeros only.

    Args:
        noise: how noise travels between layers, where that was measured.
    """
    law = layer.law
    if law is None or layer.flops_weight is None:
        return None
    (threshold,) = theory.thresholds_for([law], (USUAL,))
    cosine = 1.0 if threshold == 0 else float(theory.cosine(law, threshold))
    share = float(law.zero_share)
    limits = theory.sparsity(law, theory.threshold_for_cosine(law, np.array([GOOD_COSINE, FAIR_COSINE])))
    good, fair = (share + (1 - share) * float(limit) for limit in limits)
    arrives = None
    if noise is not None and layer.name in noise.layers:
        place = noise.layers.index(layer.name)
        arrives = noise_of(cosine) * float(noise.factors.own[place] + noise.factors.passed[place])
    return PruningOutlook(good, fair, cosine, arrives, why_no_gain(layer))


# -- few bits --

WIDTHS = (4, 5, 6, 7, 8)
NO_FORMAT = f"no float of at most {max(WIDTHS)} bits keeps a cosine of {GOOD_COSINE:g}"


def tried_formats(law: Empirical) -> Iterator[tuple[FloatFormat, float]]:
    """Yield the best float of each width, from 4 to 8 bits, with the predicted cosine of stochastic rounding to it."""
    for bits in WIDTHS:
        format = theory.best_format(law, bits, scale="max")
        predicted = predict((Quantize(format, "max", "stochastic"),), Statistics(law))
        yield format, 0.0 if predicted is None else predicted.cosine


def recommended_format(law: Empirical) -> FloatFormat | None:
    """Return the float with the fewest bits whose predicted cosine is good; None where 8 bits are too few.

    Integers are not recommended: at an equal cosine they round the smaller half of the gradient to zero.
    """
    return next((format for format, cosine in tried_formats(law) if cosine >= GOOD_COSINE), None)
