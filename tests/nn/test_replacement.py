"""lograd.nn.attention: attention of a model in integers, and its undo."""

from __future__ import annotations

import pickle
from dataclasses import replace
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lograd
from experiments.models import CharTransformer
from lograd.errors import InvalidType, InvalidValue


def model() -> nn.Module:
    torch.manual_seed(0)
    return CharTransformer(30, width=32, depth=2, heads=4, context=16)


def tokens() -> Tensor:
    return torch.randint(30, (2, 16), generator=torch.Generator().manual_seed(1))


def difference(found: Tensor, expected: Tensor) -> float:
    """The relative error of a tensor."""
    return float((found - expected).detach().norm() / expected.detach().norm())


class Attending(nn.Module):
    """A module without parts whose forward attends."""

    def forward(self, x: Tensor, scale: Tensor | None = None, shared: bool = False) -> Tensor:
        k = x[:, :1] if shared else x
        y = F.scaled_dot_product_attention(x, k, k, attn_mask=scale, enable_gqa=shared)
        if bool(y.sum() > 1e6):
            raise RuntimeError("too large")
        return y


def test_attention_of_the_model_runs_in_integers_until_removed() -> None:
    net, x = model(), tokens()
    before, expected = pickle.dumps(net), net(x)

    handle = lograd.nn.attention(net, bits=6)
    found = net(x)
    found.sum().backward()
    handle.remove()
    net.zero_grad(set_to_none=True)

    assert handle.calls == 2
    assert 1e-5 < difference(found, expected) < 0.05
    assert torch.equal(net(x), expected)
    assert pickle.dumps(net) == before
    assert repr(handle) == "AttentionHandle(6 bits, 2 calls)"


def test_calls_outside_of_the_model_are_left_to_torch() -> None:
    net, q = model(), torch.randn(2, 4, 8, 16)
    expected = F.scaled_dot_product_attention(q, q, q)
    with lograd.nn.attention(net) as handle:
        net(tokens())
        assert torch.equal(F.scaled_dot_product_attention(q, q, q), expected)
    assert handle.calls == 2


def test_a_forward_that_fails_leaves_nothing_open() -> None:
    net = Attending()
    with lograd.nn.attention(net) as handle:
        with pytest.raises(RuntimeError, match="too large"):
            net(torch.full((2, 2, 8, 16), 1e9))
        q = torch.randn(2, 4, 8, 16)
        F.scaled_dot_product_attention(q, q, q)
    assert handle.calls == 1


def test_what_integers_cannot_serve_is_left_to_torch_and_counted() -> None:
    net, x = Attending(), torch.randn(2, 4, 8, 16)
    learned = torch.zeros(8, 8, requires_grad=True)
    with lograd.nn.attention(net) as handle:
        wide = net(x.double())
        net(x, learned).sum().backward()
        net(x, shared=True)
        torch.func.vmap(lambda one: one * 2)(net(x))
    assert torch.equal(wide, F.scaled_dot_product_attention(x.double(), x.double(), x.double()))
    assert learned.grad is not None
    assert handle.calls == 1
    assert sorted(handle.left_alone.values()) == [1, 1, 1]
    assert any("attn_mask requires a gradient" in reason for reason in handle.left_alone)
    assert repr(handle) == "AttentionHandle(8 bits, 1 call, 3 calls left alone)"


def test_multi_head_attention_of_torch() -> None:
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(32, 4, dropout=0.0, batch_first=True), torch.randn(2, 5, 32)
    expected = layer(x)
    with lograd.nn.attention(layer) as handle:
        found = layer(x)
    assert handle.calls == 1
    assert 1e-5 < difference(found, expected) < 0.05


def test_checkpointing_recomputes_in_integers() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(Attending(), Attending()), torch.randn(2, 4, 8, 16, requires_grad=True)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.net, x, use_reentrant=False)
            return result

    with lograd.nn.attention(Checkpointed()) as handle:
        Checkpointed()(x).sum().backward()
    assert handle.calls == 4


def test_another_thread_is_not_disturbed() -> None:
    q = torch.randn(2, 4, 8, 16)
    expected = F.scaled_dot_product_attention(q, q, q)
    found = []

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = Thread(target=lambda: found.append(F.scaled_dot_product_attention(q, q, q)))
            thread.start()
            thread.join()
            return F.scaled_dot_product_attention(x, x, x)

    with lograd.nn.attention(net := Waiting()) as handle:
        net(q)
    assert torch.equal(found[0], expected)
    assert handle.calls == 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile, by itself
def test_compiled_models_attend_in_integers() -> None:
    net, x = model(), tokens()
    expected = net(x)
    with lograd.nn.attention(net), torch.no_grad():
        eager, compiled = net(x), torch.compile(net, backend="aot_eager")(x)
    assert not torch.equal(eager, expected)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)


def test_training_together_with_an_attached_plan() -> None:
    net, x = model(), tokens()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    losses = []
    with lograd.attach(net, lograd.Plan.uniform("prune50")) as plan, lograd.nn.attention(net) as handle:
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            plan.step()
            losses.append(loss.item())
    assert handle.calls == 24
    assert losses[-1] < 0.8 * losses[0]


def test_refusals() -> None:
    with pytest.raises(InvalidType, match=r"model must be a torch\.nn\.Module"):
        lograd.nn.attention(torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="bits must be"):
        lograd.nn.attention(nn.Linear(2, 2), bits=1)


def test_a_plan_asks_for_it() -> None:
    net, x = model(), tokens()
    before, expected = pickle.dumps(net), net(x)
    plan = replace(lograd.Plan.uniform("identity"), attention=7)
    assert lograd.Plan.from_dict(plan.to_dict()) == plan
    with lograd.attach(net, plan) as handle:
        assert not torch.equal(net(x), expected)
        said = handle.explain().layers["scaled_dot_product_attention"]
    assert said == "7-bit integers in forward and backward, 2 calls"
    assert torch.equal(net(x), expected)
    assert pickle.dumps(net) == before


@pytest.mark.parametrize("field", ["attention", "saved"])
@pytest.mark.parametrize("bits", [1, 9, True, "8"])
def test_a_plan_refuses_other_bits(bits: object, field: str) -> None:
    data = {**lograd.Plan.uniform("identity").to_dict(), field: bits}
    with pytest.raises((InvalidType, InvalidValue), match=f"{field} of a plan must be"):
        lograd.Plan.from_dict(data)
