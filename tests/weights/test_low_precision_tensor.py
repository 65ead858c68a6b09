"""A parameter in low precision is a tensor: operators see its numbers, and what they write is rounded back."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from low_precision import network
from torch import Tensor, nn

import lograd
from lograd.weights import LowPrecisionTensor
from lograd.weights.coding import check_weight_format

FORMATS = ("int8", "e4m3fn", "bfloat16")


def low(values: Tensor, format: str) -> nn.Parameter:
    return nn.Parameter(LowPrecisionTensor.of(values, check_weight_format(format), 0))


def parameter(*shape: int, format: str = "int8", seed: int = 0) -> nn.Parameter:
    return low(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), format)


CASES = {
    "linear": ((8, 6), (5, 6), lambda x, w: F.linear(x, w, torch.ones(8))),
    "linear of sequences": ((8, 6), (2, 3, 6), F.linear),
    "matmul": ((8, 6), (5, 8), lambda x, w: x @ w),
    "convolution": ((4, 3, 3, 3), (2, 3, 6, 6), lambda x, w: F.conv2d(x, w, padding=1)),
    "transposed": ((3, 4, 3, 3), (2, 3, 6, 6), F.conv_transpose2d),
    "elementwise": ((8, 6), (8, 6), lambda x, w: x * w.abs() + w.sum(0)),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_operators_and_their_gradients_are_those_of_the_decoded_numbers(case: str, format: str) -> None:
    shape, of_x, function = CASES[case]
    weight, x = parameter(*shape, format=format), torch.randn(of_x, requires_grad=True)
    plain, x_plain = weight.decode().requires_grad_(), x.detach().clone().requires_grad_()
    y, expected = function(x, weight), function(x_plain, plain)
    assert type(y) is Tensor
    assert torch.equal(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(x.grad, x_plain.grad)
    assert type(weight.grad) is Tensor
    assert torch.equal(weight.grad, plain.grad)


def test_a_product_saves_codes_for_its_backward() -> None:
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    model = network()
    lograd.low_precision_weights(model, "int8")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(torch.randn(4, 1, 8, 8)).sum().backward()
    weights = [x for x in kept if x.shape in ((8, 1, 3, 3), (512, 32), (32, 10), (32, 512), (10, 32))]
    assert len(weights) == 3
    assert all(isinstance(x, LowPrecisionTensor) for x in weights)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_an_embedding_are_decoded_alone(format: str) -> None:
    table, index = parameter(50, 16, format=format), torch.randint(50, (3, 4))
    y = F.embedding(index, table)
    assert torch.equal(y, table.decode()[index])
    y.sum().backward()
    assert torch.equal(table.grad.sum(1), 16.0 * torch.bincount(index.flatten(), minlength=50))


@pytest.mark.parametrize("format", FORMATS)
def test_writing_in_place_writes_codes(format: str) -> None:
    weight = parameter(8, 6, format=format)
    with torch.no_grad():
        weight[2].zero_()
        assert not weight.decode()[2].any()
        assert bool(weight.decode()[3].any())
        weight[3:5].mul_(0.0)
        assert not weight.decode()[2:5].any()
        weight.fill_(0.5)
        assert float((weight - 0.5).abs().max()) < 0.5 * 2**-10
        weight.normal_()
        assert 0.5 < float(weight.std()) < 1.5
        version = weight._version
        weight.add_(1.0)
        assert weight._version > version
        torch._foreach_mul_([weight, torch.ones(2)], 2.0)
    assert isinstance(weight, LowPrecisionTensor)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_and_turned_views_write_to_the_weight_whatever_its_layout(format: str) -> None:
    values = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).t()
    weight = low(values, format)
    before, version = weight.decode(), weight._version
    with torch.no_grad():
        weight[3].zero_()
        weight[5:7].neg_()
        weight.t().mul_(2.0)
        weight.view_as(weight)[:1].zero_()
    before[[0, 3]] = 0.0
    before[5:7] *= -1.0
    assert weight._version > version
    # The largest weight of an integer row may grow beyond its range, and the row is rounded anew.
    assert float((weight.decode() - 2 * before).abs().max()) <= float(weight.spacing.max() if format == "int8" else 0)


PARTS = {
    "column": lambda x: x[:, 1],
    "columns": lambda x: x[:, 2:4],
    "flat": lambda x: x.view(-1)[7:20],
    "chunk": lambda x: x.chunk(3)[1],
    "chunk of columns": lambda x: x.chunk(2, 1)[1],
    "unbound": lambda x: x.unbind(1)[3],
    "column by transposing": lambda x: x.t()[3],
    "detached": lambda x: x[:, 1].detach(),
    "diagonal": lambda x: x.diagonal(),
    "of a view": lambda x: x[1:5][:, 2:][1],
    "element": lambda x: x[0, 0],
}


@pytest.mark.parametrize("name", PARTS)
def test_other_views_are_read_and_refuse_to_be_written(name: str) -> None:
    weight, view = parameter(8, 6), PARTS[name]
    before, part = weight.decode(), view(weight.detach())
    assert torch.equal(part.decode(), view(before))
    assert torch.equal(part * 2, view(before) * 2)
    with pytest.raises(lograd.InvalidValue, match="can only be read; write to whole rows or to all of the weight"):
        part.zero_()
    assert torch.equal(weight.decode(), before)
    numbers = parameter(8, 6, format="bfloat16")
    with torch.no_grad():  # each is on its own: all views can be written
        view(numbers).zero_()
    assert int((numbers.decode() == 0).sum()) == view(before).numel()


def test_initialisers_of_torch_reach_the_weight() -> None:
    weight = parameter(8, 6)
    nn.init.orthogonal_(weight)
    error = weight.decode().t() @ weight.decode() - torch.eye(6)
    assert float(error.abs().max()) < 0.03
    nn.init.eye_(weight)
    assert torch.equal(weight.decode().argmax(0), torch.arange(6))


def test_parts_of_a_weight_have_gradients_and_copies() -> None:
    weight, x = parameter(8, 6), torch.randn(3, 4)
    plain = weight.decode().requires_grad_()
    F.linear(x, weight[:, 1:5]).square().sum().backward()
    F.linear(x, plain[:, 1:5]).square().sum().backward()
    assert torch.equal(weight.grad, plain.grad)
    part = weight.detach()[:, 0]
    for twin in (part.clone(), copy.deepcopy(part), pickle.loads(pickle.dumps(part)), part.double()):
        assert type(twin) is Tensor
        assert torch.equal(twin.float(), weight.decode()[:, 0])


def test_setting_elements_obeys_autograd() -> None:
    weight, x = parameter(4, 3), torch.randn(2, 3, requires_grad=True)
    y = F.linear(x, weight).sum()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        weight[0] = 1.0
    with torch.no_grad():
        weight[0] = 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_models_round_only_what_changes(format: str, dtype: torch.dtype) -> None:
    weight = low(torch.randn(64, 64) / 16, format).detach().to(dtype)
    codes, spacing = weight.codes.clone(), weight.spacing.clone()
    weight.mul_(torch.ones(64, 64, dtype=dtype))
    weight.addmm_(torch.zeros(64, 2, dtype=dtype), torch.zeros(2, 64, dtype=dtype))
    torch._foreach_add_([weight, torch.ones(3, dtype=dtype)], 0.0)
    assert torch.equal(weight.codes, codes)
    values = weight.decode()
    assert values.dtype == dtype
    weight.copy_(values)
    assert torch.equal(weight.spacing, spacing)
    assert torch.equal(weight.decode(), values)  # not the codes: float16 does not hold the smallest bfloat16


def test_copying_keeps_codes_where_it_can() -> None:
    weight, other = parameter(8, 6, seed=1), parameter(8, 6, seed=2)
    with torch.no_grad():
        weight.copy_(other)
        assert torch.equal(weight.codes, other.codes)
        assert torch.equal(weight.spacing, other.spacing)
        weight.write_(1.2 * weight.decode())
        codes, spacing = weight.codes.clone(), weight.spacing.clone()
        weight.copy_(weight.decode())  # numbers that it has: nothing moves
        assert torch.equal(weight.codes, codes)
        assert torch.equal(weight.spacing, spacing)
        fresh = torch.randn(8, 6)
        weight.copy_(fresh)
        assert torch.equal(weight.decode(), low(fresh, "int8").decode())


@pytest.mark.parametrize("format", FORMATS)
def test_copies_and_pickles_are_parameters_of_their_own(format: str) -> None:
    model = nn.Linear(6, 8)
    lograd.low_precision_weights(model, format, seed=4)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["weight"]
    for twin in (copy.deepcopy(model).weight, pickle.loads(pickle.dumps(model)).weight, loaded):
        assert isinstance(twin, LowPrecisionTensor)
        assert torch.equal(twin.decode(), model.weight.decode())
        assert torch.equal(twin.ledger, model.weight.ledger)
        with torch.no_grad():
            twin.zero_()
        assert bool(model.weight.decode().any())
    assert isinstance(copy.deepcopy(model).weight, nn.Parameter)
    assert copy.deepcopy(model).weight.requires_grad


def test_conversions_keep_codes() -> None:
    model = network()
    lograd.low_precision_weights(model, "int8")
    weight, before = model[0].weight, model[0].weight.decode()
    model.to(memory_format=torch.channels_last)
    assert model[0].weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight.decode(), before)
    model.to(torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    assert model[0].weight.codes.dtype == torch.uint8
    assert torch.equal(model[0].weight.decode(), before.bfloat16())
    model.float()
    assert torch.equal(model[0].weight.decode(), before)


def test_numbers_can_be_read() -> None:
    weight = parameter(3, 2)
    assert np.array_equal(weight.detach().numpy(), weight.decode().numpy())
    assert weight.tolist() == weight.decode().tolist()
    assert repr(weight) == "LowPrecisionTensor(int8, shape=(3, 2), dtype=torch.float32)"
    assert not (weight.detach() - weight.decode()).any()
    assert torch.equal(torch.cat([weight.flatten()]), weight.decode().flatten())
