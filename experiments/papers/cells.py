"""Cells, the pieces of an experiment whose results are kept, and the folder that keeps them.

A cell is a value: a config with a seed that is trained, or a measurement with its settings.  A finished cell is one
JSON file with settings, versions, commit and what was found; tables are drawn from these files and from nothing else.
So an experiment that was stopped goes on where it was: finished cells are read, and an interrupted run is resumed.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from lograd import InvalidValue, Plan, __version__
from lograd.environment import machine
from lograd.files import replace_file

from ..lab import Config, preserved, train

VERSION = 1
PLAN_HASH = "plan_hash"
"""The setting that tells plans of one name apart; cells from before it was kept lack it, and are taken as they are."""
Found = dict[str, Any]
"""The result of a cell: plain values."""


class Cell(ABC):
    """One piece of work with a result.

    Attributes:
        name: of its file; no two cells of an experiment have the same.
        paper: the number that the paper prints for it, if it prints one.
    """

    name: str
    paper: float | None

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that the result depends on, as plain values; a finished cell of other settings is not taken for it."""

    @abstractmethod
    def work_out(self, folder: Path) -> Found:
        """Do the work, and return what was found; what it has to keep on the way is kept in the folder."""


@final
@dataclass(frozen=True)
class Trained(Cell):
    """A cell that trains; a run that diverges is a result too.

    Args:
        name: of the run's folder, and of the cell's file.
        config: the settings of the run, with its seed.
        paper: the number that the paper prints.
    """

    name: str
    config: Config
    paper: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        plan = self.config.load_plan() if self.config.plan is not None else None
        return self.config.to_json() | ({} if plan is None else {PLAN_HASH: plan.hash()})

    def work_out(self, folder: Path) -> Found:
        return train(self.config, folder / self.name)


@final
@dataclass(frozen=True)
class Measured(Cell):
    """A cell that is a measurement: a function that returns plain values.

    Args:
        name: of the cell's file.
        given: its settings.
        measure: does the work; torch's random state is its own, and has the same seed each time.
        threads: of torch; None leaves its own number.
        paper: the number that the paper prints.
    """

    name: str
    given: Mapping[str, Any]
    measure: Callable[[], Found] = field(compare=False)
    threads: int | None = None
    paper: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.given)

    def work_out(self, folder: Path) -> Found:
        with preserved(self.threads):
            torch.manual_seed(0)
            return self.measure()


@final
class CellFolder:
    """The folder of an experiment: a JSON file for each finished cell, and the runs of the cells that are trained."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """Return where a cell of that name is kept when it is finished."""
        return self.path / f"{name}.cell.json"

    @property
    def names(self) -> list[str]:
        """The finished cells, sorted."""
        return sorted(path.name.removesuffix(".cell.json") for path in self.path.glob("*.cell.json"))

    def record(self, name: str) -> dict[str, Any] | None:
        """Return all that the file of a cell says; None if the cell is not finished."""
        path = self.file(name)
        found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return found

    def found(self, name: str) -> Found | None:
        """Return the result of a cell; None if it is not finished."""
        record = self.record(name)
        return None if record is None else record["found"]

    def keep_plan(self, name: str, plan: Plan) -> str:
        """Write the plan of a run into the folder, and return its path; another plan of that name is refused."""
        path = self.path / f"{name}.json"
        if not path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            plan.save(path)
        elif (found := Plan.load(path).hash()) != plan.hash():
            raise InvalidValue(
                f"{path} is another plan ({found}) than {name!r} has now ({plan.hash()}), so runs in that folder are "
                "not those asked for; give another folder by --runs."
            )
        return str(path)

    def take(self, path: Path) -> int:
        """Take the finished cells of a file of results that are not finished here, and return how many these are."""
        records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get("cells", [])
        new = [record for record in records if not self.file(record["name"]).exists()]
        for record in new:
            self._write(record)
        return len(new)

    def finish(self, cell: Cell) -> Found:
        """Return the result of a cell, worked out if it is not there; a finished one of other settings is refused."""
        now = _plain(cell.settings)
        if (record := self.record(cell.name)) is not None:
            _check_same(self.file(cell.name), record["settings"], now)
            kept: Found = record["found"]
            return kept
        start = time.perf_counter()
        self.path.mkdir(parents=True, exist_ok=True)
        found: Found = _plain(cell.work_out(self.path))
        self._write(
            {
                "lograd_cell": VERSION, "name": cell.name, "settings": now, "paper": cell.paper,
                "versions": versions(), "machine": machine(), "commit": commit(),
                "seconds": round(time.perf_counter() - start, 1), "found": found,
            }
        )  # fmt: skip
        return found

    def _write(self, record: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        replace_file(self.file(record["name"]), f"{text}\n".encode())


def versions() -> dict[str, str]:
    """Return the versions of all that the bits of a run depend on."""
    found = {"python": platform.python_version(), "lograd": __version__, "torch": torch.__version__}
    return {name: str(version) for name, version in (found | {"numpy": np.__version__}).items()}


def _check_same(path: Path, had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a finished cell that was made with other settings; those that runs no longer have do not count."""
    different = [
        f"{name} (it has {had.get(name)}, given is {value})"
        for name, value in now.items()
        if (had.get(name) or None) != (value or None) and not (name == PLAN_HASH and name not in had)
    ]
    if different:
        raise InvalidValue(
            f"the finished cell {path} was made with other settings, and these differ: {', '.join(different)}; give "
            "another --runs, and another --results if it was taken from there."
        )


def _plain(value: Any) -> Any:
    """Return the value as JSON holds it: lists for tuples, and nothing for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def commit() -> str | None:
    """Return the commit of this checkout; None where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), "ls-files", "--error-unmatch", Path(__file__).name]
    try:
        subprocess.run(command, capture_output=True, timeout=5, check=True)
        found = subprocess.run(
            [*command[:3], "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
