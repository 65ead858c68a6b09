"""Results of a BatchNorm that wait: what changes in between, checkpointing, what is held, and copies of a model."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from normalizing import FUSED, OTHER, Applied, Block, assert_near, compare, images
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import lograd
from lograd.nn.normalization import TRIES
from lograd.nn.running import take_off


class Changing(nn.Module):
    """A sum that waits, and a change in place before its ReLU."""

    def __init__(self, change: Callable[[Tensor, Tensor], object], second: nn.Module) -> None:
        super().__init__()
        self.norm, self.second, self.change = nn.BatchNorm2d(4), second, change

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        other = self.second(x)
        y = self.norm(x) + other
        self.change(x, other)
        return F.relu(y)


CHANGES: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "input": (lambda x, other: x.mul_(2), "the input of a BatchNorm"),
    "operand": (lambda x, other: other.mul_(2), "a tensor that was added to"),
    "operand by a ReLU": (lambda x, other: F.relu_(other), "a tensor that was added to"),
    "operand by a view": (lambda x, other: other[0].mul_(2), "a tensor that was added to"),
    "operand behind autograd": (lambda x, other: other.detach().mul_(2), "a tensor that was added to"),
}


@pytest.mark.parametrize("second", [nn.Hardtanh, lambda: nn.BatchNorm2d(4)], ids=["plain", "BatchNorm"])
@pytest.mark.parametrize("what", CHANGES)
def test_an_input_that_changes_before_it_is_used_is_an_error(what: str, second: Callable[[], nn.Module]) -> None:
    change, words = CHANGES[what]
    with (
        lograd.nn.normalization(net := Changing(change, second())),
        pytest.raises(RuntimeError, match=f"{words}.* has been modified by an inplace operation"),
    ):
        net(images())


def test_a_stored_result_is_that_of_its_step() -> None:
    net = Applied(F.relu)
    kept: list[Tensor] = []
    net.norm.register_forward_hook(lambda _, inputs, y: kept.append(y))
    net(images()).sum().backward()
    with lograd.nn.normalization(net):
        net(images()).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.5).step()
        assert type(kept[1]) is not Tensor
        assert_near([kept[1] * 1], [kept[0] * 1])


@pytest.mark.parametrize("then", [F.relu, F.relu_, F.gelu, lambda y: F.relu_(y.add_(images(seed=2)))])
def test_nothing_is_held_after_a_backward(then: Callable[[Tensor], Tensor]) -> None:
    """No input and no gradient outlives its backward, though result and gradient of the layer are stored."""
    kept: list[Tensor] = []
    held: list[StorageWeakRef] = []

    def watched(y: Tensor) -> Tensor:
        y.register_hook(kept.append)
        z = then(y)
        kept.append(y)
        z.register_hook(lambda g: held.append(StorageWeakRef(g.untyped_storage())))
        return z * 1

    net = nn.Sequential(nn.Hardtanh(), Applied(watched))
    net[0].register_forward_hook(lambda _, inputs, x: held.append(StorageWeakRef(x.untyped_storage())))
    with lograd.nn.normalization(net):
        for _ in range(2):
            net(images().requires_grad_()).sum().backward()
        for one in kept:
            one.detach().sum()
        gc.collect()
        assert len(kept) == 4
        assert len(held) == 4
        assert all(one.expired() for one in held)


class Checkpointed(nn.Module):
    """A module whose forward is run again in the backward."""

    def __init__(self, part: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.part, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    handle = compare(Checkpointed(nn.Sequential(Block(4), Block(4)), reentrant), images())
    assert handle.calls == 16
    assert handle.fused >= 8


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", [*FUSED, *OTHER])
def test_whatever_follows_may_be_checkpointed(name: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    net = Applied((FUSED | OTHER)[name])
    nn.init.normal_(net.norm.bias)  # type: ignore[arg-type]
    handle = compare(Checkpointed(net, reentrant), images(), steps=TRIES + 1)
    assert handle.calls == 2 * (TRIES + 1)


def test_two_forwards_before_a_checkpointed_backward() -> None:
    """One layer is used in two ways."""
    uses = [F.relu, F.gelu] * TRIES
    net, given = nn.BatchNorm2d(4), images().requires_grad_()

    def run() -> list[Tensor]:
        outputs = [checkpoint(lambda x, then=then: then(net(x)), given, use_reentrant=False) for then in uses]
        return list(torch.autograd.grad(sum((one * one).sum() for one in outputs), [given, *net.parameters()]))

    expected = run()
    with lograd.nn.normalization(nn.Sequential(net)) as handle:  # else what leaves the layer would be plain
        assert_near(run(), expected)
    assert handle.fused == 2 * TRIES


def test_a_look_does_not_end_waiting() -> None:
    net, look = Applied(F.relu), [True, False, *[True] * TRIES, False]
    net.then = lambda y: F.relu(y + y.mean() if look.pop(0) else y)
    with lograd.nn.normalization(net) as handle:
        found = []
        while look:
            net(images()).sum().backward()
            found.append(handle.fused)
    assert found == [0, 1, *[1] * TRIES, 2]


def test_layers_that_wait_no_more_are_named() -> None:
    net = nn.Sequential(nn.BatchNorm2d(4), nn.GELU(), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    with lograd.nn.normalization(net) as handle:
        for _ in range(TRIES):
            assert "without" not in handle.words()
            net(images()).sum().backward()
        without = "2 layers without, whose result was read by gelu, the caller of the model"
        assert handle.words() == f"9 calls, 3 with a ReLU in the same pass; {without}"
        kept: list[object] = []
        net[2].register_forward_hook(lambda _, inputs, y: kept.append(y.tolist()))
        net(images())
        assert "tolist" not in handle.words()  # it goes on waiting


def test_copies_of_a_model_are_served_as_well() -> None:
    net = Applied(F.relu)
    with lograd.nn.normalization(net) as handle:
        copy.deepcopy(net)(images()).sum().backward()
    assert handle.calls == 1


def test_a_copy_without_the_hooks() -> None:
    net = nn.Sequential(Applied(F.relu), nn.Conv2d(4, 4, 1))
    handles = [
        lograd.nn.normalization(net),
        lograd.nn.saved_activations(net),
        lograd.nn.attention(net),
    ]
    copied = copy.deepcopy(net)
    copied.register_forward_pre_hook(print)
    hooks = sum(len(module._forward_hooks) for module in net.modules())
    take_off(copied)
    assert [*copied._forward_pre_hooks.values()] == [print]
    copied._forward_pre_hooks.clear()
    copied = pickle.loads(pickle.dumps(copied))
    for module in copied.modules():
        assert not any(len(table) for name, table in vars(module).items() if "_hooks" in name)
    assert sum(len(module._forward_hooks) for module in net.modules()) == hooks  # the model keeps its own
    copied(images()).sum().backward()
    assert handles[0].calls == 0
    for handle in handles:
        handle.remove()
