"""Layers of lograd.integer: values near those of torch's layers, the same state_dict, and what they refuse."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lograd
from lograd import InvalidValue, integer
from lograd.integer import functional

PAIRS = {
    "linear": (nn.Linear, integer.Linear, (96, 40), {}, (30, 96)),
    "linear of a sequence": (nn.Linear, integer.Linear, (96, 40), {"bias": False}, (3, 10, 96)),
    "conv1d": (nn.Conv1d, integer.Conv1d, (16, 24, 5), {"padding": "same"}, (4, 16, 20)),
    "conv2d": (nn.Conv2d, integer.Conv2d, (16, 24, 3), {"stride": 2, "padding": 1}, (4, 16, 9, 9)),
    "padded": (nn.Conv2d, integer.Conv2d, (16, 9, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 16, 6, 6)),
}  # fmt: skip


def cosine(a, b):
    return float(F.cosine_similarity(a.detach().flatten(), b.detach().flatten(), 0))


@pytest.mark.parametrize("kind", PAIRS)
def test_a_layer_of_eight_bits_is_near_that_of_torch(kind):
    torch.manual_seed(0)
    plain_class, class_, arguments, options, shape = PAIRS[kind]
    plain, layer = plain_class(*arguments, **options), class_(*arguments, **options, bits=8)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    layer.load_state_dict(plain.state_dict())
    found = []
    for one in (plain, layer):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = one(x)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(2)))
        found.append([y.detach(), x.grad, *(parameter.grad for parameter in one.parameters())])
    assert all(cosine(a, b) > 0.999 for a, b in zip(*found, strict=True))
    assert all(a.stride() == b.stride() for a, b in zip(*found, strict=True))
    assert "bits=8" in repr(layer)
    if lograd.native.status().available:
        assert layer.explain() == "Y: integer products; dX: integer products; dW: integer products"


def test_fewer_bits_are_less_exact():
    torch.manual_seed(0)
    x, weight = torch.randn(50, 96), torch.randn(40, 96)
    errors = [float((functional.linear(x, weight, bits=bits) - x @ weight.t()).norm()) for bits in (8, 6, 4, 2)]
    assert errors == sorted(errors)
    assert errors[1] > 3 * errors[0]


def test_functions_are_pure_and_take_a_seed():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 16, 9, 9), torch.randn(24, 16, 3, 3, requires_grad=True), torch.randn(24)

    def gradient(seed):
        y = functional.conv2d(x, weight, bias, 2, 1, bits=4, seed=seed)
        return torch.autograd.grad(y.square().sum(), weight)[0]

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))
    sequence = functional.conv1d(x[:, :, 0], weight[:, :, 0], bits="int8-full")
    assert cosine(sequence, F.conv1d(x[:, :, 0], weight[:, :, 0])) > 0.999


def test_the_mean_of_gradients_is_that_of_the_rounded_operands():
    torch.manual_seed(0)
    x, weight, g = torch.randn(20, 72), torch.randn(8, 72), torch.randn(20, 8)
    found = []
    for seed in range(400):
        operand = x.clone().requires_grad_()
        functional.linear(operand, weight, bits=4, seed=seed).backward(g)
        found.append(operand.grad)
    found = torch.stack(found)
    rounded = lograd.ops.pack_integers(weight, 4, per="channel", symmetric=True).decode()
    error = (found.mean(0) - g @ rounded) / (found.std(0) / 20)
    assert float(error.abs().max()) < 5.5


def test_copies_and_pickles_begin_anew():
    layer = integer.Linear(96, 8, bits=6)
    layer(torch.randn(4, 96)).sum().backward()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other.weight, layer.weight)
        assert other(torch.randn(4, 96)).shape == (4, 8)
    assert layer.double()(torch.randn(4, 96, dtype=torch.float64)).dtype == torch.float64


def test_a_layer_without_kernels_says_why_and_trains():
    layer = integer.Conv2d(8, 8, 3, groups=8)
    layer(torch.randn(2, 8, 5, 5)).sum().backward()
    assert layer.weight.grad.isfinite().all()
    assert layer.explain().startswith("dense products: depthwise")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (9, "bits must be a whole number from 2 to 8"),
        ("fp6", "integer products take operands that are levels, as in 'int6-full'"),
        ("int6-ful", "Did you mean"),
    ],
)
def test_what_is_no_width_is_refused(bits, words):
    with pytest.raises(InvalidValue, match=words):
        integer.Linear(96, 8, bits=bits)


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
def test_compiled_modules_give_the_bits_of_eager_ones():
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(
            integer.Conv2d(16, 16, 3, bits=5), nn.ReLU(), nn.Flatten(), integer.Linear(256, 8, bits=5)
        )
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for _ in range(2):
            call(torch.randn(3, 16, 6, 6, generator=torch.Generator().manual_seed(0))).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
