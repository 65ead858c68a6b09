"""Weights in low precision together with the rest: plans, compiled code, checkpointing, autocast, processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from low_precision import adamw, batch, network, numbers, same, sgd, stored, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import lograd

FORMATS = ("int8", "e4m3fn", "bfloat16")


@pytest.mark.parametrize("first", [False, True], ids=["plan after weights", "plan before weights"])
@pytest.mark.parametrize(("recipe", "backend"), [
    ("fp6", "dense"), ("prune85", "sparse"), ("int8-full", "integer"), ("int8-full", "dense"), ("int5-bhq", "auto"),
])  # fmt: skip
def test_a_plan_sees_the_decoded_weights(recipe: str, backend: Any, first: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    plan = lograd.Plan.uniform(recipe)
    attached = lograd.attach(model, plan, backend=backend) if first else None
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    twin = handle.export() if not first else None
    attached = attached or lograd.attach(model, plan, backend=backend)
    if twin is None:  # a plain model with the stored numbers
        twin = network()
        twin.load_state_dict(handle.plain_state_dict())
    beside = lograd.attach(twin, plan, backend=backend)
    for step in range(3):
        x, target = batch(step)
        losses = []
        for each, one in ((model, attached), (twin, beside)):
            each.zero_grad()
            loss = F.cross_entropy(each(x), target)
            loss.backward()
            losses.append(loss.item())
            one.step()
        assert losses[0] == losses[1]
        for mine, plain in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine.grad, plain.grad)
    optimizer.step()
    assert handle.counters().elements == handle.counters().weights
    attached.remove()
    beside.remove()
    handle.remove()
    assert [type(module) for module in model] == [type(module) for module in network()]


@pytest.mark.parametrize("format", FORMATS)
def test_compiled_is_eager(format: str) -> None:
    torch._dynamo.reset()
    model, optimizer, _ = stored(format)
    other, beside, _ = stored(format)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    assert train(model, optimizer, 3) == train(other, beside, 3, compiled)
    assert same(model, other)


def test_a_compiled_model_may_get_low_precision_weights_later() -> None:
    torch._dynamo.reset()
    model, optimizer, _ = stored("int8")
    other = network()
    compiled = torch.compile(other, backend="aot_eager")
    with torch.no_grad():
        compiled(batch()[0])
    beside = sgd(other.parameters())
    lograd.low_precision_weights(other, "int8", optimizer=beside)
    assert train(model, optimizer, 2) == train(other, beside, 2, compiled)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own, inside of its compiler
def test_inductor_is_eager() -> None:
    torch._dynamo.reset()
    model, optimizer, _ = stored("int8")
    other, beside, _ = stored("int8")
    compiled = torch.compile(other, fullgraph=True)
    assert train(model, optimizer, 3) == pytest.approx(train(other, beside, 3, compiled), rel=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_bit(reentrant: bool) -> None:
    model, optimizer, _ = stored("int8")
    other, beside, _ = stored("int8")

    def call(x: torch.Tensor) -> Any:
        return checkpoint(other, x.requires_grad_(), use_reentrant=reentrant)

    assert train(model, optimizer, 2) == train(other, beside, 2, call)
    assert same(model, other)


def test_autocast_multiplies_in_bfloat16_and_steps_in_float32() -> None:
    model, optimizer, handle = stored("int8")
    twin, (x, target) = handle.export(), batch()
    for each in (model, twin):
        with torch.autocast("cpu", torch.bfloat16):
            y = each(x)
        assert y.dtype == torch.bfloat16
        F.cross_entropy(y.float(), target).backward()
    beside = sgd(twin.parameters())
    for mine, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad.dtype == torch.float32
        assert torch.equal(mine.grad, plain.grad)
    optimizer.step()
    beside.step()
    error = (model[3].weight.decode() - twin[3].weight.detach()).abs()
    assert bool((error <= 1.0001 * model[3].weight.spacing).all())


def test_a_gradient_scaler_steps_once_and_skips_what_is_not_finite() -> None:
    model, optimizer, handle = stored("int8")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, target = batch()
    scaler.scale(F.cross_entropy(model(x), target)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert handle.steps == 1
    before = numbers(model)
    model[3].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    assert handle.steps == 1
    assert all(torch.equal(value, numbers(model)[name]) for name, value in before.items())


def test_activations_may_be_kept_as_codes_too() -> None:
    model, optimizer, handle = stored("int8")
    twin, (x, target) = handle.export(), batch(size=256)  # large enough to be coded
    exact = handle.export()
    F.cross_entropy(exact(x), target).backward()
    for each in (model, twin):
        kept = lograd.nn.saved_activations(each, bits=8)
        F.cross_entropy(each(x), target).backward()
        kept.remove()
    for mine, plain in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, plain.grad)
    assert kept.after < 0.3 * kept.before
    error = (model[3].weight.grad - exact[3].weight.grad).norm() / exact[3].weight.grad.norm()
    assert 0 < float(error) < 0.05
    optimizer.step()
    assert handle.steps == 1


def test_attention_and_averages() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    optimizer = adamw(model.parameters())
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    average = torch.optim.swa_utils.AveragedModel(model)
    x = torch.randn(3, 5, 16)
    model(x).square().sum().backward()
    optimizer.step()
    average.update_parameters(model)
    assert torch.equal(average.module.linear1.weight.decode(), model.linear1.weight.decode())
    twin = handle.export().eval()
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), twin(x))


def _rank(rank: int, folder: str, format: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = network(seed=rank)  # DistributedDataParallel sends those of rank 0
    handle = lograd.low_precision_weights(model, format)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = adamw(wrapped.parameters())
    handle.bind(optimizer)
    for step in range(4):
        x, target = batch(2 * step + rank)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), target).backward()
        optimizer.step()
    found = {"numbers": numbers(model), "spacing": model[3].weight.spacing, "steps": handle.steps}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow  # processes that wait for each other
def test_two_processes_keep_equal_weights(tmp_path: Any) -> None:
    mp.spawn(_rank, (str(tmp_path), "int8"), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["steps"] == second["steps"] == 4
    assert torch.equal(first["spacing"], second["spacing"])
    assert all(torch.equal(value, second["numbers"][name]) for name, value in first["numbers"].items())
