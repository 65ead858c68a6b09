"""Cells, the pieces of an experiment whose results are kept, and the folder that keeps them.

A cell is a value: a config with a seed that is trained, or a measurement with its settings.  A finished cell is one
JSON file with settings, versions, commit and what was found; tables are drawn from these files and from nothing else.
So an experiment that was stopped goes on where it was: finished cells are read, and an interrupted run is resumed.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from os.path import basename
from pathlib import Path
from typing import Any, final

from lograd import InvalidValue, Plan
from lograd.files.atomic import CannotRead, replace_file
from lograd.files.checks import check_object
from lograd.report.environment import commit, machine

from ..lab import Config, Diverged, Run, resume, train
from ..lab.folder import RunFolder, make_folder, read_json
from ..lab.loop import Progress, torch_settings, versions
from ..lab.ranks import ALONE, Ranks

VERSION = 1
FIELDS = ("lograd_cell", "name", "settings", "paper", "versions", "machine", "commit", "seconds", "found")
PLAN_HASH = "plan_hash"
"""The setting that tells plans of one name apart; cells from before it was kept lack it, and are taken as they are."""
Found = dict[str, Any]
"""The result of a cell: plain values."""


class Cell(ABC):
    """One piece of work with a result.

    Attributes:
        name: of its file; no two cells of an experiment have the same.
        paper: the number that the paper prints for it, if it prints one.
        shared: a finished cell of another experiment in the same folder of runs is as good, if it has these settings.
    """

    name: str
    paper: float | None
    shared: bool = False

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that the result depends on, as plain values; a finished cell of other settings is not taken for it."""

    @abstractmethod
    def work_out(self, folder: Path, progress: Progress | None = None, ranks: Ranks = ALONE) -> Found:
        """Do the work, and return what was found; what it has to keep on the way is kept in the folder.

        Under torchrun each rank calls it, and all get the same.
        """

    def is_like(self, work: Path) -> bool:
        """Return True if another cell of the same settings, which has left its work there, is as good as this one."""
        return False


