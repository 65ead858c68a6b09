"""VGG with BatchNorm for 32x32 images [simonyan2015]: thirteen 3x3 convolutions and one linear layer.

@inproceedings{simonyan2015,
  title     = {Very Deep Convolutional Networks for Large-Scale Image Recognition},
  author    = {Simonyan, Karen and Zisserman, Andrew},
  booktitle = {International Conference on Learning Representations},
  year      = {2015}
}
"""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of each convolution, in units of the width; a max-pooling ends a stage."""


class Vgg(nn.Module):
    """VGG-16 with one classifier layer instead of three, as is usual on CIFAR; `width` is 64 in the paper."""

    def __init__(self, classes: int = 100, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for stage in STAGES:
            for factor in stage:
                outputs = factor * width
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self._logits(self.features(x))

    def _logits(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x.mean((2, 3)))
        return result
