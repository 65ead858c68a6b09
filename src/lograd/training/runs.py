"""A run as its folder tells it, finished or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from .config import Config
from .folder import RunFolder
from .journal import Line, read_lines
from .measuring import Metric, metric_of


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
    def load(cls, path: str | Path) -> Run:
        folder = RunFolder(path)
        record = folder.read_config()
        lines = read_lines(folder.metrics) if folder.metrics.exists() else []
        return cls(Path(path), Config.from_json(record["settings"]), record, tuple(lines), folder.read_summary())

    @property
    def metric(self) -> Metric:
        return metric_of(self.config.task.kind)

    @property
    def status(self) -> str:
        """ "finished", "diverged" or "unfinished"."""
        return "unfinished" if self.summary is None else str(self.summary["status"])

    @property
    def steps(self) -> int:
        return max((int(line["step"]) for line in self.lines), default=0)

    @property
    def tests(self) -> list[Line]:
        return [line for line in self.lines if line["kind"] == "test"]
