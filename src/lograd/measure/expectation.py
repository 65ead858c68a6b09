"""The noise of a plan in units of the minibatch's variance, from measured propagation and the laws of a profile.

W = energies.total(n_dX, n_dW, r_dX, r_dW) with n the noise-to-signal ratios of the gradient's treatments and r those on
noise that arrives, which follow from the law of |g|, and energies from how far noise of one layer alone moved the
gradient of all parameters.  rho = W / V.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..plan import Expected, LayerPlan, Plan, predicted
from ..theory import risen
from ..treatments import BACKWARD, OPERANDS, Sentence, describe
from ..treatments.verdicts import noise_of
from .contributions import Contributions
from .minibatch import Minibatch
from .noisy import MOST_NOISE, rise_of, statistics_of, steps_over_last
from .records import LayerProfile

MOST_RHO = 1e300


def expected_of(
    layers: Mapping[str, LayerPlan],
    profiles: Mapping[str, LayerProfile],
    noise: Contributions | None,
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
    rho = min(added / minibatch.unit, MOST_RHO)
    return Expected(float(f"{rho:.6g}"), float(f"{minibatch.unit:.6g}"))


def _ratio(layer: LayerPlan, product: str, profile: LayerProfile | None) -> float:
    """Return the noise-to-signal ratio that a layer's treatment adds to the gradient in a product."""
    found, treatments = layer.prediction(product), layer.site(product, "gradient")
    if not treatments or found is None:
        return 0.0
    return min(noise_of(found.cosine) * steps_over_last(treatments, profile), MOST_NOISE)


def _unknown(name: str, layer: LayerPlan, noise: Contributions) -> str:
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
