"""Settings and parts of a pipeline that need no second process."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from experiments.lab import Config, train
from experiments.lab.pipeline import Pipeline, check_plan, edge_tensors
from experiments.models import CifarResNet, cut
from lograd import InvalidValue, Plan
from lograd.treatments import Prune


def charlm(**changes):
    return Config("charlm", "text.txt", **({"batch": 8, "pipeline": "1f1b"} | changes))


def test_settings_have_usual_values_and_an_exact_inverse():
    config = charlm()
    assert (config.microbatches, config.edges, config.activations) == (4, "prune90", "none")
    assert Config.from_json(config.to_json()) == config
    assert config.treatment == "dense, edges prune90"
    assert charlm(recipe="fp6", activations="int8-nearest").treatment == "fp6, edges prune90 and int8-nearest"
    plain = charlm(pipeline=None)
    assert not {"pipeline", "microbatches", "edges", "activations"} & plain.to_json().keys()
    assert charlm(ranks=3, batch=8).ranks == 3, "the batch is that of each rank, and no multiple of their number"


REFUSED = {
    "schedule": ({"pipeline": "1f1d"}, "pipeline must be one of 1f1b, gpipe"),
    "no pipeline": ({"pipeline": None, "edges": "fp8"}, "edges belongs to a pipeline; give pipeline as well"),
    "microbatches": ({"microbatches": 3}, "batch must be a multiple of microbatches, 3"),
    "no microbatch": ({"microbatches": 0}, "microbatches must be a whole number from 1"),
    "few": ({"ranks": 8}, "microbatches must be at least 8, the number of stages, for 1f1b; got 4"),
    "edges": ({"edges": "prune9O"}, "prune9O"),
    "shared": ({"edges": "prune80-cosine"}, "cannot treat an edge"),
    "activations": ({"activations": "int8-nearst"}, "int8-nearst"),
    "fast": ({"fast": True}, "fast is not for a pipeline"),
    "guard": ({"guard": True, "recipe": "fp6"}, "guard is not for a pipeline"),
    "common": ({"common_statistics": True, "recipe": "fp6"}, "common_statistics is not for a pipeline"),
    "weights": ({"weights": "int8"}, "weights is not for a pipeline"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_words_that_a_pipeline_does_not_know_are_refused(name):
    changes, sentence = REFUSED[name]
    with pytest.raises(InvalidValue, match=sentence):
        charlm(**changes)


def test_one_process_is_told_to_start_several(data, tmp_path):
    config = Config("charlm", data["text"], batch=4, width=8, steps=2, pipeline="1f1b")
    with pytest.raises(InvalidValue, match="a stage on each rank, and this run has one; start it by torchrun"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_plans_that_need_more_than_a_stage_are_refused():
    for plan in (None, Plan.uniform("prune85+fp6"), Plan.uniform("int8")):
        check_plan(plan)
    with pytest.raises(InvalidValue, match="plans that treat gradients alone"):
        check_plan(Plan.uniform("int8-full"))
    with pytest.raises(InvalidValue, match="plans that treat gradients alone"):
        check_plan(Plan(saved=4))
    shared = Plan.uniform("prune85").every.of((Prune(0.85, allocation="cosine"),))
    with pytest.raises(InvalidValue, match="cannot share a sparsity out among the layers of all stages"):
        check_plan(Plan(every=shared))


def test_shapes_are_found_without_a_trace():
    """A pass in training mode would move the running means of BatchNorm, and draw random numbers."""
    model, inputs = CifarResNet(8, 10, 4).train(), torch.rand(2, 3, 8, 8)
    before, state = {name: one.clone() for name, one in model.state_dict().items()}, torch.get_rng_state()
    found = edge_tensors(model, cut(model, 2), inputs)
    assert [tuple(one.shape) for one in found] == [(2, 3, 8, 8), (2, 8, 4, 4), (2, 10)]
    assert [one.requires_grad for one in found] == [False, True, True]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    pairs = nn.Sequential(nn.LSTM(3, 3), nn.Linear(3, 3))
    with pytest.raises(InvalidValue, match="stage 0 of Sequential returns an object of type tuple"):
        edge_tensors(pairs, cut(pairs, 2), torch.rand(2, 4, 3))


@pytest.mark.parametrize(("own", "others", "found"), [(1.0, 0, 1.0), (1.0, 1, torch.inf), (torch.nan, 0, torch.nan)])
def test_a_gradient_that_is_not_finite_on_one_rank_is_seen_on_all(own, others, found):
    part = nn.Linear(1, 1, bias=False)
    part.weight.grad = torch.tensor([[own]])
    ranks = SimpleNamespace(largest=lambda number: max(number, others))
    Pipeline._share_overflow(SimpleNamespace(part=part, ranks=ranks))
    assert part.weight.grad.item() == pytest.approx(found, nan_ok=True)
