"""lograd.profile: the model is restored bit for bit, and wrong arguments are refused in one sentence."""

from __future__ import annotations

import pickle

import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import progress as showing
from lograd.errors import InvalidType, InvalidValue


def test_the_model_is_restored_bit_for_bit():
    model = conv_net()
    model[1].eval()
    model[3].weight.requires_grad_(False)
    model[0].weight.grad = kept = torch.full_like(model[0].weight, 3.0)
    before, text, random = state_of(model), pickle.dumps(model), torch.get_rng_state()

    lograd.profile(model, image_batches(3), lambda output, target: cross_entropy(nn.functional.dropout(output), target))

    assert pickle.dumps(model) == text
    assert equal_states(state_of(model), before)
    assert model[0].weight.grad is kept
    assert bool((kept == 3).all())
    assert model[7].weight.grad is None
    assert [module.training for module in model] == [True, False] + 6 * [True]
    assert torch.equal(torch.get_rng_state(), random)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_with_kwargs


def test_the_model_is_restored_when_the_loss_raises():
    model = conv_net()
    before, random = state_of(model), torch.get_rng_state()

    def loss(output, target):
        with torch.no_grad():
            model[0].weight.mul_(2)
        model[1].running_mean = torch.ones(8)
        model.eval()
        model[7].weight.requires_grad_(False)
        torch.rand(1)
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        lograd.profile(model, image_batches(1), loss)
    assert equal_states(state_of(model), before)
    assert model.training
    assert model[1].training
    assert model[7].weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not model[0]._forward_hooks
    assert not model[0].weight._backward_hooks


def test_refusals():
    model, batches = mlp(), vector_batches(1)
    with pytest.raises(InvalidType, match=r"model must be a torch.nn.Module; got an object of type function"):
        lograd.profile(lambda x: x, batches, cross_entropy)
    with pytest.raises(InvalidType, match="loss_fn must be a function"):
        lograd.profile(model, batches, 3)
    with pytest.raises(InvalidType, match="batches must be an iterable of batches; got an object of type Tensor"):
        lograd.profile(model, batches[0][0], cross_entropy)
    with pytest.raises(InvalidValue, match="steps must be a whole number from 1"):
        lograd.profile(model, batches, cross_entropy, steps=0)
    with pytest.raises(InvalidValue, match="every must be a whole number from 1"):
        lograd.observe(model, every=0)
    with pytest.raises(InvalidValue, match="at least one batch; it was empty"):
        lograd.profile(model, [], cross_entropy)
    with pytest.raises(InvalidType, match=r"a tensor with one element, the loss; got a tensor of shape \(16, 3\)"):
        lograd.profile(model, batches, lambda output, target: output)
    with pytest.raises(InvalidType, match="the loss; got a float"):
        lograd.profile(model, batches, lambda output, target: 1.0)
    with pytest.raises(InvalidValue, match="the loss must depend on a parameter"):
        lograd.profile(model, batches, lambda output, target: torch.zeros(()))
    with pytest.raises(InvalidValue, match=r"none did \(layer '0': no gradient reached it\)"):
        lograd.profile(model, batches, lambda output, target: torch.zeros((), requires_grad=True))
    with pytest.raises(InvalidValue, match="must have a Linear or convolution; none of the 2 modules is one"):
        lograd.profile(nn.Sequential(nn.ReLU()), batches, cross_entropy)
    with pytest.raises(InvalidValue, match="a module that filter_fn accepts"):
        lograd.profile(model, batches, cross_entropy, filter_fn=lambda module, name: False)
    with pytest.raises(InvalidValue, match="layer '0' is lazy"):
        lograd.profile(nn.Sequential(nn.LazyLinear(3)), batches, cross_entropy)
    observer = lograd.observe(model)
    with observer, pytest.raises(InvalidValue, match="at work already"):
        observer.__enter__()
    profile = lograd.profile(model, batches, cross_entropy)
    with pytest.raises(InvalidValue, match=r"no layer 'O'; it has 0, 2"):
        profile["O"]


class Endless:
    """A loader whose length is asked in vain, as over a dataset without one."""

    def __iter__(self):
        return iter(vector_batches(9))

    def __len__(self):
        raise TypeError("object of type 'Stream' has no len()")


@pytest.mark.parametrize(
    ("batches", "total"),
    [
        (lambda: vector_batches(2), 2),
        (lambda: vector_batches(9), 4),
        (lambda: iter(vector_batches(9)), 4),
        (Endless, 4),
    ],
    ids=["short list", "long list", "iterator", "no length"],
)
def test_progress_counts_the_batches_that_there_are(monkeypatch, capsys, batches, total):
    monkeypatch.setattr(showing, "INTERVAL", 0.0)
    lograd.profile(mlp(), batches(), cross_entropy, steps=4, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"lograd: observing gradients: 1 of {total} steps, ")
    assert lines[-1].startswith(f"lograd: observing gradients: {total} of {total} steps, ")


def test_progress_is_printed_where_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(showing, "INTERVAL", 0.0)
    for choice, found in ((None, False), (False, False), (True, True)):
        lograd.profile(mlp(), vector_batches(2), cross_entropy, noise=2, progress=choice)
        err = capsys.readouterr().err
        assert ("observing gradients: " in err) == found
        assert ("measuring noise: " in err) == found
    with pytest.raises(InvalidType, match="progress must be True, False or None; got 'no'"):
        lograd.profile(mlp(), vector_batches(2), cross_entropy, progress="no")


def test_fewer_batches_than_steps_are_enough_and_no_more_are_taken():
    source = iter(vector_batches(5))
    assert lograd.profile(mlp(), source, cross_entropy, steps=3, every=2).steps == 3
    assert lograd.profile(mlp(), source, cross_entropy, steps=30).steps == 2
