"""Models of the experiments, small enough for a CPU: residual networks, VGG, a character model, a text classifier."""

from .chains import Link, Part, chain_of, cut, names_of
from .residual import CifarResNet, ResNet18
from .transformer import CharTransformer, SentenceClassifier
from .vgg import Vgg

__all__ = [
    "CharTransformer", "CifarResNet", "ResNet18", "SentenceClassifier", "Vgg",
    "Link", "Part", "chain_of", "cut", "names_of",
]  # fmt: skip
