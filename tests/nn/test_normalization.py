"""lograd.nn.normalization: BatchNorm and the ReLU behind it in one pass, against PyTorch, and its undo."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from normalizing import FUSED, OTHER, Applied, Block, assert_near, compare, images, trained
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lograd
from experiments.models import CifarResNet
from lograd.errors import InvalidType


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "NCHW"])
@pytest.mark.parametrize("inplace", [True, False])
def test_residual_blocks(inplace: bool, last: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 8, 1), Block(8, inplace), Block(8, inplace))
    handle = compare(net, images(last=last))
    assert (handle.calls, handle.fused) == (8, 8)
    assert repr(handle) == "NormalizationHandle(8 calls, 8 with a ReLU)"


def test_a_whole_network() -> None:
    torch.manual_seed(0)
    handle = compare(CifarResNet(8, classes=5), torch.randn(4, 3, 16, 16))
    assert (handle.calls, handle.fused) == (18, 14)  # the BatchNorms of two shortcuts have no ReLU of their own


def test_a_removed_handle_leaves_the_model_as_it_was() -> None:
    net = CifarResNet(8)
    before = pickle.dumps(net)
    handle = lograd.nn.normalization(net)
    assert net.state_dict().keys() == pickle.loads(before).state_dict().keys()
    handle.remove()
    assert pickle.dumps(net) == before


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "NCHW"])
@pytest.mark.parametrize("name", [*FUSED, *OTHER])
def test_whatever_follows_is_what_it_would_be(name: str, last: bool) -> None:
    torch.manual_seed(0)
    net = Applied((FUSED | OTHER)[name])
    with torch.no_grad():
        net.norm.bias.normal_()  # type: ignore[operator, union-attr]
    handle = compare(net, images(last=last))
    assert handle.calls == 2
    if name in FUSED:
        assert handle.fused >= 2


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "no momentum": (lambda: nn.BatchNorm2d(4, momentum=None), (3, 4, 5, 5)),
    "no running statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 5)),
    "no weight": (lambda: nn.BatchNorm2d(4, affine=False), (3, 4, 5, 5)),
    "another epsilon": (lambda: nn.BatchNorm2d(4, eps=0.5, momentum=0.7), (3, 4, 5, 5)),
    "rows": (lambda: nn.BatchNorm1d(4), (9, 4)),
    "sequences": (lambda: nn.BatchNorm1d(4), (3, 4, 6)),
    "volumes": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 2, 5)),
    "across processes": (lambda: nn.SyncBatchNorm(4), (3, 4, 5, 5)),
    "lazy": (lambda: nn.LazyBatchNorm2d(), (3, 4, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_batch_norm(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    net, x = Applied(F.relu, make()), torch.randn(shape) + 0.5
    if name == "lazy":
        net(x)
    handle = compare(net, x)
    assert (handle.calls, handle.fused) == (2, 2)


def test_what_is_not_served_is_left_to_torch_and_counted() -> None:
    net, x = Applied(F.relu).eval(), images()
    expected = net(x)
    with lograd.nn.normalization(net) as handle:
        assert torch.equal(net(x), expected)
        net.train()
        net.double()(x.double())
        net.float()
        with torch.autocast("cpu", torch.bfloat16):
            net(x.bfloat16())
        with torch.inference_mode():
            net(x)
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            net(torch.randn(1, 4, 1, 1))
    assert handle.calls == 0
    assert sorted(handle.left_alone.values()) == [1, 1, 1, 1, 1]
    assert "1 call left to PyTorch: the layer is in evaluation mode" in handle.words()
    assert repr(handle) == "NormalizationHandle(0 calls, 0 with a ReLU, 5 calls left alone)"


def test_transforms_and_dispatch_modes_see_what_torch_computes() -> None:
    net, x = Applied(F.relu, nn.BatchNorm2d(4, track_running_stats=False)), images()
    expected = torch.func.grad(lambda x: net(x).square().sum())(x)
    with lograd.nn.normalization(net) as handle:
        assert torch.equal(torch.func.grad(lambda x: net(x).square().sum())(x), expected)
        torch.func.vmap(net)(x[None])
        with FlopCounterMode(display=False):
            net(x)
    assert handle.calls == 0
    assert list(handle.left_alone.values()) == [2, 1]


def test_statistics_alone_without_gradients() -> None:
    net, plain, x = Applied(F.relu), Applied(F.relu), images()
    with lograd.nn.normalization(net) as handle, torch.no_grad():
        found, expected = net(x), plain(x)
    assert type(found) is Tensor
    assert_near([found, *net.double().buffers()][:3], [expected, *plain.double().buffers()][:3])
    assert (handle.calls, handle.fused) == (1, 0)


@pytest.mark.parametrize("then", [lambda y: y, F.relu, lambda y: F.relu(y + images(seed=1))], ids=["", "relu", "sum"])
def test_gradients_of_gradients(then: Callable[[Tensor], Tensor]) -> None:
    def second(net: nn.Module) -> list[Tensor]:
        x = images().requires_grad_()
        (first,) = torch.autograd.grad((net(x) ** 3 * images(seed=5)).sum(), x, create_graph=True)
        found = torch.autograd.grad((first * images(seed=6)).sum(), [x, *net.parameters()], allow_unused=True)
        return [one for one in found if one is not None]

    net = Applied(then)
    expected = second(copy.deepcopy(net))
    with lograd.nn.normalization(net):
        assert_near(second(net), expected, 1e-4)


def test_hooks_see_plain_numbers() -> None:
    def seen(net: Applied) -> list[Tensor]:
        found: list[Tensor] = []
        net.norm.register_full_backward_hook(lambda _, inputs, outputs: found.extend([*inputs, *outputs]))
        net.norm.register_forward_hook(lambda _, inputs, y: found.append(y.detach().clone()))
        x = images().requires_grad_()
        net(x).sum().backward()
        return found

    def gradients(net: Applied) -> list[Tensor]:
        found: list[Tensor] = []

        def then(y: Tensor) -> Tensor:
            y.register_hook(lambda g: found.append(g * 1))
            return F.relu(y)

        net.then = then
        net(images().requires_grad_()).sum().backward()
        return found

    for what in (seen, gradients):
        net = Applied(F.relu)
        expected = what(copy.deepcopy(net))
        with lograd.nn.normalization(net):
            assert_near(what(net), expected)


def test_what_leaves_the_model_is_a_plain_tensor() -> None:
    net = Applied(lambda y: {"a": [y, y + images(seed=1)], "b": F.relu(y)})  # type: ignore[arg-type, return-value]
    x = images().requires_grad_()
    with lograd.nn.normalization(net):
        found = net(x)
    for one in (*found["a"], found["b"]):
        assert type(one) is Tensor
        assert one.requires_grad
    (gradient,) = torch.autograd.grad(found["b"].sum() + found["a"][1].sum(), x)
    assert type(gradient) is Tensor


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # a graph that it breaks, by itself
@pytest.mark.parametrize("what", ["model", "part"])
def test_compiled_models(what: str) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.BatchNorm2d(4), Block(4)), images()
    expected = trained(copy.deepcopy(net), x)
    with lograd.nn.normalization(net):
        if what == "part":
            net[1].forward = torch.compile(net[1].forward, backend="aot_eager")  # type: ignore[method-assign]
        run = torch.compile(net, backend="aot_eager") if what == "model" else net
        assert_near(trained(run, x), expected)  # type: ignore[arg-type]


def test_with_a_plan_that_asks_for_it() -> None:
    torch.manual_seed(0)
    net, x = CifarResNet(8, width=16), torch.randn(4, 3, 16, 16)
    plan = replace(lograd.Plan.uniform("int8-full"), normalization=True, saved=8)
    assert lograd.Plan.from_dict(plan.to_dict()) == plan
    with lograd.attach(net, plan) as handle:
        for _ in range(2):
            F.cross_entropy(net(x), torch.tensor([1, 2, 3, 4])).backward()
            handle.step()
        assert "BatchNorm and ReLU" in handle.explain().layers
        assert "18 calls, 14 with a ReLU in the same pass" in str(handle.explain())
    assert not any(module._forward_hooks for module in net.modules())
    with pytest.raises(InvalidType, match="normalization of a plan must be True or False"):
        replace(plan, normalization=1)


def test_layers_in_integers_take_a_result_that_waits() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, padding=1)), torch.randn(2, 16, 8, 8)
    plan = lograd.Plan.uniform("int8-full", keep=())
    found = []
    for normalization in (False, True):
        one = copy.deepcopy(net)
        with lograd.attach(one, replace(plan, normalization=normalization), backend="integer") as handle:
            found.append(trained(one, x))
            assert "bits are real" in str(handle.explain())
    assert_near(found[1], found[0], 0.02)  # another bit may round to another level


def test_only_modules_are_taken() -> None:
    with pytest.raises(InvalidType, match=r"model must be a torch.nn.Module; got an object of type int"):
        lograd.nn.normalization(3)  # type: ignore[arg-type]
