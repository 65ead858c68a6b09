"""The state of compressed edges: a restart goes on bit for bit, and what does not fit together is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pipelined import Pipeline
from ranks import run_ranks
from torch import Tensor

from lograd import InvalidType, InvalidValue

pytestmark = pytest.mark.slow  # processes that wait for each other

ARGUMENTS: dict[str, Any] = {"backward": "prune90", "forward": "int8", "seed": 5, "refresh": 2}


def resumed(rank: int, kind: str, first: Pipeline, arguments: dict[str, Any]) -> Pipeline:
    """A pipeline that goes on where another is, in all that is saved of it."""
    second = Pipeline(rank, kind, arguments)
    second.modules.load_state_dict(first.modules.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for stage, other in zip(second.stages, first.stages, strict=True):
        stage.load_state_dict(other.state_dict())
    second.steps = first.steps
    return second


def _restarted(rank: int, kind: str) -> tuple[list[Tensor], list[Tensor], Any, Any]:
    whole, first = Pipeline(rank, kind, ARGUMENTS), Pipeline(rank, kind, ARGUMENTS)
    whole.train(8)
    first.train(4)
    second = resumed(rank, kind, first, ARGUMENTS)
    second.train(4)
    messages = [[stage.state_dict()["channels"] for stage in run.stages] for run in (whole, second)]
    return whole.weights, second.weights, *messages


@pytest.mark.parametrize("kind", ["1f1b", "interleaved"])
def test_a_restart_goes_on_bit_for_bit(kind: str) -> None:
    for whole, second, channels, others in run_ranks(_restarted, 2, kind):
        assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))
        assert channels == others
        assert all(one["messages"] == 32 for stage in channels for one in stage.values())


def said_by(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except (InvalidValue, InvalidType) as error:
        return str(error)
    return "nothing"


def _refused(rank: int) -> list[str]:
    run = Pipeline(rank, "gpipe", {"backward": "prune90", "forward": "int8"})
    run.train(2)
    stage = run.stages[0]
    good = stage.state_dict()
    name = next(iter(good["edges"]))
    edge = good["edges"][name]
    states: list[Any] = [
        {},
        good | {"stage": [5, 6]},
        good | {"edges": {"7->8": edge}},
        good | {"edges": {name: edge | {"sentence": "[]"}}},
        good | {"edges": {name: edge | {"seed": 3}}},
        good | {"edges": {name: edge | {"tensors": dict.fromkeys(edge["tensors"], 1)}}},
        good | {"channels": {name: {"capacity": "many", "messages": 0}}},
    ]
    before = [one.clone() for one in stage._edges[name].operand.tensors().values()]
    said = [said_by(stage.load_state_dict, state) for state in states]
    after = stage._edges[name].operand.tensors().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "a refused state changed something"
    return said


def test_states_that_do_not_fit_are_refused() -> None:
    words = [
        "needs its field",
        "stage 5 of 6",
        "7->8",
        "other treatments",
        "other treatments or another seed",
        "must be of type Tensor",
        "capacity",
    ]
    for said in run_ranks(_refused, 2):
        assert len(said) == len(words)
        for text, word in zip(said, words, strict=True):
            assert word in text
