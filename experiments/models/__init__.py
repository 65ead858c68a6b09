"""Models of the experiments, small enough for a CPU: residual networks, MobileNet-v2, VGG, transformers of text."""

from .mobilenet import MobileNetV2
from .residual import CifarResNet, ResNet18
from .transformer import CharTransformer, SentenceClassifier
from .vgg import Vgg

__all__ = [
    "CharTransformer", "CifarResNet", "MobileNetV2", "ResNet18", "SentenceClassifier", "Vgg",
]  # fmt: skip
