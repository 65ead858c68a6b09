"""Batches of any kind and their losses; squared norms by group, and the variance of minibatches."""

from __future__ import annotations

from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zoo
from networks import mlp, vector_batches
from torch import nn

import lograd
from lograd.errors import InvalidType, InvalidValue
from lograd.measure.passes import Minibatches, ParameterGroups, energy
from lograd.measure.values import TOTAL, VECTORS


class UNet(nn.Module):
    """Down, up, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv2d(1, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        skip = F.relu(self.inside(x))
        return self.out(torch.cat([skip, self.up(F.relu(self.down(skip)))], 1))


def segmentation(count=2):
    torch.manual_seed(0)
    return [{"image": torch.randn(2, 1, 8, 8), "mask": torch.randint(0, 3, (2, 8, 8))} for _ in range(count)]


def bert():
    zoo.torchvision()
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForSequenceClassification(config)


def tokens(labels=True):
    batch = {"input_ids": torch.randint(0, 50, (4, 6)), "attention_mask": torch.ones(4, 6, dtype=torch.long)}
    return batch | ({"labels": torch.randint(0, 2, (4,))} if labels else {})


# -- models that return their loss --


@pytest.mark.parametrize("wrap", [dict, OrderedDict, UserDict])
def test_a_model_of_transformers_computes_its_own_loss(wrap):
    model, batch = bert(), tokens()
    expected = lograd.profile(model.eval(), [batch], lambda model, batch: model(**batch).loss)
    assert lograd.profile(model, [wrap(batch)]) == expected
    assert lograd.profile(model, [wrap(batch)], None) == expected
    assert expected.work.untreated[-1].kind.endswith("Attention") or len(expected.work.untreated) > 3


def test_noise_takes_the_same_loss():
    assert lograd.profile(bert().eval(), [tokens()], noise=1).noise is not None


def test_a_model_without_labels_says_what_to_do():
    with pytest.raises(InvalidValue, match=r"returned no loss, .*SequenceClassifierOutput.* such as 'labels'"):
        lograd.profile(bert(), [tokens(labels=False)])


def test_a_model_that_returns_a_dict():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, y):
            return {"loss": F.cross_entropy(self.layer(x), y)}

    ((x, y),) = vector_batches(1)
    assert "layer" in lograd.profile(Model(), [{"x": x, "y": y}]).layers


@pytest.mark.parametrize(("batch", "what"), [(vector_batches(1)[0], "a tuple of 2"), (torch.ones(2, 6), "a tensor")])
def test_without_a_loss_function_a_batch_is_a_dict(batch, what):
    with pytest.raises(InvalidType, match=f"must be a dict of the model's arguments; got {what}; give loss_fn"):
        lograd.profile(mlp(), [batch])


# -- loss functions of the wrong form --


WRONG = {
    "cross_entropy": F.cross_entropy,
    "a module": nn.CrossEntropyLoss(),
    "mse_loss": F.mse_loss,
    "a function of outputs": lambda output, target: (output - target).pow(2).mean(),
    "one that calls torch": lambda output, target: F.cross_entropy(output, target),
    "one of three arguments": lambda output, target, mask: (output * mask).sum(),
    "one of one argument": lambda output: output.sum(),
}
BATCHES = {
    "a dict": (segmentation(1)[0], "a dict"),
    "three": ((torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8), torch.ones(2)), "a tuple of 3"),
    "a list of three": ([torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8), torch.ones(2)], "a list of 3"),
    "a tensor": (torch.randn(2, 1, 8, 8), "a tensor"),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("loss", WRONG)
def test_a_loss_of_the_wrong_form_gets_one_sentence(loss, batch):
    value, what = BATCHES[batch]
    with pytest.raises(InvalidType) as raised:
        lograd.profile(UNet(), [value], WRONG[loss])
    text = str(raised.value)
    assert text.startswith(f"loss_fn does not fit a batch that is {what} (")
    assert "for any other batch as loss_fn(model, batch), such as lambda model, batch:" in text
    assert "loss_fn(model(input), target)" in text
    assert "model(**batch).loss" in text
    assert "\n" not in text
    assert isinstance(raised.value.__cause__, TypeError | AttributeError)


def test_the_form_that_the_sentence_names_works():
    def loss(model, batch):
        return F.cross_entropy(model(batch["image"]), batch["mask"])

    profile = lograd.profile(UNet(), segmentation(), loss)
    assert list(profile.layers) == ["inside", "down", "up", "out"]
    three = [(one["image"], one["mask"], torch.ones(3)) for one in segmentation()]
    weighted = lograd.profile(UNet(), three, lambda model, b: F.cross_entropy(model(b[0]), b[1], weight=b[2]))
    assert weighted.steps == 2


def test_a_function_of_model_and_batch_on_pairs_gets_the_sentence():
    with pytest.raises(InvalidType, match=r"does not fit a batch that is a tuple of 2 \(TypeError: 'Tensor' object is"):
        lograd.profile(mlp(), vector_batches(1), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def test_an_output_that_is_no_tensor_gets_the_sentence():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return {"logits": self.layer(x)}

    with pytest.raises(InvalidType, match=r"does not fit a batch that is a tuple of 2 .*dict"):
        lograd.profile(Model(), vector_batches(1), F.cross_entropy)


OWN = {
    "before the model": lambda model, batch: len(3),
    "a missing key": lambda model, batch: batch["no such key"],
    "after the model": lambda model, batch: model(batch["image"]) + "text",
    "inside the model": lambda model, batch: model(batch),
    "in the loss": lambda model, batch: F.cross_entropy(model(batch["image"]), None),
}


@pytest.mark.parametrize("name", OWN)
def test_errors_of_the_users_own_code_stay_what_they_are(name):
    with pytest.raises((TypeError, KeyError)) as raised:
        lograd.profile(UNet(), segmentation(1), OWN[name])
    assert not isinstance(raised.value, lograd.LogradError)


def test_a_loss_function_that_is_none_of_them():
    with pytest.raises(InvalidType, match=r"loss_fn must be a function, .* or None; got 'mse'"):
        lograd.profile(mlp(), vector_batches(1), "mse")


# -- gradients --


def test_groups_add_up():
    parameters = {"a": torch.zeros(3, 2), "b": torch.zeros(3), "c": torch.zeros(2, 2, 2), "d": torch.zeros(1)}
    groups = ParameterGroups(parameters)
    assert groups.names == ("a", "c", VECTORS, TOTAL)
    assert groups.elements == [6, 8, 4, 18]
    generator = torch.Generator().manual_seed(0)
    draws = [[torch.randn(one.shape, generator=generator) for one in parameters.values()] for _ in range(3)]
    gram = groups.gram(draws)
    for place, one in enumerate(draws):
        assert gram[:, place, place] == pytest.approx(groups.energies(one), rel=1e-15)
        assert groups.products(one, draws[0]) == pytest.approx(gram[:, place, 0], rel=1e-12)
    assert energy(draws[0][0]) == pytest.approx(float(draws[0][0].double().square().sum()), rel=1e-15)


@pytest.mark.parametrize("count", [3, 8])
def test_minibatch_variance_and_its_standard_error(count):
    """Each of 2,000 tensors is a trial of its own, with normal gradients of unequal variances."""
    trials, scales = 2000, torch.linspace(0.5, 2, 12).reshape(3, 4)
    found = Minibatches(ParameterGroups({f"trial {place}": scales for place in range(trials)}))
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        found.add(list(1 + scales * torch.randn(trials, 3, 4, generator=generator)))
    means, errors = np.array([(one.mean, one.error) for one in found.variance()[:-1]]).T
    assert means.mean() == pytest.approx(float(scales.square().sum()), rel=0.02)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(means.std(ddof=1), rel=0.06)
    assert found.signal()[:-1].mean() == pytest.approx(scales.numel(), rel=0.03)
