"""The models of the experiments: shapes, causality, padding, sizes that the papers state."""

import pytest
import torch

from lograd.models import CharTransformer, CifarResNet, ResNet18, SentenceClassifier, Vgg


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "count"),
    [(CifarResNet(20, classes=10), 269_722 + 2_752), (ResNet18(classes=10), 11_173_962), (Vgg(classes=10), 14_724_042)],
)
def test_image_models_have_the_published_size(model, count):
    """He et al. state 0.27 M for ResNet-20 with parameter-free shortcuts; ours are 1x1 convolutions, 2,752 more."""
    assert parameters(model) == count
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_character_sees_only_the_ones_before():
    torch.manual_seed(0)
    model = CharTransformer(tokens=11, width=16, depth=2, heads=2, context=8).eval()
    text = torch.randint(0, 11, (1, 8))
    changed = text.clone()
    changed[0, 5] = (text[0, 5] + 1) % 11
    before, after = model(text), model(changed)
    assert before.shape == (1, 8, 11)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_padding_of_a_sentence_does_not_matter():
    torch.manual_seed(0)
    model = SentenceClassifier(tokens=11, width=16, depth=2, heads=2, context=12).eval()
    short = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, 0, 0, 0]])
    assert torch.allclose(model(short), model(padded), atol=1e-6)
