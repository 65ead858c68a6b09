"""The measurements of `./dev bench guard`, one function for each part of a case."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

from torch import Tensor, nn

import lograd
from lograd import Guard, Plan
from lograd.engine.stopwatch import seconds
from lograd.errors import LogradWarning

from ..predictions import Batch, loss_fn
from .band import left_at, limits
from .cases import Case, Settings
from .training import Run, Training

RELEASED = 40
"""The step from which on a quiet run is not to be touched."""
TURN = 10
"""Steps of each handle before it is the other's turn."""
SETTLED, SETTLED_STEPS = 200, 100
"""The step from which on statistics are taken in every tenth step only, and the steps that are timed then."""
ENOUGH = 1e9
"""A budget that no plan exceeds."""


def planted(case: Case, settings: Settings) -> dict[str, Any]:
    """Runs of one planted case: the band of dense ones, and where those with a plan are."""
    steps = settings.steps
    dense = [Training(case, settings, seed).run(steps).losses for seed in range(settings.seeds)]
    others = [left_at(run, limits([one for one in dense if one is not run])) for run in dense]
    found: dict[str, Any] = {"dense": dense, "dense runs that leave the band of the others": others, "runs": []}
    for mode, guard in case.modes.items():
        for seed in range(settings.treated):
            run = Training(case, settings, seed, guard).run(steps)
            row = {"mode": mode, "seed": seed, "left": left_at(run.losses, limits(dense)), "losses": run.losses}
            found["runs"].append(row | _account(run))
            _say(case, {key: value for key, value in found["runs"][-1].items() if key not in ("losses", "changes")})
    return found


def _account(run: Run) -> dict[str, Any]:
    """Return what the guard did in a run; warnings alone without one."""
    if run.guard is None:
        return {"said": run.said}
    changes = [change._asdict() for change in run.guard.changes]
    outside = {one.name: one.outside for one in run.guard.places.values() if one.outside}
    return {
        "said": run.said, "changes": changes, "layers": len(run.guard.places), "waiting": run.waiting,
        "references": run.guard.references, "outside": outside,
    }  # fmt: skip


def quiet(case: Case, settings: Settings) -> dict[str, Any]:
    """A run in which nothing is wrong, and the same without a guard from the step on that has let all layers in."""
    guarded = Training(case, settings, 0, guard=True)
    first = guarded.run(RELEASED)
    assert guarded.handle is not None
    kept = {"model": guarded.model.state_dict(), "optimizer": guarded.optimizer.state_dict()}
    kept = {name: _copied(state) for name, state in kept.items()}
    handle, numbers = guarded.handle.state_dict(), guarded.generator.get_state()
    made = first.guard.made if first.guard is not None else 0
    references = 0 if first.guard is None else first.guard.references
    rest = guarded.run(settings.steps - RELEASED)
    plain = Training(case, settings, 0, guard=False)
    assert plain.handle is not None
    plain.model.load_state_dict(kept["model"])
    plain.optimizer.load_state_dict(kept["optimizer"])
    plain.handle.load_state_dict(handle)  # the guard in it is passed over
    plain.generator.set_state(numbers)
    beside = plain.run(settings.steps - RELEASED)
    equal = [a == b for a, b in zip(rest.losses, beside.losses, strict=True)]
    assert rest.guard is not None
    found = {
        "released": RELEASED, "changes before": made, "changes after": rest.guard.made - made,
        "references before": references, "references after": rest.guard.references - references,
        "waiting": len(rest.guard.waiting), "layers": len(rest.guard.places), "said": first.said + rest.said,
        "steps after": len(equal), "equal": sum(equal),
    }  # fmt: skip
    _say(case, found)
    return found


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    return {key: _copied(value) for key, value in state.items()} if isinstance(state, dict) else state


