"""MobileNet-v2 of [sandler2018] for 32x32 images: deep, narrow where blocks meet, depthwise inside of them.

@inproceedings{sandler2018,
  title     = {{MobileNetV2}: Inverted Residuals and Linear Bottlenecks},
  author    = {Sandler, Mark and Howard, Andrew and Zhu, Menglong and Zhmoginov, Andrey and Chen, Liang-Chieh},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year      = {2018}
}
"""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks and stride of each stage (Table 2); the second one keeps the size of small images."""
STEM, LAST = 32, 1280
"""Channels of the first and of the last convolution."""
MULTIPLE = 8
"""Channels come in multiples of this."""


def channels(wanted: float) -> int:
    """Return the nearest multiple of 8, and not less than nine tenths of what is wanted.

    >>> channels(32 * 0.25), channels(24 * 0.5), channels(96 * 1.4)
    (8, 16, 136)
    """
    nearest = max(MULTIPLE, int(wanted + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
    return nearest if nearest >= 0.9 * wanted else nearest + MULTIPLE


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution with BatchNorm and ReLU6."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one, and a linear 1x1 back; a shortcut where shapes are equal."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = convolution(inputs, inner, 1) if expansion != 1 else nn.Sequential()
        self.depthwise = convolution(inner, inner, 3, stride, groups=inner)
        self.project = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, shortcut included."""
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


class MobileNetV2(nn.Module):
    """Seventeen inverted residuals between two convolutions, and a classifier: 53 layers.

    Args:
        classes: the classes of images.
        width: the factor of all channels; those of the last convolution do not shrink.
    """

    def __init__(self, classes: int = 100, width: float = 1.0) -> None:
        super().__init__()
        inputs, last = channels(STEM * width), channels(LAST * max(width, 1.0))
        self.stem = convolution(3, inputs, 3)
        made = []
        for expansion, wanted, blocks, stride in STAGES:
            outputs = channels(wanted * width)
            for block in range(blocks):
                made.append(InvertedResidual(inputs, outputs, 1 if block else stride, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*made)
        self.last = convolution(inputs, last, 1)
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        result: Tensor = self.fc(self.last(self.blocks(self.stem(x))).mean((2, 3)))
        return result
