"""The plan of a pipeline's edges: which sentence the tensors that leave a stage are treated by, and which go plain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..attachment.refresh import Refresh, check_refresh
from ..errors import InvalidType, InvalidValue, nearest_name, sentence, shown
from ..plan import LayerPlan, Plan
from ..treatments import Sentence, Treated, Treatment, describe, recipe, to_json

BACKWARD, FORWARD = "backward", "forward"
OPERAND = {BACKWARD: "gradient", FORWARD: "activations"}
"""The tensors that travel in each direction."""

EdgePlan = str | Treatment | Sentence | LayerPlan | None
"""A recipe by name, treatments, or the plan of a layer, whose sentence is taken; None sends plain tensors."""
EdgePlans = EdgePlan | Plan | Mapping[str, EdgePlan]
"""One for all edges of a direction, or one for each by name: "1->0" is the gradient from stage 1 to stage 0."""


def edge_name(source: int, target: int) -> str:
    """Return the name of the edge from one stage to another: "1->0" carries a gradient, "0->1" activations."""
    return f"{source}->{target}"


def edge_names(direction: str, stages: int) -> list[str]:
    """Return the names of all edges of one direction."""
    pairs = [(index, index + 1) for index in range(stages - 1)]
    return [edge_name(a, b) if direction == FORWARD else edge_name(b, a) for a, b in pairs]


def edge_sentences(plans: EdgePlans, direction: str, stages: int) -> dict[str, Sentence | None]:
    """Return the sentence of each edge of a direction by name; None where plain tensors travel.

    >>> edge_sentences("fp8", "backward", 2)["1->0"][0].format.bits
    8
    """
    names = edge_names(direction, stages)
    if isinstance(plans, Plan):
        plans = {**({} if plans.every is None else dict.fromkeys(names, plans.every)), **plans.layers}
    if not isinstance(plans, Mapping):
        plans = dict.fromkeys(names, plans)
    for name in plans:
        if name not in names:
            raise InvalidValue(
                sentence(f"an edge of {direction}", name, "one of " + (", ".join(names) or "none: there is one stage"))
                + nearest_name(str(name), names)
            )
    return {name: _sentence(plans.get(name), direction) for name in names}


def _sentence(plan: Any, direction: str) -> Sentence | None:
    """Return the sentence of a plan; that of the forward is the output's activations, or else the gradient's."""
    if plan is None:
        return None
    given = plan
    if isinstance(plan, Treatment):
        plan = (plan,)
    if isinstance(plan, str):
        plan = recipe(plan)
    if isinstance(plan, Treated | LayerPlan):
        treats = plan.treats
        found = plan.output.activations if direction == FORWARD else ()
        found = found or plan.input_gradient.gradient
        if treats and not found:
            raise InvalidValue(f"{shown(given)} says nothing about the {OPERAND[direction]} that travel {direction}.")
        plan = found
    if not isinstance(plan, tuple) or not all(isinstance(one, Treatment) for one in plan):
        raise InvalidType(sentence(direction, plan, "a recipe such as 'prune90', treatments, a LayerPlan, or None"))
    for one in plan:
        if one.learns or one.shared_sparsity is not None:
            raise InvalidValue(f"{describe(plan)} cannot treat an edge: {one} belongs to the layers of one model.")
    return plan


def check_edge_refresh(refresh: Refresh) -> Refresh:
    """Return the policy of refreshing statistics: a number of steps; edges know no epochs."""
    found = check_refresh(refresh)
    if not isinstance(found, int):
        raise InvalidValue(sentence("refresh", refresh, "a number of steps"))
    return found


def words_of(sentences: Mapping[str, Sentence | None]) -> str:
    """Return a text that is the same for two plans if and only if they are."""
    return json.dumps({name: None if one is None else to_json(one) for name, one in sentences.items()}, sort_keys=True)
