"""The handle of weights in low precision: what it stores, counts, explains, saves and gives back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from low_precision import adamw, batch, network, numbers, same, sgd, stored, train
from torch import nn

import lograd
from lograd import InvalidType, InvalidValue
from lograd.weights import LowPrecisionTensor

FORMATS = ("int8", "e4m3fn", "bfloat16")


def test_parameters_stay_the_objects_that_they_were() -> None:
    model = network()
    keys, objects, before = list(model.state_dict()), list(model.parameters()), numbers(model)
    optimizer = sgd(model.parameters())
    with lograd.low_precision_weights(model, "int8", optimizer=optimizer) as handle:
        assert all(one is other for one, other in zip(model.parameters(), objects, strict=True))
        assert list(model.state_dict()) == keys
        assert list(handle.weights) == ["0.weight", "3.weight", "5.weight"]
        assert all(isinstance(one, nn.Parameter) and one.requires_grad for one in model.parameters())
        stored_numbers = numbers(model)
        assert handle.weights["3.weight"] is model[3].weight
    assert all(type(one) is nn.Parameter for one in model.parameters())
    assert all(one is other for one, other in zip(model.parameters(), objects, strict=True))
    for name, now in numbers(model).items():
        assert torch.equal(now, stored_numbers[name])
        assert float((now - before[name]).abs().max()) <= float(before[name].abs().max()) / 200
    handle.remove()  # twice is once


@pytest.mark.parametrize("format", FORMATS)
def test_a_removed_handle_leaves_a_model_that_trains_in_float32(format: str) -> None:
    model, optimizer, handle = stored(format, adamw)
    train(model, optimizer, 2)
    twin, moments = handle.export(), optimizer.state[model[3].weight]["exp_avg"].clone()
    handle.remove()
    assert same(model, twin)
    assert type(optimizer.state[model[3].weight]["exp_avg"]) is torch.Tensor
    assert torch.equal(optimizer.state[model[3].weight]["exp_avg"], moments)
    before = numbers(model)["3.weight"]
    train(model, optimizer, 1)
    assert bool((model[3].weight != before).float().mean() > 0.5)


@pytest.mark.parametrize("make", [sgd, adamw], ids=["SGD", "AdamW"])
def test_a_model_in_bfloat16_may_change_while_it_is_trained(make: Any) -> None:
    model = network().to(torch.bfloat16)
    optimizer = make(model.parameters())
    part = "momentum_buffer" if make is sgd else "exp_avg"
    train(model, optimizer, 2)
    assert optimizer.state[model[3].weight][part].dtype == torch.bfloat16
    handle = lograd.low_precision_weights(model, "int8", optimizer=optimizer)
    train(model, optimizer, 2)
    assert optimizer.state[model[3].weight][part].dtype == torch.float32
    handle.remove()
    assert model[3].weight.dtype == torch.bfloat16
    assert optimizer.state[model[3].weight][part].dtype == torch.bfloat16
    assert type(optimizer.state[model[3].weight][part]) is torch.Tensor
    train(model, optimizer, 2)


def test_hooks_and_attributes_of_parameters_stay() -> None:
    model = network()
    weight, seen = model[3].weight, []
    weight.no_decay = True
    hook = weight.register_hook(lambda gradient: 2 * gradient)
    later = weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter is weight))
    twin = network()
    for each in (model, twin):
        each(batch()[0]).sum().backward()
    expected = 2 * twin[3].weight.grad
    assert torch.equal(weight.grad, expected)
    handle = lograd.low_precision_weights(model, "int8")
    weight.group = "slow"
    twin = handle.export()
    for step in range(2):
        for each in (model, twin):
            each.zero_grad()
            each(batch()[0]).sum().backward()
        assert torch.equal(weight.grad, 2 * twin[3].weight.grad)
        assert seen == [True] * (step + 2)
        handle.remove()  # the hooks stay with plain parameters, too
    assert (weight.no_decay, weight.group) == (True, "slow")
    assert not hasattr(weight, "codes")
    hook.remove()
    later.remove()
    model.zero_grad()
    model(batch()[0]).sum().backward()
    assert torch.equal(weight.grad, twin[3].weight.grad)
    assert len(seen) == 3


def test_an_error_in_the_block_of_a_handle_is_the_one_that_is_raised() -> None:
    model = network()
    handle = lograd.low_precision_weights(model, "int8")
    y = model(batch()[0])
    with pytest.raises(KeyError, match="mine"), handle:
        raise KeyError("mine")
    assert isinstance(model[3].weight, LowPrecisionTensor)  # y holds it
    del y
    handle.remove()
    assert type(model[3].weight) is nn.Parameter


def test_a_removed_handle_has_no_weights() -> None:
    model, optimizer, handle = stored("int8")
    train(model, optimizer, 2)
    state = handle.state_dict()
    handle.remove()
    assert (handle.steps, handle.counters().weights) == (2, 0)
    with pytest.raises(InvalidValue, match="none of the weights"):
        handle.bind(optimizer)
    with pytest.raises(InvalidValue, match="a part of the state alone"):
        handle.load_state_dict(state)


def test_only_rows_that_are_written_count() -> None:
    model = network()
    handle = lograd.low_precision_weights(model, "int8")
    with torch.no_grad():
        model[3].weight[2:4].mul_(0.9)
    assert handle.counters().elements == 2 * 512


def test_gradients_and_frozen_weights_stay() -> None:
    model = network()
    x, _ = batch()
    model[0].weight.requires_grad_(False)
    model(x).sum().backward()
    gradient = model[3].weight.grad.clone()
    handle = lograd.low_precision_weights(model, "int8")
    assert torch.equal(model[3].weight.grad, gradient)
    assert not model[0].weight.requires_grad
    handle.remove()
    assert torch.equal(model[3].weight.grad, gradient)
    assert not model[0].weight.requires_grad


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.out.weight = self.table.weight

    model = Tied()
    handle = lograd.low_precision_weights(model, "int8")
    assert model.out.weight is model.table.weight
    assert handle.counters().weights == 160
    plain = handle.export()
    assert plain.out.weight is plain.table.weight is not model.out.weight


def test_counters_and_explanation() -> None:
    model, optimizer, handle = stored("int8")
    assert repr(handle) == "WeightsHandle(3 weights of Sequential, int8, 0 steps)"
    train(model, optimizer, 3)
    counts = handle.counters()
    assert counts.steps == 3
    assert counts.weights == 72 + 512 * 32 + 320
    assert counts.elements == 3 * counts.weights
    assert counts.lost == 0
    assert counts.bytes == counts.weights + 4 * 50
    assert counts.float_bytes == 4 * counts.weights
    text = handle.explain()
    assert text.layers["3.weight"] == "int8, 32 x 512, 32 spacings"
    assert text.layers["0.bias"] == "left alone: a vector"
    assert "16,776 weights in 16,976 bytes, 1.01 each (25% of before)." in text.summary
    assert "SGD: at most 4,194,304 weights in float32 at a time, rounded once a step." in text.summary
    handle.remove()
    assert repr(handle).endswith("removed, 3 steps)")


def test_kept_parameters() -> None:
    model = network()
    handle = lograd.low_precision_weights(model, "int8", keep=("0", "5.*"))
    assert list(handle.weights) == ["3.weight"]
    assert handle.kept["0.weight"] == handle.kept["5.weight"] == "kept: asked for"
    assert type(model[0].weight) is nn.Parameter
    rnn = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4), nn.Linear(4, 4).double())
    handle = lograd.low_precision_weights(rnn, "int8")
    assert list(handle.weights) == ["0.weight"]
    assert "weak reference" in handle.kept["1.weight_ih_l0"]
    assert handle.kept["2.weight"] == "left alone: float64"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("make", [sgd, adamw], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_resumed_run_has_the_same_bits(format: str, make: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model, optimizer, handle = stored(format, make, dtype=dtype)
    train(model, optimizer, 3)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "handle": handle.state_dict()}
    torch.save(saved, tmp_path / "run.pt")
    train(model, optimizer, 3, first=3)

    loaded = torch.load(tmp_path / "run.pt", weights_only=True)
    other = network(seed=1).to(dtype)
    beside = make(other.parameters())
    resumed = lograd.low_precision_weights(other, format, optimizer=beside, seed=9)
    other.load_state_dict(loaded["model"])
    beside.load_state_dict(loaded["optimizer"])
    resumed.load_state_dict(loaded["handle"])
    assert resumed.steps == 3
    train(other, beside, 3, first=3)
    assert same(model, other)
    assert resumed.counters() == handle.counters()


def test_safetensors_takes_both_states_without_pickle(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer, handle = stored("e4m3fn")
    train(model, optimizer, 2)
    safetensors.save_file(handle.state_dict(), tmp_path / "codes.safetensors")
    safetensors.save_file(handle.plain_state_dict(), tmp_path / "plain.safetensors")
    other, _, resumed = stored("e4m3fn", seed=5)
    resumed.load_state_dict(safetensors.load_file(tmp_path / "codes.safetensors"))
    plain = network(seed=3)
    plain.load_state_dict(safetensors.load_file(tmp_path / "plain.safetensors"))
    assert all(torch.equal(other[place].weight.codes, model[place].weight.codes) for place in (0, 3, 5))
    assert same(plain, model)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("codes", "plain")]
    assert sizes[0] < 0.35 * sizes[1]


def test_plain_states_are_plain_and_load_back_exactly() -> None:
    model, optimizer, handle = stored("int8")
    plain = handle.plain_state_dict()
    assert all(type(one) is torch.Tensor and one.dtype == torch.float32 for one in plain.values())
    file = io.BytesIO()
    torch.save(plain, file)
    before = numbers(model)
    model.load_state_dict(plain)
    assert all(torch.equal(value, numbers(model)[name]) for name, value in before.items())
    train(model, optimizer, 1)
    exported = handle.export()
    assert all(type(one) is nn.Parameter for one in exported.parameters())
    assert torch.equal(exported(batch()[0]), model(batch()[0]))


def _without(state: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != name}


BROKEN = {
    "no dict": (lambda state: [], "the state must be a dict of tensors"),
    "a part is missing": (
        lambda state: _without(state, "3.weight.codes"),
        "'3.weight.codes' is a part of the weights alone",
    ),
    "one too many": (lambda state: state | {"3.weight.code": state["3.weight.codes"]}, "Did you mean '3.weight.codes'"),
    "shape": (lambda state: state | {"3.weight.codes": state["3.weight.codes"][:3]}, "must be torch.uint8 of shape"),
    "type": (lambda state: state | {"3.weight.spacing": torch.ones(32, 1).double()}, "must be torch.float32"),
    "format": (lambda state: state | {"3.weight.format": state["3.weight.format"].roll(1)}, "must be int8; got '8int'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_state_that_does_not_fit_is_refused_whole(what: str) -> None:
    change, said = BROKEN[what]
    model, optimizer, handle = stored("int8")
    state = handle.state_dict()
    train(model, optimizer, 1)
    before = numbers(model)
    with pytest.raises((InvalidValue, InvalidType)) as caught:
        handle.load_state_dict(change(state))
    assert said in str(caught.value)
    assert all(torch.equal(value, numbers(model)[name]) for name, value in before.items())


def _nan() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[3].weight[2, 2] = float("nan")
    return model


def _low() -> nn.Module:
    model = network()
    lograd.low_precision_weights(model, "int8")
    return model


REFUSED = {
    "no model": (lambda: (3, "int8", {}), InvalidType, "model must be a torch.nn.Module"),
    "seed": (lambda: (network(), "int8", {"seed": 1.5}), InvalidType, "seed must be a whole number; got 1.5."),
    "keep": (lambda: (network(), "int8", {"keep": "3.wight"}), InvalidValue, "Did you mean '3.weight'?"),
    "keep, type": (lambda: (network(), "int8", {"keep": [3]}), InvalidType, "keep must be names"),
    "NaN": (lambda: (_nan(), "int8", {}), InvalidValue, "'3.weight' holds NaN or infinity"),
    "twice": (lambda: (_low(), "int8", {}), InvalidValue, "call remove() of that handle first"),
    "nothing": (lambda: (nn.BatchNorm2d(3), "int8", {}), InvalidValue, "'weight' is left alone: a vector."),
    "no optimizer": (lambda: (network(), "int8", {"optimizer": 3}), InvalidType, "optimizer must be a torch Optimizer"),
    "foreign": (
        lambda: (network(), "int8", {"optimizer": sgd(network().parameters())}), InvalidValue,
        "the optimizer has none of the weights",
    ),
    "LBFGS": (
        lambda: ((model := network()), "int8", {"optimizer": torch.optim.LBFGS(model.parameters())}), InvalidValue,
        "LBFGS moves the weights several times in one step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_bad_arguments_are_refused_in_one_sentence_and_change_nothing(what: str) -> None:
    make, kind, said = REFUSED[what]
    model, format, options = make()
    before = [type(p) for p in model.parameters()] if isinstance(model, nn.Module) else []
    with pytest.raises(kind) as caught:
        lograd.low_precision_weights(model, format, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    if isinstance(model, nn.Module):
        assert [type(p) for p in model.parameters()] == before


def test_a_weight_that_a_graph_holds_is_not_swapped_under_it() -> None:
    model, optimizer, handle = stored("int8")
    y = model(batch()[0])
    with pytest.raises(InvalidValue, match="is held by a graph"):
        handle.remove()
    assert all(isinstance(each, LowPrecisionTensor) for each in handle.weights.values())
    y.sum().backward()
    optimizer.step()
    assert handle.steps == 1
    del y
    handle.remove()
    assert type(model[3].weight) is nn.Parameter


def test_a_second_optimizer_and_the_same_one_twice() -> None:
    model = network()
    first, second = sgd(model[:4].parameters()), adamw(model[4:].parameters())
    handle = lograd.low_precision_weights(model, "int8", optimizer=first)
    handle.bind(first)
    handle.bind(second)
    model(batch()[0]).square().sum().backward()
    first.step()
    second.step()
    assert all(weight.rounded == weight.numel() for weight in handle.weights.values())
    assert handle.steps == 2
