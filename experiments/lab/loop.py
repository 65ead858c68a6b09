"""Training: `train` starts a run in a folder, `resume` goes on with one after any kind of end, to the same bits."""

from __future__ import annotations

import datetime
import io
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import torch

from lograd import InvalidValue, Plan, __version__
from lograd.errors import LogradWarning, plural

from .config import Config
from .events import Events, open_events
from .fast import find_plan
from .folder import RunFolder, check_none, check_same
from .interrupting import Interrupted, stop_request
from .journal import Journal, Line
from .measuring import ACCURACY, Metric
from .own import Own
from .randomness import mixed, preserved, seed_all
from .ranks import ALONE, Ranks, joined
from .runs import Run, metric_of_run
from .session import Diverged, Session, has_levels, prunes
from .summary import summarise
from .work import BuiltIn, Configured, load_data


@final
@dataclass(frozen=True)
class Status:
    """Where a run is after a step: what a progress display is told."""

    step: int
    total: int
    loss: float
    seconds: float
    """Seconds of training so far, without evaluations and checkpoints."""
    lines: tuple[Line, ...] = ()
    """Metrics that were written at this step."""
    metric: Metric = ACCURACY
    """The metric that the run is judged by."""


Progress = Callable[[Status], None]
OF_RANKS = 2
"""The stream of random numbers that the model draws from, as in dropout, on ranks other than the first."""


