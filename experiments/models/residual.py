"""Residual networks for 32x32 images: ResNet-8, -20, -32, ... of [he2016], 6 n + 2 layers, and ResNet-18.

@inproceedings{he2016,
  title     = {Deep Residual Learning for Image Recognition},
  author    = {He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian},
  booktitle = {IEEE Conference on Computer Vision and Pattern Recognition},
  year      = {2016}
}
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut; a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, shortcut included."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResidualNet(nn.Module):
    """Stages of blocks, each with twice the channels of the one before and half its size, and a classifier."""

    def __init__(self, stages: int, blocks: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        made, inputs = [], width
        for stage in range(stages):
            outputs = width << stage
            for block in range(blocks):
                made.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*made)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self._logits(self.blocks(self._stem(x)))

    def _stem(self, x: Tensor) -> Tensor:
        return F.relu(self.bn1(self.conv1(x)))

    def _logits(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


class CifarResNet(ResidualNet):
    """Three stages of (depth - 2) / 6 blocks on 32x32 images."""

    def __init__(self, depth: int = 20, classes: int = 100, width: int = 16) -> None:
        super().__init__(3, (depth - 2) // 6, classes, width)


class ResNet18(ResidualNet):
    """The ResNet-18 of ImageNet with a 3x3 stem for 32x32 images: four stages of two blocks, 64 to 512 channels."""

    def __init__(self, classes: int = 100, width: int = 64) -> None:
        super().__init__(4, 2, classes, width)
