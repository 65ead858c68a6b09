"""The tasks of the demo: a small convolutional network on digits and a small transformer on a play, both real data.

A task is a model, its batches, its optimizer and its score.  Everything random follows from the seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import data
from ..models import CharTransformer

Batch = tuple[Tensor, Tensor]


class Task(ABC):
    """A model with its data.

    Args:
        steps: of each run.
        scout: steps of the run whose gradients are looked at first.
        seeds: runs of each way, with weights, batches and noise of their own.
        checkpoints: how often the score is taken along a run, the end included.
    """

    name: ClassVar[str]
    """The name of the task in tables, such as "digits"."""
    model_name: ClassVar[str]
    data_name: ClassVar[str]
    score_name: ClassVar[str]
    score_unit: ClassVar[str]
    """The unit of the score in tables: "%" or ""."""
    difference_unit: ClassVar[str]
    """The unit of a difference of two scores in a sentence, such as "points"."""
    difference_name: ClassVar[str]
    """The unit of a difference at more length, such as "points of accuracy"."""
    score_digits: ClassVar[int]
    higher_is_better: ClassVar[bool]
    batch: ClassVar[int]

    def __init__(self, steps: int, scout: int, seeds: int, checkpoints: int = 8) -> None:
        self.steps, self.scout, self.seeds, self.checkpoints = steps, scout, seeds, checkpoints

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model, with weights from torch's random numbers."""

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Batch]:
        """Return batches without end."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer of the model's parameters."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of an output."""

    @abstractmethod
    def score(self, model: nn.Module) -> float:
        """Return the score on data that is not trained on."""

    def fresh_model(self, seed: int) -> nn.Module:
        """The model with the weights of a seed; torch's random state stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model()

    @property
    def scored_steps(self) -> set[int]:
        """Steps after which the score is taken, the last one included."""
        return {round(self.steps * (k + 1) / self.checkpoints) for k in range(self.checkpoints)}

    def evaluate(self, model: nn.Module) -> float:
        """Return the score in evaluation mode, without a trace in torch's random numbers."""
        model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            score = self.score(model)
        model.train()
        return score

    def rate(self, step: int) -> float:
        """Return the learning rate over the largest: up in the first tenth, then down to a twentieth."""
        rise = max(self.steps // 10, 1)
        fall = max(self.steps - rise, 1)
        return min((step + 1) / rise, 0.05 + 0.95 * (self.steps - step) / fall)


class DigitsNet(nn.Module):
    """Four 3x3 convolutions with BatchNorm and ReLU, the third with stride 2, and a linear layer."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        shapes = [(1, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)]
        for number, (inputs, outputs, stride) in enumerate(shapes, start=1):
            setattr(self, f"conv{number}", nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs, momentum=0.3))
        self.depth = len(shapes)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the ten digits for a batch of images."""
        for number in range(1, self.depth + 1):
            x = F.relu(getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x)))
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


class DigitsTask(Task):
    """The convolutional network on handwritten digits."""

    name = "digits"
    model_name = "CNN"
    data_name = "UCI digits, 8x8 pixels: 1,297 images to train, 500 to test"
    score_name, score_unit, score_digits = "test accuracy", "%", 2
    difference_unit, difference_name = "points", "points of accuracy"
    higher_is_better = True
    batch = 64
    width = 32
    lr = 0.02

    @cached_property
    def data(self) -> data.Digits:
        """The digits, loaded once."""
        return data.digits()

    def model(self) -> nn.Module:
        """Return the convolutional network, with weights from torch's random numbers."""
        return DigitsNet(self.width)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Shuffled, each batch shifted by at most one pixel; the last, short batch of an epoch is left out."""
        generator = torch.Generator().manual_seed(seed)
        images, labels = self.data.train_images, self.data.train_labels
        while True:
            order = torch.randperm(len(labels), generator=generator)
            for chosen in torch.split(order, self.batch)[: len(order) // self.batch]:
                top, left = torch.randint(3, (2,), generator=generator).tolist()
                shifted = F.pad(images[chosen], (1, 1, 1, 1))[:, :, top : top + 8, left : left + 8]
                yield self.drawn(shifted.contiguous()), labels[chosen]

    def drawn(self, images: Tensor) -> Tensor:
        """Return images of the data at the size that the network takes."""
        return images

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum over all parameters."""
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch of images."""
        return F.cross_entropy(output, target)

    def score(self, model: nn.Module) -> float:
        """Share of the test images that are recognised, in percent."""
        with torch.no_grad():
            found = model(self.drawn(self.data.test_images)).argmax(1)
        return 100.0 * float((found == self.data.test_labels).double().mean())


@final
class WideDigitsTask(DigitsTask):
    """A convolutional network that is wide enough to gain from integer products, on digits of twice the size."""

    name = "digits of 16x16 pixels"
    model_name = "CNN of width 96"
    data_name = "UCI digits, drawn at 16x16 pixels: 1,297 images to train, 500 to test"
    width = 96
    lr = 0.05
    size = 16

    def drawn(self, images: Tensor) -> Tensor:
        """Return the images, enlarged."""
        return F.interpolate(images, size=(self.size, self.size), mode="bilinear")


@final
class PlayTask(Task):
    """The transformer on the characters of a play."""

    name = "Shakespeare"
    model_name = "transformer"
    data_name = "Romeo and Juliet: the first 90 % to train, the rest to test"
    score_name, score_unit, score_digits = "test bits per character", "", 3
    difference_unit, difference_name = "bits", "bits per character"
    higher_is_better = False
    batch = 16
    context = 64
    width = 128
    depth = 2

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, int]:
        """Training and test text as numbers of characters, and how many characters there are."""
        text = data.shakespeare()
        characters = {character: number for number, character in enumerate(sorted(set(text)))}
        tokens = torch.tensor([characters[character] for character in text])
        cut = len(tokens) * 9 // 10
        return tokens[:cut], tokens[cut:], len(characters)

    def model(self) -> nn.Module:
        """Return the transformer, with weights from torch's random numbers."""
        return CharTransformer(self.parts[2], self.width, self.depth, heads=4, context=self.context)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Windows at random places, each with the next character at every place."""
        generator = torch.Generator().manual_seed(seed)
        text = self.parts[0]
        while True:
            starts = torch.randint(len(text) - self.context, (self.batch, 1), generator=generator)
            windows = text[starts + torch.arange(self.context + 1)]
            yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW over all parameters."""
        return torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over all characters of a batch."""
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def score(self, model: nn.Module) -> float:
        """Mean cross-entropy over the test text in bits, in windows of the model's context."""
        text = self.parts[1]
        count = (len(text) - 1) // self.context
        inputs = text[: count * self.context].view(count, self.context)
        targets = text[1 : count * self.context + 1].view(count, self.context)
        with torch.no_grad():
            return float(self.loss(model(inputs), targets)) / math.log(2)