def cost(case: Case, settings: Settings) -> dict[str, Any]:
    """Seconds of steps with a guard and without one, in turns; all layers are treated in both.

    Statistics are taken often in the first steps of a run and seldom in later ones, so both are timed.
    """
    runs = {name: Training(case, settings, 0, guard) for name, guard in (("without", False), ("with", Guard(ENOUGH)))}
    found: dict[str, Any] = {}
    for phase, steps in (("first", settings.steps), ("settled", SETTLED_STEPS)):
        for run in runs.values():
            run.run(max(SETTLED - run.steps, 0) if phase == "settled" else 0)
        found[phase] = _compared(runs, steps)
        _say(case, {"phase": phase} | {key: value for key, value in found[phase].items() if key != "ratios"})
    return found


def _compared(runs: dict[str, Training], steps: int) -> dict[str, Any]:
    """Return the times of steps of two runs in turns, and how many of the steps took statistics."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    handles = {name: run.handle for name, run in runs.items() if run.handle is not None}
    before = {name: handle.cost.steps for name, handle in handles.items()}
    first = min(run.steps for run in runs.values())
    for _ in range(steps // TURN):
        for name, run in runs.items():
            times[name] += _timed(run)
    turns = [slice(start, start + TURN) for start in range(0, len(times["with"]), TURN)]
    return {
        "steps": [first, first + len(times["with"])],
        "milliseconds": {name: 1e3 * median(values) for name, values in times.items()},
        "mean milliseconds": {name: 1e3 * mean(values) for name, values in times.items()},
        "least milliseconds": {name: 1e3 * min(values) for name, values in times.items()},
        "ratios": [sum(times["with"][turn]) / sum(times["without"][turn]) for turn in turns],
        "statistics": {name: handle.cost.steps - before[name] for name, handle in handles.items()},
    }


def _timed(run: Training) -> Iterator[float]:
    for _ in range(TURN):
        start = seconds()
        run.step()
        yield seconds() - start


def noise(case: Case, settings: Settings) -> dict[str, Any]:
    """The noise that a guard states and the one that is measured, at the weights after some steps."""
    run = Training(case, settings, 0)
    run.run(settings.steps)
    batches = [run.draw(run.generator) for _ in range(12)]
    plan = Plan.uniform(case.recipe)
    measured = lograd.variance(
        run.model, batches, plan, loss_fn, steps=12, treated=4, repeats=4, contributions=False, progress=False
    )  # fmt: skip
    bound, _ = _stated(run.model, batches, plan, ENOUGH)
    stated, inside = _stated(run.model, batches, plan, max(bound, 1e-9))
    rhos = {one.name: one.rho.mean for one in measured.tensors if one.rho is not None}
    worst = max(rhos, key=rhos.__getitem__)
    total = measured.total.rho
    assert total is not None
    found = {"bound": bound, "stated": stated, "inside": inside, "layers": len(plan_layers(run.model, plan)),
             "worst": worst, "worst rho": rhos[worst], "rho": total.mean, "error": total.error}  # fmt: skip
    _say(case, found)
    return found


def plan_layers(model: nn.Module, plan: Plan) -> list[str]:
    """Return the layers that a plan treats."""
    with lograd.attach(model, plan) as handle:
        return list(handle.layers)


def _stated(model: nn.Module, batches: list[Batch], plan: Plan, budget: float) -> tuple[float, int]:
    """Return a guard's figure after some rounds of batches at fixed weights, and the layers that are treated then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogradWarning)
        with lograd.attach(model, plan, backend="dense", guard=Guard(budget, fall_back=False)) as handle:
            for place in range(4 * len(batches)):
                inputs, targets = batches[place % len(batches)]
                loss_fn(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                handle.step()
            assert handle.guard is not None
            found = handle.guard.noise, len(handle.guard.places) - len(handle.guard.waiting)
    model.zero_grad()
    return found


def _say(case: Case, row: dict[str, Any]) -> None:
    print(f"{case.name}, {case.network}, {case.recipe}: {row}", file=sys.stderr, flush=True)
