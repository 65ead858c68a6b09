"""Gradients that are looked at: those of autograd, unchanged networks, moments of training, and random networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from experiments.papers.architectures import CASES, Case, followers, looked_at, prepared
from experiments.papers.encoding import four_symbol_bits, huffman_lengths
from experiments.papers.looking import begun_resnet, gradients_of
from experiments.papers.networks import perceptron
from experiments.papers.random_networks import NORMAL, RANDOM, Network, measured
from experiments.papers.sources import embedded_data


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_gradients_are_those_of_autograd(network):
    inputs, labels = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    found = gradients_of(network, (inputs, labels))
    hidden = network[0](inputs).detach().requires_grad_()
    logits = network[2](hidden.relu())
    logits.retain_grad()
    F.cross_entropy(logits, labels).backward()
    assert list(found.neural) == ["0", "2"]
    torch.testing.assert_close(found.neural["0"], hidden.grad)
    torch.testing.assert_close(found.neural["2"], logits.grad)
    torch.testing.assert_close(found.weights["2"], network[2].weight.grad)
    torch.testing.assert_close(found.weights["0"], hidden.grad.T @ inputs)


def test_a_look_leaves_the_network_as_it_was(network):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    gradients_of(network, (torch.randn(4, 6), torch.tensor([0, 1, 2, 0])))
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_another_loss_may_be_looked_at(network):
    target = torch.randn(4, 3)
    inputs = torch.randn(4, 6)
    found = gradients_of(network, (inputs, target), F.mse_loss)
    expected = 2 * (network(inputs) - target) / target.numel()
    torch.testing.assert_close(found.neural["2"], expected.detach())


def test_a_network_in_training_has_a_rate_that_falls_to_zero():
    model, session, batches = begun_resnet(None, 4, 8, 4)
    rates = []
    for _ in range(4):
        rates.append(session.optimizer.param_groups[0]["lr"])
        session.step()
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 4)) for step in range(4)])
    images, labels = next(batches)
    assert images.shape == (8, 3, 32, 32)
    assert model(images).shape == (8, 100)
    assert labels.max() < 100


def test_networks_of_the_same_seed_are_the_same():
    one, other, third = (begun_resnet(None, 4, 8, 2, seed).model for seed in (5, 5, 6))
    assert torch.equal(one.conv1.weight, other.conv1.weight)
    assert not torch.equal(one.conv1.weight, third.conv1.weight)


# -------------------------------------------------------------------------------------------------- architectures


def test_followers_are_the_modules_that_come_next():
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)]
    found = followers(nn.Sequential(*parts, nn.Identity(), nn.Dropout(), nn.GELU(), nn.Conv2d(4, 2, 1)))
    assert (found["0"], found["3"], found["4"]) == ("BatchNorm2d", "another layer", "GELU")
    assert "8" not in found  # the loss comes next


def test_cells_of_all_networks_have_names_of_their_own():
    cells = [case.cell for case in CASES]
    assert len(set(cells)) == len(cells)
    assert len({case.name for case in CASES}) >= 8
    assert {"none", "BatchNorm", "GroupNorm", "LayerNorm"} <= {case.norm for case in CASES}
    assert {"ReLU", "GELU"} <= {case.activation for case in CASES}


def test_a_perceptron_has_as_many_layers_as_asked_for():
    for depth in (2, 5, 9):
        for norm in (False, True):
            layers = list(perceptron(nn.ReLU, norm, depth).children())
            assert sum(isinstance(one, nn.Linear) for one in layers) == depth
            assert sum(isinstance(one, nn.BatchNorm1d) for one in layers) == norm * (depth - 1)


def test_moments_are_looked_at_in_turn_and_training_goes_on_between():
    case = Case("small", "none", "ReLU", "image", lambda: perceptron(nn.ReLU, False, 2))
    found = looked_at(case, None, 8, [0, 1, 3])
    assert list(found["looks"]) == ["0", "1", "3"]
    assert found["loss"] > 0
    for layers in found["looks"].values():
        assert [layer["layer"] for layer in layers] == ["1", "3"]
        assert layers[0]["before"] == "ReLU"
        for layer in layers:
            assert set(layer["ks"]) == {
                "LogNormal",
                "LogLaplace",
                "HalfNormal",
                "Exponential",
                "HalfCauchy",
                "Uniform",
            }
            assert set(layer["miss"]) == {"empirical", "lognormal", "normal"}
    assert found["looks"]["0"][0]["sigma"] != found["looks"]["3"][0]["sigma"]


def test_a_look_at_the_beginning_alone_has_no_loss():
    case = Case("small", "none", "ReLU", "image", lambda: perceptron(nn.ReLU, False, 2))
    assert looked_at(case, None, 8, [0])["loss"] is None


def test_sentences_come_from_the_folder_of_their_name(tmp_path):
    data = embedded_data(tmp_path)
    (data / "sst2").rename(data / "cola")
    sizes = []

    def build(tokens):
        sizes.append(tokens)
        return nn.Sequential(nn.Embedding(tokens, 2), nn.Flatten())

    model, batches, loss = prepared(Case("tiny", "none", "none", "cola", build), data, 4)
    tokens, labels = next(batches)
    assert tokens.max() < sizes[0]
    assert loss is F.cross_entropy
    assert model(tokens).shape[0] == len(labels) == 4


# -------------------------------------------------------------------------------------------------- random networks


def test_a_product_of_more_factors_is_wider_and_of_wider_layers_narrower():
    assert Network(0, 16, False).predicted == pytest.approx(math.sqrt(NORMAL))
    assert Network(8, 16, False).predicted > Network(2, 16, False).predicted
    assert Network(8, 256, False).predicted < Network(8, 16, False).predicted
    assert Network(8, 16, True).predicted is None


def test_random_networks_grow_in_depth_and_width():
    assert len({network.cell for network in RANDOM}) == len(RANDOM) == 36
    assert {network.width for network in RANDOM} == {16, 64, 256}
    model = Network(3, 16, True).build()
    assert [type(one).__name__ for one in model] == ["Linear", "BatchNorm1d", "ReLU"] * 3


def test_the_gradient_behind_one_relu_is_normal():
    torch.manual_seed(0)
    found = measured(Network(1, 64, False), 20)
    assert found["networks"] == 20
    # ln |x| of a normal x has the variance pi^2 / 8; about 40,000 elements, of which half are not zero
    count = 20 * 64 * 64 / 2
    fourth = 7.0 * NORMAL**2  # the fourth central moment of ln |x| is below it
    band = 4 * math.sqrt(fourth / count)
    assert abs(found["together"]["sigma"] ** 2 - NORMAL) < band
    assert found["together"]["normal"] < 4 / math.sqrt(count)
    assert found["together"]["lognormal"] > 0.08


def test_the_norm_of_a_gradient_has_the_variance_of_a_product_of_factors():
    """One input for each network, as theory has it: the variance of ln of the squared norm is near 5 L / n."""
    torch.manual_seed(0)
    depth, width, draws = 4, 32, 1500
    logs = []
    for _ in range(draws):
        model = Network(depth, width, False).build()
        first = model[0](torch.randn(1, width)).detach().requires_grad_()
        model[1:](first).backward(torch.randn(1, width))
        energy = float(first.grad.square().sum())
        if energy > 0:
            logs.append(math.log(energy))
    # Each layer's weights add 2 / n, each ReLU 3 / n, and the gradient at the output, which is drawn too, 2 / n.
    expected = (2 * (depth - 1) + 3 * depth + 2) / width
    spread = float(np.var(logs))
    higher = 2.0  # terms beyond 1 / n make it larger, by less than half, at this width
    error = 4 * expected * math.sqrt(2 / draws)
    assert expected - error < spread < higher * expected


# -------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("seed", range(4))
def test_huffman_words_are_a_code_between_entropy_and_one_bit_more(seed):
    shares = np.random.default_rng(seed).dirichlet([0.5, 0.5, 0.5, 0.5])
    lengths = huffman_lengths(list(shares))
    assert sum(2.0**-length for length in lengths) == 1.0  # Kraft's sum of a complete code
    mean = float(np.dot(shares, lengths))
    entropy = float(-(shares * np.log2(np.maximum(shares, 1e-300))).sum())
    assert entropy - 1e-9 <= mean < entropy + 1


def test_other_values_are_followed_by_their_payload():
    shares = (0.7, 0.1, 0.1, 0.1)
    bits = [four_symbol_bits(shares, payload) for payload in (0, 8, 32)]
    assert bits[1] - bits[0] == pytest.approx(0.8)
    assert bits[2] - bits[0] == pytest.approx(3.2)
    assert four_symbol_bits((0.0, 0.0, 0.0, 1.0), 16) >= 16
