"""Pipelines with compressed edges against plain ones, in torch's own schedules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pipelined import MICROBATCHES, Pipeline, batch
from ranks import run_ranks
from torch import Tensor

from lograd.wire import channel as channels
from lograd.wire import edge as edges
from lograd.wire import stage as stages

pytestmark = pytest.mark.slow  # processes that wait for each other

KINDS = ("gpipe", "1f1b", "interleaved")
STEPS = 4


def _same(rank: int, kind: str) -> list[bool]:
    plain = Pipeline(rank, kind, None)
    plain.train(STEPS)
    found = []
    for arguments in (
        {"backward": None},
        {"backward": "identity", "forward": "identity"},
        {"backward": {}, "forward": None},
    ):
        other = Pipeline(rank, kind, arguments)
        other.train(STEPS)
        pairs = zip(plain.weights, other.weights, strict=True)
        found.append(all(torch.equal(a, b) for a, b in pairs) and plain.losses == other.losses)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_edges_that_change_nothing_train_as_plain_ones(kind: str) -> None:
    assert run_ranks(_same, 2, kind) == [[True] * 3] * 2


def test_four_ranks_train_as_plain_ones() -> None:
    assert run_ranks(_same, 4, "1f1b") == [[True] * 3] * 4


# -- treated edges --


def _recorded() -> tuple[list[Tensor], list[Tensor]]:
    """Lists that are filled with what each packet should hold, by the treatments alone, and with what is decoded."""
    sent: list[Tensor] = []
    received: list[Tensor] = []
    packet, decode = edges.Edge.packet, stages.decode_like

    def recording_packet(self: edges.Edge, x: Tensor, *others: Any, **more: Any) -> Tensor:
        site = self.site
        assert site is not None
        before, ready = copy.deepcopy(site), self.operand.ready
        found = packet(self, x, *others, **more)
        sent.append(before.treat(x, (), self.operand.control) if ready else x.clone())
        return found

    def recording_decode(packet: Tensor, like: Tensor) -> Tensor:
        received.append(decode(packet, like))
        return received[-1].clone()

    edges.Edge.packet, stages.decode_like = recording_packet, recording_decode  # type: ignore[method-assign]
    return sent, received


def _treated(rank: int, kind: str, recipes: list[str]) -> dict[str, Any]:
    found = {}
    sent, received = _recorded()
    for recipe in recipes:
        trained = Pipeline(rank, kind, {"backward": recipe})
        trained.train(12)
        counted = {name: one.to_json() for stage in trained.stages for name, one in stage.counters().items()}
        counts = {name: one for stage in trained.stages for name, one in stage.treated().items()}
        found[recipe] = (sent[:], received[:], trained.losses, counted, counts)
        sent.clear()
        received.clear()
    return found


@pytest.fixture(scope="module")
def treated() -> list[dict[str, Any]]:
    """What two ranks have seen, by recipe."""
    return run_ranks(_treated, 2, "1f1b", ["prune90", "fp8", "int4", "fp6", "int8-psq", "prune85+fp6", "mxfp4"])


def test_what_arrives_is_what_was_treated_bit_for_bit(treated: list[dict[str, Any]]) -> None:
    for recipe in treated[0]:
        sent, received = treated[1][recipe][0], treated[0][recipe][1]
        assert len(sent) == len(received) == 12 * MICROBATCHES
        for one, other in zip(sent, received, strict=True):
            assert torch.equal(one, other), recipe
            assert recipe != "prune90" or torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_the_loss_falls_with_treated_edges(treated: list[dict[str, Any]]) -> None:
    for recipe, (*_, losses, _, _) in treated[1].items():
        assert losses[-1] < 0.75 * losses[0], recipe


def test_pruned_gradients_have_the_zeros_that_were_asked_for(treated: list[dict[str, Any]]) -> None:
    counts = treated[1]["prune90"][4]["1->0"]
    assert counts["passed_through"] == MICROBATCHES  # the first step, which has no statistics
    elements, zeros = counts["elements"], counts["zeros_after"]
    assert zeros / elements == pytest.approx(0.9, abs=0.02)
    last = torch.stack(treated[0]["prune90"][1][-MICROBATCHES:])
    assert float((last == 0).float().mean()) > 0.8


def test_both_ends_count_the_same(treated: list[dict[str, Any]]) -> None:
    for recipe in treated[0]:
        receiver, sender = (treated[rank][recipe][3]["1->0"] for rank in range(2))
        for name in ("messages", "packets", "plain", "overflows", "ratio"):
            assert sender[name] == receiver[name], (recipe, name)
        assert sender["sent"] == receiver["received"] >= sender["packets"]
        assert sender["received"] == receiver["sent"] == 0
        assert sender["messages"] == 12 * MICROBATCHES
        assert sender["encoding"] > 0 < receiver["decoding"]
        assert sender["plain"] == 12 * 32 * 32 * 4
        assert treated[1][recipe][3].keys() == {"1->0"}, "plain edges are not counted"


# -- packets that do not fit --


def _overflowing(rank: int, kind: str) -> tuple[list[bool], list[int]]:
    arguments = {"backward": "prune90", "forward": "int8-nearest"}
    first = Pipeline(rank, kind, arguments)
    first.train(STEPS)
    channels.Channel.size = lambda self, bound: channels.HEAD.size + 40  # type: ignore[method-assign]
    second = Pipeline(rank, kind, arguments)
    second.train(STEPS)
    same = [torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True)]
    return same, [one.overflows for stage in second.stages for one in stage.counters().values()]


@pytest.mark.parametrize("kind", KINDS)
def test_packets_that_do_not_fit_take_a_second_message(kind: str) -> None:
    for same, overflows in run_ranks(_overflowing, 2, kind):
        assert all(same)
        assert set(overflows) == {STEPS * MICROBATCHES}


# -- evaluation --


def _evaluated(rank: int, kind: str) -> list[Tensor]:
    arguments = {"backward": "prune90", "forward": "int8"}
    runs = [Pipeline(rank, kind, arguments) for _ in range(2)]
    for number, run in enumerate(runs):
        run.train(2)
        if number:
            x, target = batch(99)
            last = run.stages[-1].is_last
            run.schedule.eval(*((x,) if rank == 0 else ()), **({"target": target, "losses": []} if last else {}))
        run.train(2)
    return [torch.stack([one.sum() for one in run.weights]) for run in runs]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_evaluation_between_steps_changes_nothing(kind: str) -> None:
    for first, second in run_ranks(_evaluated, 2, kind):
        assert torch.equal(first, second)
