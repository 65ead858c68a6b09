"""Operations of single operators: counted by hand, and compared with PyTorch's own counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import zoo
from networks import vector_batches
from profiled import parts_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lograd
from lograd.measure.work import operations

aten = torch.ops.aten


RECURRENT = {
    "LSTM, two layers, both directions": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "LSTM with a projection": lambda: nn.LSTM(6, 5, proj_size=3),
    "GRU": lambda: nn.GRU(6, 5, 2),
    "RNN": lambda: nn.RNN(6, 5),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = RECURRENT[kind]()
            self.head = nn.LazyLinear(3)

        def forward(self, x):
            return self.head(self.recurrent(x)[0])

    model = Model()
    batch = (torch.randn(7, 4, 6, requires_grad=True), torch.randn(7, 4, 3))
    model(batch[0])
    work = lograd.profile(model, [batch], F.mse_loss).work
    (part,) = work.untreated
    # At each step and sample, every weight meets one vector: that of the step before, too.
    weights = sum(weight.numel() for name, weight in model.recurrent.named_parameters() if "weight" in name)
    assert part.kind == type(model.recurrent).__name__
    assert part.forward == 2 * 7 * 4 * weights
    # Kernels may skip the gradient with respect to the initial state, at one of the steps.
    assert 2 * part.forward * 6 / 7 <= part.backward <= 2 * part.forward


def test_cells_and_bilinear_layers():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(6, 5)
            self.pair = nn.Bilinear(5, 5, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            h = self.cell(x)
            return self.head(self.pair(h, h))

    parts = parts_of(lograd.profile(Model(), vector_batches(1), F.cross_entropy).work)
    assert parts["cell"].forward == 2 * 16 * (15 * 6 + 15 * 5)
    assert parts["pair"].forward == 2 * 16 * 4 * 5 * 5
    assert parts["pair"].backward == 3 * parts["pair"].forward


CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "stride and dilation": lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2),
    "grouped transposed": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_functional_convolutions_count_as_layers_do(kind):
    """The same convolution as a layer, by its own formula, and as a bare parameter, by that of the operators."""
    layer = CONVOLUTIONS[kind]()
    function = F.conv_transpose2d if isinstance(layer, nn.ConvTranspose2d) else F.conv2d
    options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = layer.weight
            self.first = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return function(self.first(x), self.weight, **options)

    x = torch.randn(2, 4, 9, 9)
    bare = lograd.profile(Bare(), [(x, 0.0)], lambda y, _: y.square().mean()).work
    seen = lograd.profile(nn.Sequential(nn.Conv2d(4, 4, 1), layer), [(x, 0.0)], lambda y, _: y.square().mean())
    (part,) = bare.untreated
    assert part.name == "weight"
    assert part.forward == seen["1"].flops_forward
    assert part.backward == seen["1"].flops_input + seen["1"].flops_weight
    assert (bare.forward, bare.backward) == (seen.work.forward, seen.work.backward)


def test_attention_by_hand():
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    scores = 2 * 2 * 3 * 5 * 7 * 8
    operator = aten._scaled_dot_product_flash_attention_for_cpu
    assert operations(operator.default, (query, key, value), {}, None) == 2 * scores
    # The scores again, and the gradients of values, weights, queries and keys: five products of the same size.
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    assert operations(backward.default, (query, query, key, value), {}, None) == 5 * scores


def test_matrix_products_by_hand():
    a, b, v = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
    batched = (torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert operations(aten.mm.default, (a, b), {}, None) == 2 * 3 * 4 * 5
    assert operations(aten.addmm.default, (torch.zeros(5), a, b), {}, None) == 2 * 3 * 4 * 5
    assert operations(aten.bmm.default, batched, {}, None) == 2 * 2 * 3 * 4 * 5
    assert operations(aten.baddbmm.default, (torch.zeros(2, 3, 5), *batched), {}, None) == 2 * 2 * 3 * 4 * 5
    assert operations(aten.addbmm.default, (torch.zeros(3, 5), *batched), {}, None) == 2 * 2 * 3 * 4 * 5
    assert operations(aten.mv.default, (a, v), {}, None) == 2 * 3 * 4
    assert operations(aten.addmv.default, (torch.zeros(3), a, v), {}, None) == 2 * 3 * 4
    assert operations(aten.dot.default, (v, v), {}, None) == 2 * 4
    assert operations(aten.add.Tensor, (a, a), {}, None) == 0


@pytest.mark.parametrize("name", ["resnet18", "bert", "gpt2", "vit"])
def test_whole_models_as_torch_counts_them(name):
    """Without grouped convolutions and CPU attention kernels, torch's own counter knows every product."""
    model, inputs = zoo.build(name)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        work = lograd.profile(model, [inputs], zoo.loss_of).work
        with FlopCounterMode(display=False) as counter:
            loss = zoo.loss_of(model, inputs)
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
    assert work.forward == forward
    assert work.backward == counter.get_total_flops()
