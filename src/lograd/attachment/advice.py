"""Advice at `attach`: a plan of which nothing can be done is refused; one that hardly helps is taken with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from ..engine.layers import ON_META
from ..errors import InvalidValue, LogradWarning, plural
from ..plan import Plan
from ..treatments import BACKWARD
from .counters import Count


def warn_of_useless_formats(plan: Plan, loss_scale: float | None) -> None:
    """Warn of a format made for a scaled loss where the loss is not scaled: most gradients would become zero."""
    layers = [*plan.layers.values(), *([] if plan.every is None else [plan.every])]
    for one in (one for layer in layers for name in BACKWARD for one in layer.site(name, "gradient")):
        if loss_scale is None and one.overflows:
            warnings.warn(
                f"{one} is for a loss that a GradScaler scales, and without one most gradients become zero; "
                "give attach(..., loss_scale=scaler.get_scale()).",
                LogradWarning,
                stacklevel=3,
            )
            return


def warn_of_skipped_layers(plan: Plan, treated: int, skipped: Mapping[str, str]) -> None:
    """Warn of layers that the plan names and that cannot be treated; refuse a plan that treats no layer at all.

    Args:
        treated: the number of layers that are treated.
        skipped: the layers that are left alone, and why.
    """
    if not treated and (plan.layers or plan.every is not None):
        found: dict[str, str] = {}
        for name, reason in skipped.items():
            found.setdefault(reason, f"{name!r} is {reason}")
        reasons = "; ".join(list(found.values())[:3]) or "it has no linear layer or convolution"
        raise InvalidValue(f"the plan treats no layer of this model: {reasons}.")
    if left := {name: skipped[name] for name in plan.layers if name in skipped}:
        name, reason = next(iter(left.items()))
        warnings.warn(
            f"{len(left)} of the {len(plan.layers)} layers of the plan cannot be treated, such as {name!r}, {reason}; "
            "handle.explain() names all.",
            LogradWarning,
            stacklevel=3,
        )


def warn_of_converted_layers(reasons: Mapping[str, str], layers: int) -> bool:
    """Warn of layers that pass everything through, as the model was converted after `attach`; return True if any do.

    Args:
        reasons: why, by layer; a layer on the meta device computes nothing, which whoever put it there knows.
        layers: how many layers the plan treats.
    """
    reasons = {name: reason for name, reason in reasons.items() if reason != ON_META}
    if not reasons:
        return False
    name, reason = next(iter(reasons.items()))
    warnings.warn(
        f"{len(reasons)} of the {plural(layers, 'layer')} of the plan pass through unchanged since the model was "
        f"converted, such as {name!r}: {reason}; convert it back, or remove the plan.",
        LogradWarning,
        stacklevel=3,
    )
    return True


def warn_of_untreated_gradients(total: Count, steps: int, start: int, seen: int) -> None:
    """Warn, where a plan is taken off, that it has treated nothing, and why.

    Args:
        total: all that was counted.
        steps: how often handle.step() was called.
        start: the first step that was to be treated.
        seen: gradients that came by, in the layer with the most.
    """
    # Where step() was never called, only the gradients that came by tell how far the run was.
    begun = steps > start or (not steps and seen > start)
    if total.passed_through and not total.treated and begun:
        warnings.warn(
            f"no gradient was treated: {total.passed_through} passed through unchanged while handle.step() was "
            f"called {plural(steps, 'time')}; call it after each optimizer step.",
            LogradWarning,
            stacklevel=3,
        )
    elif steps and not total.passes:
        warnings.warn(
            f"no gradient came by in {plural(steps, 'step')}; if a copy of the model was trained, attach to the copy.",
            LogradWarning,
            stacklevel=3,
        )
