"""The models of the experiments: shapes, causality, padding, sizes that the papers state."""

import pytest
import torch

from experiments.models import CharTransformer, CifarResNet, MobileNetV2, ResNet18, SentenceClassifier, Vgg


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


def test_a_mobile_net_has_the_published_size_and_shortcuts_where_shapes_are_equal():
    """3,504,872 parameters with 1,000 classes, the 3.4 M of the paper; small images change no layer."""
    assert parameters(MobileNetV2(classes=1000)) == 3_504_872
    model = MobileNetV2(classes=10, width=0.25)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert model.last(model.blocks(model.stem(torch.randn(2, 3, 32, 32)))).shape[2:] == (4, 4)
    layers = [one for one in model.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 53
    assert sum(one.groups == one.in_channels == one.out_channels for one in layers[:-1]) == 17
    block = next(one for one in model.blocks if one.has_shortcut)
    torch.nn.init.zeros_(block.project[1].weight)
    x = torch.randn(2, block.project[0].out_channels, 8, 8)
    assert torch.equal(block(x), x)


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
