"""Exported models and evaluations of both forms."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
from states import same
from torch import Tensor, nn

import lograd


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.turned = nn.ConvTranspose2d(16, 8, 2, 2)
        self.fc = nn.Linear(8 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(self.turned(self.conv(x).relu()).flatten(1))
        return result


def trained(recipe: str, model: nn.Module | None = None, backend: str = "dense") -> tuple[lograd.Handle, nn.Module]:
    torch.manual_seed(0)
    model = model or Net()
    handle = lograd.attach(model, lograd.Plan.uniform(recipe, keep=()), backend=backend)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([*model.parameters(), *handle.parameters()], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, 4, 4)).square().mean().backward()
        optimizer.step()
        handle.step()
    return handle, model


@pytest.mark.parametrize("recipe", ["int4-full", "int8-full", "int4wa-clips", "int4wa-lsq+prune85", "mxfp4-full"])
def test_an_exported_model_multiplies_the_weights_that_training_did(recipe: str) -> None:
    handle, model = trained(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = handle.export()
    assert type(found.model.conv) is nn.Conv2d
    assert not found.left_alone
    assert not found.model.training
    assert found.model.state_dict().keys() == model.state_dict().keys()
    # The forward of the plan with activations as they are: only the weights are rounded.
    for layer in handle.layers.values():
        layer.activations.set_ready(False)
    x = torch.randn(2, 8, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(found.model(x), model(x))
    for name, coded in found.weights.items():
        assert torch.equal(coded.decode(), found.model.get_submodule(name).weight)  # type: ignore[arg-type]
    for layer in handle.layers.values():
        layer.activations.set_ready(True)


def test_a_plan_of_the_backward_exports_the_model_as_it_is() -> None:
    handle, model = trained("prune85+fp6")
    found = handle.export()
    assert found.weights == {} == found.activations
    assert all(torch.equal(one, two) for one, two in zip(found.model.parameters(), model.parameters(), strict=True))


def test_nothing_changes_by_an_export() -> None:
    handle, model = trained("int4-full")
    before, state = copy.deepcopy(handle.state_dict()), {k: v.clone() for k, v in model.state_dict().items()}
    handle.export()
    assert same(handle.state_dict(), before)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_computed_weights_are_left_alone_with_the_reason() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    handle = lograd.attach(model, lograd.Plan.uniform("int4-full", keep=()))
    model(torch.randn(4, 8)).sum().backward()
    assert handle.export().left_alone == {"0": "its weight is computed from other parameters"}


def test_a_shared_weight_is_rounded_for_the_layer_alone() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.embedding(x))
            return result

    torch.manual_seed(0)
    model = Tied()
    handle = lograd.attach(model, lograd.Plan.uniform("int4-full", keep=()))
    model(torch.arange(16)).sum().backward()
    found = handle.export()
    assert torch.equal(found.model.embedding.weight, model.embedding.weight)
    assert torch.equal(found.weights["head"].decode(), found.model.head.weight)
    assert not torch.equal(found.model.head.weight, model.head.weight)


def test_what_a_plan_does_beside_layers_stays_behind() -> None:
    model = Net()
    plan = replace(lograd.Plan.uniform("int8-full", keep=()), attention=8, saved=8, normalization=True)
    handle = lograd.attach(model, plan)
    model(torch.randn(4, 8, 4, 4)).sum().backward()
    found = handle.export().model
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in found.modules())
    assert pickle.loads(pickle.dumps(found)).state_dict().keys() == model.state_dict().keys()
