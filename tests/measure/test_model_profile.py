"""Profiles of several ranks merge into one."""

from __future__ import annotations

import pytest
import torch
from networks import mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.errors import InvalidType, InvalidValue


def exact_model():
    """Whole numbers everywhere, so that no sum depends on how a batch is cut."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) % (3 + index) - 1.0)
    return model


def test_merged_ranks_equal_one_run_over_both_halves():
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(-4, 5, (8, 4), generator=generator).float() for _ in range(3)]

    def run(batches):
        return lograd.profile(exact_model(), batches, lambda model, x: (model(x) ** 2).sum())

    halves = [run([x[:4] for x in batches]), run([x[4:] for x in batches])]
    merged, whole = lograd.Profile.merge(halves), run(batches)
    assert merged.steps == whole.steps == 3
    for name, layer in whole.layers.items():
        assert merged[name].records == layer.records
        assert merged[name].flops_weight == layer.flops_weight
        assert merged[name].sample.size == layer.sample.size / 2
        assert merged[name].weight_records[0].elements == 2 * layer.weight_records[0].elements
    assert lograd.Profile.merge([whole]) == whole


def test_profiles_that_do_not_match_are_not_merged():
    one = lograd.profile(mlp(), vector_batches(2), cross_entropy)
    with pytest.raises(InvalidType, match="at least one Profile"):
        lograd.Profile.merge([])
    with pytest.raises(InvalidValue, match=r"layer '0' it has 1 observed step, and profile 1 has 2"):
        lograd.Profile.merge([one, lograd.profile(mlp(), vector_batches(1), cross_entropy)])
    fewer = lograd.profile(mlp(), vector_batches(2), cross_entropy, filter_fn=lambda module, name: name == "0")
    with pytest.raises(InvalidValue, match="layer '2' is only in profile 1"):
        lograd.Profile.merge([one, fewer])
    narrow = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3))
    other = lograd.profile(narrow, vector_batches(2), cross_entropy)
    with pytest.raises(InvalidValue, match=r"layer '0' is a Linear with a weight of shape \(3, 6\) there"):
        lograd.Profile.merge([one, other])
