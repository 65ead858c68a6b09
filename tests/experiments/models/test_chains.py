"""Models as chains: parts in turn compute what the model computes, and what cannot be cut is refused in a sentence."""

from itertools import combinations

import pytest
import torch
from torch import nn

from experiments.models import CharTransformer, CifarResNet, Link, ResNet18, SentenceClassifier, Vgg, cut, names_of
from experiments.models.chains import _ends
from lograd import InvalidValue

IMAGES = torch.rand(2, 3, 32, 32)
MODELS = {
    "charlm": (lambda: CharTransformer(7, 8), torch.randint(7, (2, 16)), 6),
    "resnet8": (lambda: CifarResNet(8, 10, 4), IMAGES, 5),
    "resnet18": (lambda: ResNet18(10, 4), IMAGES, 10),
    "vgg": (lambda: Vgg(10, 4), IMAGES, 14),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(True)), nn.Sequential(nn.Linear(4, 4))),
        torch.rand(3, 4),
        2,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_parts_in_turn_are_the_model(name):
    make, x, most = MODELS[name]
    model = make().eval()
    for count in (1, 2, most):
        parts, y = cut(model, count), x
        for part in parts:
            y = part(y)
        assert torch.equal(y, model(x))
        names = [one for part in parts for one in names_of(model, part)]
        assert sorted(names) == sorted(model.state_dict()), "each tensor belongs to one part"
        own = {id(one) for one in model.parameters()}
        assert all(id(one) in own for part in parts for one in part.parameters())
    with pytest.raises(InvalidValue, match=f"each needs a link with weights that learn, and its chain has {most} "):
        cut(model, most + 1)


@pytest.mark.parametrize("weights", [[2, 4, 4, 4, 4, 1], [1, 0, 0, 1, 3, 0], [3, 1, 1], [1, 1, 5, 1, 1, 1]])
def test_the_heaviest_part_is_as_light_as_it_can_be(weights):
    starts = [place for place in range(1, len(weights)) if weights[place]]
    for count in range(1, len(starts) + 2):
        ends = _ends(weights, count)
        ways = [(*inner, len(weights)) for inner in combinations(starts, count - 1)]

        def heaviest(ends):
            return max(sum(weights[a:b]) for a, b in zip((0, *ends), ends, strict=False))

        assert ends in ways
        assert heaviest(ends) == min(map(heaviest, ways))
    assert _ends(weights, len(starts) + 2) is None


def test_a_part_never_begins_with_what_belongs_to_the_layer_before():
    """An in-place ReLU at the head of a part would change the tensor that was sent, which autograd refuses."""
    for count in range(2, 15):
        for part in cut(Vgg(10, 4), count)[1:]:
            assert isinstance(part.used[0], nn.Conv2d | nn.Linear)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def chain(self):
        return [Link(self.first, (self.first,)), Link(self.second, (self.second,))]


class Loose(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 3), nn.Linear(3, 3))
        self.register_buffer("offset", torch.zeros(3))


class Other(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


REFUSED = {
    "branches": (SentenceClassifier(9), "SentenceClassifier cannot be cut into stages; a pipeline takes an nn.Seq"),
    "own forward": (Other(nn.Linear(3, 3), nn.Linear(3, 3)), "Other cannot be cut into stages; a pipeline takes"),
    "tied": (Tied(), r"stages 0 and 1 would share a tensor \(weight\)"),
    "loose": (Loose(), "offset belongs to no link of its chain"),
    "frozen": (nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)), "has 1 such link"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_in_a_sentence(name):
    model, words = REFUSED[name]
    with pytest.raises(InvalidValue, match=words):
        cut(model, 2)