@final
@dataclass(frozen=True)
class Trained(Cell):
    """A cell that trains: its run is an ordinary run folder beside the cell's file, its result the run's summary.

    The result also has the evaluations, under "tests", so that nothing is drawn from a run folder, which stays behind
    when results move to another machine.

    A run that diverges is a result too: its summary says so.

    Args:
        name: of the run folder, and of the cell's file.
        config: the settings of the run, with its seed.
        paper: the number that the paper prints.
        shared: take the result of a cell like this one of another experiment; its run stays there.
    """

    name: str
    config: Config
    paper: float | None = None
    shared: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        given = self.config.to_json()
        names = {name: given[name] and basename(given[name]) for name in ("data", "plan")}  # folders may move
        plan = self.config.load_plan() if self.config.plan is not None else None
        return given | names | ({} if plan is None else {PLAN_HASH: plan.hash()})

    def is_like(self, work: Path) -> bool:
        run = RunFolder(work)
        if not run.has_run or self.config.data is None:
            return False
        data = run.read_config()["settings"]["data"]  # of which settings of cells have the name alone
        return Path(data).resolve() == Path(self.config.data).resolve()

    def work_out(self, folder: Path, progress: Progress | None = None, ranks: Ranks = ALONE) -> Found:
        path = folder / self.name
        # Rank 0 looks for all: it begins to write the folder while others may still look.
        status = ranks.from_main(lambda: Run.load(path, metrics=False).status if RunFolder(path).has_run else None)
        try:
            if status is None:
                train(self.config, path, progress=progress)
            elif status != "diverged":
                expected = replace(self.config, ranks=ranks.size)
                resume(path, expected=asdict(expected), progress=progress)
        except Diverged:
            ranks.wait()  # the summary is there now
        run = Run.load(path)
        assert run.summary is not None, "a run that has ended has a summary"
        kept = ("step", "loss", run.metric.name)
        return run.summary | {"tests": [{name: line[name] for name in kept} for line in run.tests]}


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

    def work_out(self, folder: Path, progress: Progress | None = None, ranks: Ranks = ALONE) -> Found:
        return ranks.from_main(self._measured)  # other ranks have nothing to add

    def _measured(self) -> Found:
        import torch

        with torch_settings(self.threads):
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
        """Where a cell of that name is kept when it is finished."""
        return self.path / f"{name}.cell.json"

    @property
    def names(self) -> list[str]:
        """The finished cells, sorted."""
        return sorted(path.name.removesuffix(".cell.json") for path in self.path.glob("*.cell.json"))

    @property
    def begun(self) -> bool:
        """Return True if the folder has a finished cell or a run."""
        return bool(self.names) or any(self.path.glob("*/config.json"))

    def record(self, name: str) -> dict[str, Any] | None:
        """All that the file of a cell says; None if the cell is not finished."""
        path = self.file(name)
        if not path.exists():
            return None
        record = read_json(path)
        try:
            _check_record(record)
            if record["name"] != name:
                raise InvalidValue(f"a cell by the name {name!r} is needed, and this is {record['name']!r}.")
        except InvalidValue as error:
            raise CannotRead(f"Cannot read {path}: {error}") from None
        return record

    def keep_plan(self, name: str, plan: Plan) -> str:
        """Write the plan of a run into the folder, and return its path; another plan of that name is refused."""
        path = make_folder(self.path) / f"{name}.json"
        if not path.exists():
            plan.save(path)
        elif (found := Plan.load(path).hash()) != plan.hash():
            raise InvalidValue(
                f"{path} is another plan ({found}) than {name!r} has now ({plan.hash()}), so runs in that folder are "
                "not those asked for; give another folder by --runs."
            )
        return str(path)

    def take(self, path: Path) -> int:
        """Take the finished cells of a file of results that are not finished here, and return how many these are.

        Cells may depend on each other, as runs do on a plan: where one is finished here and there with other results,
        nothing is taken.

        Args:
            path: a file that `--results` has written, with all cells of an experiment; older ones have none.
        """
        records = records_of(path)
        had = {record["name"]: self.found(record["name"]) for record in records}
        for record in records:
            if had[record["name"]] not in (None, record["found"]):
                raise InvalidValue(
                    f"the cell {record['name']!r} has one result in {self.file(record['name'])} and another in {path}; "
                    "give another --runs or another --results."
                )
        new = [record for record in records if had[record["name"]] is None]
        for record in new:
            self._write(record)
        return len(new)

    def found(self, name: str) -> Found | None:
        """The result of a cell; None if it is not finished."""
        record = self.record(name)
        return None if record is None else record["found"]

    def finish(self, cell: Cell, progress: Progress | None = None, ranks: Ranks = ALONE) -> Found:
        """The result of a cell, which is worked out if it is not there; a finished one of other settings is refused."""
        record = ranks.from_main(lambda: self.record(cell.name))
        if record is not None:
            _check_same(self.file(cell.name), record["settings"], _plain(cell.settings))
            found: Found = record["found"]
            return found
        if cell.shared and (other := ranks.from_main(lambda: self._elsewhere(cell))) is not None:
            self._write(other, ranks)
            return self.finish(cell, progress, ranks)
        make_folder(self.path)
        start = time.perf_counter()
        found = _plain(cell.work_out(self.path, progress, ranks))
        values = (
            VERSION, cell.name, _plain(cell.settings), cell.paper, versions(), machine(), commit(),
            round(time.perf_counter() - start, 1), found,
        )  # fmt: skip
        self._write(dict(zip(FIELDS, values, strict=True)), ranks)
        return found

    def _write(self, record: Mapping[str, Any], ranks: Ranks = ALONE) -> None:
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        if ranks.main:
            make_folder(self.path)
            replace_file(self.file(record["name"]), f"{text}\n".encode())
        ranks.wait()

    def _elsewhere(self, cell: Cell) -> dict[str, Any] | None:
        """Return the record of a cell with the same settings from a folder beside this one, under the name of this."""
        wanted = _plain(cell.settings)
        for path in sorted(self.path.parent.glob("*/*.cell.json")):
            if path.parent == self.path:
                continue
            try:
                record = CellFolder(path.parent).record(path.name.removesuffix(".cell.json"))
            except CannotRead:
                continue  # that of another experiment, which will say so
            if record is not None and record["settings"] == wanted and cell.is_like(path.parent / record["name"]):
                return record | {"name": cell.name, "paper": cell.paper}
        return None


def records_of(path: Path) -> list[dict[str, Any]]:
    """Return the finished cells in a file of results; older files have none."""
    records = read_json(path).get("cells", [])
    try:
        if not isinstance(records, list):
            raise InvalidValue('its "cells" must be a list.')
        for record in records:
            _check_record(record)
    except InvalidValue as error:
        raise CannotRead(f"Cannot read {path}: {error}") from None
    return records


def _check_record(record: Any) -> None:
    """Refuse what is not the record of a finished cell."""
    check_object("a cell", record, FIELDS)
    if record["lograd_cell"] != VERSION or not isinstance(record["found"], dict):
        raise InvalidValue(f"a cell of version {VERSION} with what it has found is needed.")
    if not isinstance(record["name"], str) or basename(record["name"]) != record["name"]:
        raise InvalidValue(f"a cell needs the name of a file, and has {record['name']!r}.")


def _check_same(path: Path, had: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a finished cell that was made with other settings."""
    different = [
        f"{name} (it has {had.get(name)}, given is {now.get(name)})"
        for name in dict.fromkeys([*had, *now])
        if had.get(name) != now.get(name) and not (name == PLAN_HASH and name not in had)
    ]
    if different:
        raise InvalidValue(
            f"the finished cell {path} was made with other settings, and these differ: {', '.join(different)}; give "
            "another --runs, and another --results if it was taken from there."
        )


def _plain(value: Any) -> Any:
    """The value as JSON holds it: lists for tuples, and nothing for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