def train(
    config: Config,
    folder: str | Path,
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Run:
    """Train a model, and leave the run in a folder.

    Everything that a run needs is read and checked before the folder is touched.  A plan.json that no run has written,
    such as one of `lograd plan`, is not replaced by another plan unless `overwrite` is given.

    Under torchrun, or in a process group over gloo, the ranks share each batch, or in a pipeline the model, and rank 0
    writes the folder.

    A loss that is not finite raises `Diverged`, Ctrl-C `Interrupted` after a checkpoint; in both cases all files are
    whole.

    Args:
        config: the settings.
        folder: where to; it is made, and one that has a run is refused unless `overwrite` is given.
        progress: called after each step.
        tell: called with what was found for a fast run, in one sentence, before it begins.
    """
    with joined() as ranks, ExitStack() as closed:
        with ranks.together():  # before rank 0 writes anything
            target, config = RunFolder(folder), _with_ranks(config, ranks)
            plan = _checked_plan(config, target, overwrite=overwrite)
            events = open_events(config, target)
            closed.enter_context(torch_settings(config.threads))
            found = find_plan(load_work(config)) if config.fast else None
            if found is not None:
                plan = found.plan
                if tell is not None:
                    tell(found.words)
            work = load_work(config, ranks=ranks)
            session = _session(work, plan, ranks)  # a plan that does not fit the model is refused here
            _check_resumable(session, work.config)
            record = _record(session, work, plan)
            if found is not None:
                record["planning"] = {"words": found.words, "seconds": round(found.seconds, 3)}
        with ranks.together():
            journal = _begun(target, plan, record, overwrite=overwrite) if ranks.main else None
            if journal is not None:
                closed.enter_context(closing(journal))
        closed.enter_context(closing(events))
        session.join(ranks, common_statistics=config.common_statistics)
        _run(session, work.config, target, journal, events, progress)
    return Run.load(target.path)


def _checked_plan(config: Config, target: RunFolder, *, overwrite: bool) -> Plan | None:
    """Return the plan of a new run, unless the folder has files that it would replace unasked."""
    if target.has_run and not overwrite:
        target.prepare(overwrite=False)  # says what to do
    plan = config.load_plan()
    _check_backend(config, plan)
    if plan is not None and not target.has_run:
        check_same(target.plan, plan, overwrite=overwrite)
    if config.fast and not target.has_run:
        check_none(target.plan, overwrite=overwrite)
    return plan


def _begun(target: RunFolder, plan: Plan | None, record: dict[str, Any], *, overwrite: bool) -> Journal:
    """Write the first files of a new run, and return its journal."""
    if target.metrics.exists():
        Journal(target.metrics).close()  # refuses to remove a run that another process is training
    target.prepare(overwrite=overwrite)
    if plan is not None:
        plan.save(target.plan)
    elif record["settings"].get("fast"):
        target.plan.unlink(missing_ok=True)  # of a run that is replaced
    target.write_config(record)
    return Journal(target.metrics)


def resume(folder: str | Path, *, expected: Mapping[str, Any] | None = None, progress: Progress | None = None) -> Run:
    """Go on with a run from its last checkpoint, or from the start if it had none; a finished one is just returned.

    Args:
        expected: settings that the run must have; another value is refused.  Only the path of the data may change.
        progress: as for `train`.
    """
    with joined() as ranks, ExitStack() as closed:
        with ranks.together():
            target = RunFolder(folder)
            record = target.read_config()
            config = _agreed(Config.from_json(record["settings"]), dict(expected or {}), record)
            summary = target.read_summary(metric_of_run(config, record).name)
            if summary is not None:
                if summary["status"] == "diverged":
                    raise InvalidValue(
                        f"the run {target} diverged ({summary['reason']}); start anew with other settings."
                    )
                return Run.load(target.path)
            _check_size(config, ranks)
            plan = target.load_plan(record)
            _warn_of_versions(record["versions"])
            events = open_events(config, target)
            closed.enter_context(torch_settings(record["threads"]))
            work = load_work(config, record, ranks)
            work.check_unchanged(record["data"], target)
            session = _session(work, plan, ranks)
            journal = closed.enter_context(closing(Journal(target.metrics))) if ranks.main else None
            size = session.load(target.checkpoint, ranks) if target.checkpoint.exists() else 0
            if journal is not None:
                journal.cut(size)
        closed.enter_context(closing(events))
        session.join(ranks, common_statistics=config.common_statistics)
        _run(session, work.config, target, journal, events, progress)
    return Run.load(target.path)


def _session(work: Configured, plan: Plan | None, ranks: Ranks) -> Session:
    """Return the session of one rank: its weights are those of all ranks, its random numbers its own."""
    cut = None
    if work.config.pipeline is not None:
        from .pipeline import Pipeline, check_plan  # slow to import, and for pipelines alone

        check_plan(plan)
        cut = partial(Pipeline, work=work, ranks=ranks)
    session = Session(work, plan, cut)
    if not ranks.main:
        seed_all(mixed(work.config.seed, OF_RANKS, ranks.rank))
    return session


def _run(
    session: Session,
    config: Config,
    target: RunFolder,
    journal: Journal | None,
    events: Events,
    progress: Progress | None,
) -> None:
    """Make the steps that are left; of several ranks, the one with the journal writes and tells."""
    ranks = session.ranks
    with stop_request() as stop:
        while session.steps < session.total:
            try:
                loss = session.step()
                lines = (*session.guard_lines(), *_due_lines(session, config))
            except Diverged as error:
                _end_diverged(session, target, str(error))
            if journal is not None:
                for line in lines:
                    journal.write(line)
                    events.write(line)
                if progress is not None:
                    progress(Status(session.steps, session.total, loss, session.seconds, lines, session.metric))
            last, number = session.steps == session.total, ranks.largest(stop.number)
            if last or number or session.steps % config.checkpoint_every == 0:
                session.save(target.checkpoint, 0 if journal is None else journal.settle())
            if number and not last:
                ranks.wait()  # a process that ends may take the others with it, and rank 0 is still writing
                raise Interrupted(
                    f"stopped after step {session.steps} of {session.total}; go on with: {_command(ranks)} --resume "
                    f"-o {target}",
                    number,
                )
    counted = session.counted()
    if ranks.main:
        target.write_summary(summarise(session, counted, target.metrics, "finished"))
    ranks.wait()


def _command(ranks: Ranks) -> str:
    return "lograd train" if ranks.size == 1 else f"torchrun --nproc-per-node {ranks.size} -m lograd train"


def _due_lines(session: Session, config: Config) -> Iterator[Line]:
    step, last = session.steps, session.steps == session.total
    if last or step % config.log_every == 0:
        yield session.line()
    every = config.evaluate_every
    if session.metric.tested and (last or (session.ends_epoch if every is None else step % every == 0)):
        judged = session.evaluate()
        name = session.metric.name if config.own else "loss"
        if not math.isfinite(judged[name]):
            raise Diverged(f"the {name} of the evaluation is {judged[name]} after step {step} of {session.total}")
        yield session.test_line(judged)


def _end_diverged(session: Session, target: RunFolder, reason: str) -> NoReturn:
    counted = session.counted()
    if session.ranks.main:
        target.write_summary(summarise(session, counted, target.metrics, "diverged", reason))
    session.ranks.wait()
    raise Diverged(f"{reason}; a lower learning rate than {max(session.rates.peaks):g}, or a warm-up, may help.")


# -- the record of a run --


def _record(session: Session, work: Configured, plan: Plan | None) -> dict[str, Any]:
    return {
        "settings": work.config.to_json(),
        "plan": None if plan is None else plan.hash(),
        "data": work.record(),
        "metric": session.metric.name,
        "higher_is_better": session.metric.higher_is_better,
        "tested": session.metric.tested,
        "parameters": sum(parameter.numel() for parameter in session.model.parameters()),
        "steps_per_epoch": work.steps_per_epoch,
        "total_steps": session.total,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Versions of all that the bits of a run depend on."""
    found = {"lograd": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {"python": platform.python_version()} | {name: str(version) for name, version in found.items()}


def _warn_of_versions(recorded: Mapping[str, str]) -> None:
    changed = [f"{name} {recorded.get(name)} is now {now}" for name, now in versions().items()
               if recorded.get(name) != now]  # fmt: skip
    if changed:
        warnings.warn(
            f"the run was started with other versions ({', '.join(changed)}), so its bits may differ from an "
            "uninterrupted one.",
            LogradWarning,
            stacklevel=3,
        )


def _agreed(config: Config, expected: dict[str, Any], record: Mapping[str, Any]) -> Config:
    """The run's settings; a given one that is another is refused by name, except for where the data are."""
    names = [field.name for field in fields(Config)]
    data = expected.pop("data", None)
    different = []
    if (plan := expected.pop("plan", None)) is not None and Plan.load(plan).hash() != record["plan"]:
        different.append(f"plan (the run has {record['plan'] or 'none'}, {plan} is {Plan.load(plan).hash()})")
    for name, value in expected.items():
        if name not in names:
            raise InvalidValue(f"a run has no setting {name!r}.")
        if value != getattr(config, name):
            different.append(f"{name} (the run has {getattr(config, name)}, given is {value})")
    if different:
        raise InvalidValue(
            f"a run is resumed with its own settings, and these differ: {', '.join(different)}; leave them out, or "
            "start anew in another folder."
        )
    return config if data is None else config.with_data(str(data))


def load_work(config: Config, record: Mapping[str, Any] | None = None, ranks: Ranks = ALONE) -> Configured:
    """The model and the batches of a run; the record of one that is resumed says where to look for them."""
    if not config.own:
        return BuiltIn(config, load_data(config), ranks)
    if record is None:
        return Own(config, ranks=ranks)
    return Own(config, record["data"].get("folder"), metric_of_run(config, record), ranks)


def _with_ranks(config: Config, ranks: Ranks) -> Config:
    """Return the settings with the number of processes; one that was given and is another is refused."""
    if config.pipeline is not None and ranks.size == 1:
        raise InvalidValue(
            "a pipeline has a stage on each rank, and this run has one; start it by torchrun --nproc-per-node 2 -m "
            "lograd train, or leave pipeline out."
        )
    if config.ranks is None and ranks.size > 1:
        return replace(config, ranks=ranks.size)
    _check_size(config, ranks)
    if config.common_statistics and ranks.size == 1:
        raise InvalidValue("common_statistics are for several ranks, and this run has one; leave it out.")
    return config


def _check_size(config: Config, ranks: Ranks) -> None:
    """Refuse another number of processes than the settings have: statistics and random numbers are each one's own."""
    if (wanted := config.ranks or 1) != ranks.size:
        how = "without torchrun" if wanted == 1 else f"by torchrun --nproc-per-node {wanted}"
        raise InvalidValue(
            f"the run has {plural(wanted, 'rank')} and was now started with {ranks.size}; start it {how}, or a new run "
            "in another folder."
        )


def _check_resumable(session: Session, config: Config) -> None:
    """Refuse a user's model whose state no checkpoint can hold, before hours go into it."""
    if not config.own:
        return
    content = io.BytesIO()
    try:
        torch.save(session.state_dict(), content)
        torch.load(io.BytesIO(content.getvalue()), weights_only=True)
    except Exception as error:  # whatever the user's state_dict, pickle or torch's reader raise
        reason = str(error).split("\n")[0][:120]
        raise InvalidValue(
            f"the state of {config.model} must be tensors and plain values, or no run could be resumed; "
            f"saving it raised {type(error).__name__}: {reason}"
        ) from error


def _check_backend(config: Config, plan: Plan | None) -> None:
    """Sparse products are for pruned gradients, integer ones for levels; without any they are a misunderstanding."""
    if (
        config.backend in ("sparse", "auto")
        and not prunes(plan)
        and not (config.backend == "auto" and has_levels(plan))
    ):
        raise InvalidValue(
            f"backend {config.backend!r} is for gradients that are pruned, and this run prunes none; leave it out, or "
            "give a plan or recipe that prunes, such as prune85."
        )
    if config.backend == "integer" and not has_levels(plan):
        raise InvalidValue(
            "backend 'integer' is for operands that are levels, and this run has none; leave it out, or give a recipe "
            "such as int6-full."
        )


@contextmanager
def torch_settings(threads: int | None) -> Iterator[None]:
    """The number of threads of a run, and random states of its own; all as before at the end."""
    before = torch.get_num_threads()
    with preserved():
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before)
