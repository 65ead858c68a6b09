"""A run as its folder tells it, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from lograd import InvalidValue, LogradError
from lograd.files.atomic import CannotRead

from .config import Config
from .folder import RunFolder
from .journal import Line, read_lines
from .measuring import LOSS, Metric, metric_of, own_metric


@final
@dataclass(frozen=True)
class Run:
    """Settings, metrics and summary of a run.

    Attributes:
        record: the content of config.json.
        lines: of metrics.jsonl.
        summary: of summary.json; None while the run is not at its end.
    """

    path: Path
    config: Config
    record: dict[str, Any]
    lines: tuple[Line, ...]
    summary: dict[str, Any] | None

    @classmethod
    def load(cls, path: str | Path, *, metrics: bool = True) -> Run:
        """A run from its folder; what is wrong with a file is said in one sentence.

        Args:
            metrics: False leaves metrics.jsonl alone, which a killed run may have left with anything at its end.
        """
        folder = RunFolder(path)
        record = folder.read_config()
        try:
            config = Config.from_json(record["settings"])
        except LogradError as error:
            raise InvalidValue(f"Cannot read the run {folder}: {error}") from None
        metric = metric_of_run(config, record).name
        summary = folder.read_summary(metric)
        lines: list[Line] = []
        if metrics and folder.metrics.exists():
            try:
                lines = read_lines(folder.metrics, metric=metric)
            except CannotRead as error:
                hint = "" if summary is not None else " lograd train --resume cuts what follows the checkpoint."
                raise CannotRead(f"{error}{hint}") from None
        return cls(Path(path), config, record, tuple(lines), summary)

    @property
    def metric(self) -> Metric:
        """The number that the run is judged by."""
        return metric_of_run(self.config, self.record)

    @property
    def status(self) -> str:
        """ "finished", "diverged" or "unfinished"."""
        return "unfinished" if self.summary is None else str(self.summary["status"])

    @property
    def steps(self) -> int:
        """The last step that has a line of metrics."""
        return max((int(line["step"]) for line in self.lines), default=0)

    @property
    def tests(self) -> list[Line]:
        """The lines of evaluations."""
        return [line for line in self.lines if line["kind"] == "test"]

    @property
    def judged(self) -> list[Line]:
        """The lines that have the metric: evaluations, or training steps where there are none."""
        return [line for line in self.lines if line["kind"] == self.metric.kind]


def metric_of_run(config: Config, record: Mapping[str, Any]) -> Metric:
    """The metric as config.json has it."""
    if not config.own:
        return metric_of(config.task.kind)
    name, higher, tested = (record.get(key) for key in ("metric", "higher_is_better", "tested"))
    if not isinstance(name, str) or not isinstance(higher, bool) or not isinstance(tested, bool):
        raise InvalidValue("config.json of the run must name its metric; it does not, so it was changed.")
    return own_metric(name, higher) if tested else LOSS
