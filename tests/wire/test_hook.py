"""The communication hook of DDP: averages, unbiasedness, error feedback, and a restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lograd.errors import InvalidType, InvalidValue
from lograd.wire import HookState, comm_hook

pytestmark = pytest.mark.slow  # processes that wait for each other

Options = dict[str, Any]
STEPS = 6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(32, 64, generator=generator)
    return x, x[:, :16].sin()


class Trained:
    """A model under DDP, with the hook or without."""

    def __init__(self, treatments: Any, options: Options) -> None:
        self.model = DistributedDataParallel(network(), bucket_cap_mb=0.02)  # several buckets
        self.state = None if treatments is None else HookState(self.model, treatments, **options)
        if self.state is not None:
            self.model.register_comm_hook(self.state, comm_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.losses: list[float] = []

    def train(self, rank: int, steps: range) -> None:
        """Take steps with these numbers."""
        for step in steps:
            x, target = batch(step, rank)
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), target)
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))

    @property
    def weights(self) -> list[Tensor]:
        """The parameters as they are."""
        return [one.detach().clone() for one in self.model.parameters()]


# -- training --


def _trained(rank: int, settings: list[tuple[Any, Options]]) -> list[Any]:
    found = []
    for treatments, options in settings:
        run = Trained(treatments, options)
        run.train(rank, range(30))
        counts = {} if run.state is None else run.state.count.to_json()
        found.append((run.weights, run.losses, counts))
    return found


SETTINGS: list[tuple[Any, Options]] = [
    (None, {}), ("identity", {}), ("prune90", {}), ("int8", {}), ("topk90", {"error_feedback": True}),
    ("fp8", {"start": 30}),
]  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> list[list[Any]]:
    """Weights and counts of two ranks after training, by setting."""
    return run_ranks(_trained, 2, SETTINGS)


def test_ranks_have_the_same_weights(trained: list[list[Any]]) -> None:
    for first, second in zip(*trained, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))


def test_packets_of_untreated_gradients_give_what_all_reduce_gives(trained: list[list[Any]]) -> None:
    plain, identity, *_, late = trained[0]
    for one, other in ((plain, identity), (plain, late)):
        for a, b in zip(one[0], other[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_training_with_treated_gradients_is_nearly_as_good(trained: list[list[Any]]) -> None:
    plain = trained[0][0][1]
    assert plain[-1] < 0.7 * plain[0]
    for (treatments, _), (_, losses, _) in zip(SETTINGS[2:], trained[0][2:], strict=True):
        assert losses[-1] < 0.8 * plain[0], treatments


def test_bytes_are_counted(trained: list[list[Any]]) -> None:
    for (treatments, _), (_, _, counts) in zip(SETTINGS[1:], trained[0][1:], strict=True):
        assert counts["sent"] >= counts["packets"] > 0, treatments
        assert counts["received"] == counts["sent"]  # from one other rank
        assert counts["plain"] == 30 * 2 * 4 * sum(one.numel() for one in network().parameters())


# -- unbiased --


def _draws(rank: int, treatments: str, draws: int) -> tuple[Tensor, Tensor]:
    """The averaged gradient of the first layer from one batch: without a hook, and many times with it."""
    x, target = batch(0, rank)
    plain, run = Trained(None, {}), Trained(treatments, {"refresh": 10**6})
    found = []
    for one, count in ((plain, 1), (run, draws + 2)):
        for _ in range(count):
            one.model.zero_grad()
            nn.functional.mse_loss(one.model(x), target).backward()
            gradient = one.model.module[2].weight.grad
            assert gradient is not None
            found.append(gradient.clone())
    return found[0], torch.stack(found[3:])  # the first two steps have no statistics


@pytest.mark.parametrize("treatments", ["prune80", "int4"])
def test_the_average_is_unbiased(treatments: str) -> None:
    draws = 60
    exact, found = run_ranks(_draws, 2, treatments, draws)[0]
    # One linear functional of the gradient, whose standard error is known from the draws: a band of 4 sigma.
    sums = (found * exact).flatten(1).sum(1)
    assert sums.std() > 0
    assert abs(sums.mean() - exact.square().sum()) < 4 * sums.std() / draws**0.5
    errors = (found.mean(0) - exact).square().sum()
    expected = found.var(0).sum() / draws
    assert errors < 2 * expected  # a bias would not fall with the number of draws


# -- error feedback --


def _left_out(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of all gradients before and after top-k, and what is still to be sent."""
    run = Trained("topk95", {"error_feedback": True})
    sent, wanted = torch.zeros(64, 64), torch.zeros(64, 64)
    for step in range(STEPS):
        x, target = batch(step, 0)  # all ranks have one batch, so that the mean is what each has sent
        run.model.zero_grad()
        with run.model.no_sync():
            nn.functional.mse_loss(run.model(x), target).backward()
        weight = run.model.module[2].weight
        assert weight.grad is not None
        wanted += weight.grad
        run.model.zero_grad()
        nn.functional.mse_loss(run.model(x), target).backward()
        sent += weight.grad
    assert run.state is not None
    return wanted, sent, run.state.state_dict()["errors"]["module.2.weight"]


def test_error_feedback_loses_nothing() -> None:
    for wanted, sent, left in run_ranks(_left_out, 2):
        assert left.abs().max() > 0
        torch.testing.assert_close(sent + left, wanted, rtol=1e-4, atol=1e-6)


# -- restart --


def _resumed(rank: int, treatments: str, options: Options) -> tuple[list[Tensor], list[Tensor]]:
    whole = Trained(treatments, options)
    whole.train(rank, range(2 * STEPS))
    first, second = Trained(treatments, options), Trained(treatments, options)
    first.train(rank, range(STEPS))
    assert first.state is not None
    assert second.state is not None
    second.model.load_state_dict(first.model.state_dict())
    second.state.load_state_dict(first.state.state_dict())
    second.train(rank, range(STEPS, 2 * STEPS))
    return whole.weights, second.weights


@pytest.mark.parametrize(("treatments", "options"), [("prune90", {}), ("topk95", {"error_feedback": True})])
def test_a_restart_goes_on_bit_for_bit(treatments: str, options: Options) -> None:
    for whole, resumed in run_ranks(_resumed, 2, treatments, options):
        assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


# -- refusals --


def said_by(call: Callable[[], Any]) -> str:
    try:
        call()
    except (InvalidValue, InvalidType) as error:
        return str(error)
    return "nothing"


def _refused(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    state = HookState(model, "prune90")
    good, other = state.state_dict(), HookState(model, "fp8").state_dict()
    states: list[Any] = [{}, good | {"ranks": [5, 7]}, other, good | {"edges": {}}]
    arguments: list[Any] = [(model, None), (model, "prune90-cosine"), (3,)]
    return [said_by(partial(state.load_state_dict, one)) for one in states] + [
        said_by(partial(HookState, *some)) for some in arguments
    ]


def test_what_does_not_fit_is_refused() -> None:
    words = [
        "needs its field",
        "rank 5 of 7",
        "other treatments",
        "is missing",
        "as they are",
        "one model",
        "module",
    ]
    for said in run_ranks(_refused, 2):
        assert len(said) == len(words)
        for text, word in zip(said, words, strict=True):
            assert word in text
