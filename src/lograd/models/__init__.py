"""Models of the experiments, small enough for a CPU: residual networks, VGG, a character model, a text classifier."""

from .residual import CifarResNet, ResNet18
from .transformer import CharTransformer, SentenceClassifier
from .vgg import Vgg

__all__ = ["CharTransformer", "CifarResNet", "ResNet18", "SentenceClassifier", "Vgg"]
