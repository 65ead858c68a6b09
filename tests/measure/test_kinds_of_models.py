"""`lograd.variance` on models that are compiled, checkpointed, tied, frozen in part, or of unusual layers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from networks import Conv1D, conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.utils.checkpoint import checkpoint

import lograd
from lograd.measure.values import VECTORS

FEW = {"steps": 3, "treated": 1, "repeats": 4}


def test_a_compiled_model_gives_the_numbers_of_the_plain_one():
    arguments = image_batches(3), lograd.Plan.uniform("int5-psq"), F.cross_entropy
    plain, compiled = conv_net(), torch.compile(conv_net(), backend="eager")
    assert lograd.variance(compiled, *arguments, **FEW) == lograd.variance(plain, *arguments, **FEW)


class Checkpointed(nn.Module):
    """Runs a model without gradients first, and again in the backward."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return checkpoint(self.model, x.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("recipe", ["int5-bhq", "int6-full"])
def test_a_forward_without_gradients_changes_nothing(recipe):
    """Treatments of the output keep their ranges and random numbers in it, so that the second forward is the first."""
    options = FEW | {"contributions": False}
    plan = lograd.Plan.uniform(recipe, keep=())
    plain = lograd.variance(mlp(), vector_batches(3), plan, F.cross_entropy, **options)
    with torch.no_grad():
        again = lograd.variance(mlp(), vector_batches(3), plan, F.cross_entropy, **options)
    twice = lograd.variance(Checkpointed(mlp()), vector_batches(3), plan, F.cross_entropy, **options)
    assert again == plain
    assert [replace(one, name="") for one in twice.tensors] == [replace(one, name="") for one in plain.tensors]


class Tied(nn.Module):
    """A weight that two modules share, in an embedding and in the last layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.relu(self.middle(self.embedding(tokens)))).flatten(0, 1)


def test_a_weight_with_two_owners_is_one_tensor_and_arrives_in_both():
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 20, (48,), generator=generator).split(24) for _ in range(3)]
    torch.manual_seed(0)
    found = lograd.variance(
        Tied(), [(x.view(4, 6), y) for x, y in batches], lograd.Plan.uniform("int4-ptq"), F.cross_entropy, **FEW
    )
    assert [one.name for one in found.tensors] == ["embedding.weight", "middle.weight", VECTORS]
    matrix = found.contributions
    assert matrix.layers == ("middle", "head")
    assert all(matrix.noise[:, 0] > 0)


def test_kinds_of_layers_and_gradients():
    """Transposed convolution, Conv1D of transformers, rows of an embedding that have sparse gradients."""
    torch.manual_seed(0)
    images = nn.Sequential(nn.ConvTranspose2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten(), Conv1D(5, 1152))
    plan = lograd.Plan.uniform("int6-full", keep=())
    found = lograd.variance(images, image_batches(3), plan, F.cross_entropy, **FEW)
    assert [site.layer for site in found.sites] == ["0", "2", "2", "4", "4"]
    assert found.biased == ()
    words = nn.Sequential(nn.Embedding(20, 16, sparse=True), nn.Flatten(), nn.Linear(96, 5))
    batches = [(torch.randint(0, 20, (4, 6)), torch.randint(0, 5, (4,))) for _ in range(3)]
    found = lograd.variance(words, batches, lograd.Plan.uniform("int4-ptq"), F.cross_entropy, **FEW)
    assert found["0.weight"].noise.mean > 0


def test_weights_that_do_not_learn_have_no_row():
    model = conv_net()
    model[0].weight.requires_grad_(False)
    batches = iter(image_batches(3))  # as a generator, which has no length
    found = lograd.variance(model, batches, lograd.Plan.uniform("prune70"), F.cross_entropy, **FEW)
    assert [one.name for one in found.tensors] == ["3.weight", "7.weight", VECTORS]
    assert not model[0].weight.requires_grad
