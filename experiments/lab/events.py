"""Metrics for TensorBoard, where it is asked for and installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from lograd import InvalidValue

from .config import Config
from .folder import RunFolder
from .journal import Line
from .measuring import INTERVALS

PLACE = ("kind", "step", "epoch", "seconds")
"""Fields of a line that say where it stands; the others are scalars."""


class Events:
    """Nobody asked: nothing is written."""

    def write(self, line: Line) -> None:
        """Take a line of metrics."""

    def close(self) -> None:
        """End the events."""


@final
class TensorBoardEvents(Events):
    """The writer of torch, made with the first line: a run that is refused leaves no folder."""

    def __init__(self, writer_class: Any, folder: RunFolder) -> None:
        self.writer_class, self.folder = writer_class, folder
        self.writer: Any = None

    def write(self, line: Line) -> None:
        if line["kind"] == "guard":
            return  # words, and no scalars
        if self.writer is None:
            # A resumed run writes some steps again; TensorBoard is told to forget the first version of them.
            self.writer = self.writer_class(str(self.folder.tensorboard), purge_step=line["step"])
        for name, value in _scalars(line):
            self.writer.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _scalars(line: Line) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line by name; those of intervals by layer as well."""
    for name, value in line.items():
        if name == INTERVALS:
            for layer, numbers in value.items():
                yield from ((f"{name}/{layer}/{each}", number) for each, number in numbers.items() if each not in PLACE)
        elif name not in PLACE and value is not None:
            yield name, value


def open_events(config: Config, folder: RunFolder) -> Events:
    """The events of a run, as its settings ask for them."""
    if not config.tensorboard:
        return Events()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidValue(
            "TensorBoard was asked for and is not installed; pip install tensorboard, or leave --tensorboard out."
        ) from None
    return TensorBoardEvents(SummaryWriter, folder)
