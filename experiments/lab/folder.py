"""The folder of a run: its settings, its metrics, its plan, its checkpoint, and at the end its summary.

config.json     settings, versions, plan hash, fingerprint of the data; written first, so it marks a run
metrics.jsonl   a line for each log interval and evaluation
plan.json       the plan, if there is one
checkpoint.pt   all that a resumed run needs; replaced whole
summary.json    final metrics, counters, time; written last, so it marks the end
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from lograd import InvalidValue, LogradError, Plan
from lograd.errors import LogradWarning
from lograd.files.atomic import CannotRead, CannotWrite, read_file, replace_file
from lograd.files.strict_json import LARGEST, parse

from .checking import check_record, check_summary

VERSION = 1


@final
class RunFolder:
    """Paths, and files that are written whole."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.plan = self.path / "plan.json"
        self.checkpoint = self.path / "checkpoint.pt"
        self.summary = self.path / "summary.json"
        self.tensorboard = self.path / "tensorboard"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def has_run(self) -> bool:
        """True if the folder holds a run, finished or not."""
        return self.config.exists()

    def prepare(self, *, overwrite: bool) -> None:
        """Make the folder, and refuse one that has a run; or remove that run, and nothing else."""
        if self.has_run and not overwrite:
            raise InvalidValue(
                f"the folder {self} has a run already; go on with it by --resume, or replace it by --overwrite."
            )
        make_folder(self.path)
        try:
            for file in (self.summary, self.checkpoint, self.metrics, self.config):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise CannotWrite(f"Cannot replace the run {self}: {error.strerror}.") from error
        shutil.rmtree(self.tensorboard, ignore_errors=True)

    def write_config(self, record: dict[str, Any]) -> None:
        """Write config.json, which marks the folder as a run."""
        replace_file(self.config, _pretty({"lograd_run": VERSION} | record))

    def read_config(self) -> dict[str, Any]:
        """The checked content of config.json."""
        if not self.has_run:
            raise CannotRead(f"Cannot read the run {self}: it has no config.json, so it is not the folder of a run.")
        record = read_json(self.config)
        version = record.get("lograd_run")
        if type(version) is not int or version != VERSION:
            raise InvalidValue(
                f"Cannot read the run {self}: its config.json is not of version {VERSION}, which this lograd reads."
            )
        with _blamed(self.config):
            check_record(record)
        return record

    def load_plan(self, record: dict[str, Any]) -> Plan | None:
        """The plan that the run was started with."""
        if record["plan"] is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogradWarning)  # that it was changed is said below
            plan = Plan.load(self.plan)
        if plan.hash() != record["plan"]:
            raise InvalidValue(
                f"{self.plan} was changed after the run was started ({record['plan']}, now {plan.hash()}); put the "
                "plan of the run back, or start anew."
            )
        return plan

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, which marks the end of the run."""
        replace_file(self.summary, _pretty(summary))

    def read_summary(self, metric: str) -> dict[str, Any] | None:
        """The end of the run, judged by a metric; None while it is not there yet."""
        if not self.summary.exists():
            return None
        summary = read_json(self.summary)
        with _blamed(self.summary):
            check_summary(summary, metric)
        return summary


def check_none(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a plan by one that is yet to be found, unless that is asked for."""
    if path.exists() and not overwrite:
        raise InvalidValue(
            f"{path} exists, and a fast run finds a plan of its own; replace it by --overwrite, give another place by "
            "-o, or train with that plan by --plan."
        )


def check_same(path: Path, plan: Plan, *, overwrite: bool) -> None:
    """Refuse to replace a plan by another one, unless that is asked for; an equal one is no loss."""
    if overwrite or not path.exists():
        return
    try:
        found = Plan.load(path).hash()
    except LogradError:
        found = "not a plan"
    if found != plan.hash():
        raise InvalidValue(
            f"{path} exists and is another plan ({found}, the new one is {plan.hash()}); replace it by --overwrite, or "
            "give another place by -o."
        )


def make_folder(path: Path) -> Path:
    """Make a folder with its parents, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"Cannot make the folder {path}: {error.strerror}.") from error
    return path


@contextmanager
def folder_for_results(path: Path) -> Iterator[Path]:
    """Make a folder with its parents; whatever goes wrong inside, those that were made and are still empty go again."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    try:
        yield make_folder(path)
    except BaseException:
        for each in made:
            with suppress(OSError):  # it is not empty, or somebody else was faster
                each.rmdir()
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; what is wrong with it is said with the name of the file."""
    with _blamed(path):
        data = parse(read_file(path, LARGEST))
    if not isinstance(data, dict):
        raise CannotRead(f"Cannot read {path}: an object is needed, and it holds a {type(data).__name__}.")
    return data


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Add the name of the file to a sentence on what is wrong with it."""
    try:
        yield
    except InvalidValue as error:
        raise CannotRead(f"Cannot read {path}: {error}") from None


def _pretty(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
