"""`lograd.accelerate`: a faster training step from one call, or a sentence that says why not.

It times methods in each layer, and goes on where they gain something: it profiles the model, plans for the most
progress per second, times the plan against the plain model, and attaches it with a guard.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .attachment import Guard, Handle, attach
from .attachment.guard import check_guard
from .errors import InvalidValue, plural
from .formats.values import check_width
from .plan import Plan
from .profiles import Profile
from .profiles.loss import LossFunction, loss_of
from .profiles.methods import DENSE, check_methods, name_of
from .profiles.minibatch import LEAST_BATCHES
from .profiles.noise import check_plain
from .profiles.optimizer import PROGRESS, WOULD_SAVE, Goal
from .profiles.planner import keep_patterns
from .profiles.profiler import check_kinds, profile_timed, restored
from .profiles.screening import WORTH, WORTH_NOISE, Screened, screen
from .profiles.timing import Compared, check_device, compared, treatable
from .report.progress import shown, tracked

BATCHES = 8
"""Batches of the profile, unless told otherwise."""
WARM_UP = 16
"""Steps that are made before the profile and taken back, unless told otherwise."""
RATE = 1e-3
"""The learning rate of these steps, by Adam."""
FEW = ("int8", "prune85", "prune95")
"""The methods that are timed unless told otherwise.

Integers of fewer bits add more noise, and take as long as 8 bits on CPUs with VNNI.  They are faster on others, where
they have to be asked for.
"""
MOST_NAMED = 3
"""Methods that are named in what is said of a plan."""
LEAST_GAIN = 0.03
"""A plan that saves a smaller share of the step is not attached: a timing cannot tell it from nothing."""
LEAST_BOUND = 0.06
"""The search ends where the fastest plan of all saves a smaller share: one with little noise saves less, and the search
itself takes the time of 70 to 100 steps."""
COMPARED = 2
"""Steps that are timed before, with and after the plan."""


def accelerate(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction | None = None,
    *,
    noise: float | None = None,
    steps: int = BATCHES,
    warm_up: int = WARM_UP,
    seed: int = 0,
    keep: str | Iterable[str] = (),
    methods: Iterable[str] | None = None,
    guard: bool | Guard = True,
    quiet: bool = False,
    progress: bool | None = None,
) -> Handle:
    """Attach the plan with the most progress per second, found by measurement; return its handle.

    The model is trained as before, with `handle.step()` after each optimizer step.  What was found is printed to
    standard error: the expected speed, what is done to how many layers, and what noise it adds.  Where nothing makes
    the step faster by more than a few percent, it says so, and the handle's plan leaves every layer alone.

    The measurement takes as long as 70 to 100 plain steps for a network of 20 layers, or 12 to 47 where nothing is
    faster.  Where that is faster, integer convolutions leave images channels-last (`Plan.channels_last`).

    Args:
        model: on the CPU, in the mode in which it trains, without an attached plan.
        batches: any iterable, such as a DataLoader; `steps` batches are taken, and 3 are needed.
        loss_fn: as for `lograd.profile`.
        noise: the most added variance, in units of the minibatch's own, for the fastest plan within it; None plans for
            progress, 1 / (time (1 + noise)).
        steps: batches of the profile.
        warm_up: steps of Adam on these batches that are made before the measurement and taken back after it.  A
            network that has not learned anything passes noise on far more than one that has begun to; the guard keeps
            layers as they are until then.  0 measures at the weights of now, as for a model that is trained already.
        seed: of the random numbers of the plan.
        keep: layers that are left alone, as for `Profile.plan`.
        methods: names of the methods to choose from, such as ["int8"]; None for int8, prune85, prune95 and
            sparsities between.
        guard: as for `attach`.
        quiet: print nothing.
        progress: as for `lograd.profile`.
    """
    checked = check_guard(guard)
    plan, words = fastest_plan(
        model, batches, loss_fn, noise=noise, steps=steps, warm_up=warm_up, keep=keep, methods=methods,
        progress=progress,
    )  # fmt: skip
    if not quiet:
        print(f"lograd: {words}", file=sys.stderr)
    return attach(model, plan, seed, guard=checked or False)


def fastest_plan(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction | None = None,
    *,
    noise: float | None = None,
    steps: int = BATCHES,
    warm_up: int = WARM_UP,
    keep: str | Iterable[str] = (),
    methods: Iterable[str] | None = None,
    progress: bool | None = None,
) -> tuple[Plan, str]:
    """Return the plan that `accelerate` attaches, and what it says of it; the arguments are those of `accelerate`.

    A plan without layers is returned where nothing is gained.  The model is restored bit for bit.
    """
    check_width("steps", steps, LEAST_BATCHES, 2**31)
    check_width("warm_up", warm_up, 0, 2**31)
    check_kinds(batches, loss_fn, progress)
    goal = Goal(objective=PROGRESS) if noise is None else Goal(noise)
    kept, names = keep_patterns(keep), check_methods(FEW if methods is None else methods)
    check_plain(model)
    check_device(model)
    eager = torch.compiler.set_stance("force_eager")  # compiled code of the plain model would serve these steps alone
    with shown(progress), restored(model), torch.enable_grad(), eager:
        taken = _of_usual_size(list(islice(batches, steps)))
        if len(taken) < LEAST_BATCHES:
            raise InvalidValue(
                f"accelerate needs at least {LEAST_BATCHES} batches, for the variance between them; got {len(taken)}."
            )
        if not treatable(model):
            return _none("the step stays as it is: it has no layer that lograd can treat.")
        loss = partial(loss_of, model, taken[-1], loss_fn)
        with restored(model):
            pruned = WORTH_NOISE if noise is None and methods is None else WORTH
            first = screen(model, loss, names, kept, LEAST_GAIN, pruned)
        if first is not None and first.gain < LEAST_BOUND:
            return _none(f"the step stays as it is: {_no_gain(first)}")
        _warm_up(model, taken, loss_fn, warm_up)
        return _measured_plan(model, taken, loss_fn, goal, kept, first)


def _of_usual_size(batches: list[Any]) -> list[Any]:
    """Return the batches without remainders of a data set: those that are smaller while at least half have one size.

    Times are taken of the last batch, and the gradient of a small one has more variance.  Where too few would be left,
    remainders come first instead.
    """
    sizes = [_size(batch) for batch in batches]
    most = max(sizes, default=0)
    full = [batch for batch, size in zip(batches, sizes, strict=True) if size == most]
    if 2 * len(full) < len(batches) or len(full) == len(batches):
        return batches
    smaller = [batch for batch, size in zip(batches, sizes, strict=True) if size < most]
    return full if len(full) >= LEAST_BATCHES else [*smaller, *full]


def _size(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 0 where there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next(filter(None, map(_size, parts)), 0)


def _warm_up(model: nn.Module, batches: Sequence[Any], loss_fn: LossFunction | None, steps: int) -> None:
    """Train the model a little."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learned or not steps:
        return
    optimizer = torch.optim.Adam(learned, RATE)
    for step in tracked(range(steps), steps, "warming up"):
        optimizer.zero_grad()
        loss_of(model, batches[step % len(batches)], loss_fn).backward()  # type: ignore[no-untyped-call]
        for parameter in learned:
            if parameter.grad is not None and parameter.grad.is_sparse:  # Adam takes none, such as that of an embedding
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()


def _measured_plan(
    model: nn.Module,
    taken: Sequence[Any],
    loss_fn: LossFunction | None,
    goal: Goal,
    keep: tuple[str, ...],
    first: Screened | None,
) -> tuple[Plan, str]:
    """Return the plan for the model as it is now, and what is said of it.

    Args:
        first: the times of methods; None where they could not be timed, which the profile explains.
    """
    found = profile_timed(model, taken, loss_fn, None if first is None else first.timed)
    lacking = _lacking(found)
    if first is None or lacking:
        return _none(f"the step stays as it is: {lacking}")
    plan = found.plan(noise=goal.noise, objective="progress" if goal.noise is None else None, keep=keep)
    if not plan.layers:
        return _none(f"the step stays as it is: {_untouched(plan)} {_with(found)}")
    layers = treatable(model)
    plan = replace(
        plan, channels_last=first.turned and any(isinstance(layers.get(name), nn.Conv2d) for name in plan.layers)
    )
    with restored(model):
        seconds = compared(model, partial(loss_of, model, taken[-1], loss_fn), plan, COMPARED)
    if seconds.planned > (1 - LEAST_GAIN) * first.shortest * seconds.plain:
        return _none(
            f"the step stays as it is: the best plan takes {1e3 * seconds.planned:.1f} ms, and dense float32 "
            f"{_plainly(seconds.plain, first)} {_with(found)}"
        )
    return plan, _gained(plan, seconds, first)


def _gained(plan: Plan, seconds: Compared, first: Screened) -> str:
    assert plan.expected is not None
    added = plan.expected.total or 0.0
    times = first.shortest * seconds.plain / seconds.planned
    return (
        f"forward and backward take {1e3 * seconds.planned:.1f} ms instead of {_plainly(seconds.plain, first)}, "
        f"{times:.2f} times faster (measured): {_what_is_done(plan)}; predicted to add {added:.2g} of the minibatch's "
        f"variance to the gradient (rho + pi)."
    )


def _what_is_done(plan: Plan) -> str:
    """Return how many layers are treated in which way, the most frequent first."""
    names = Counter(name_of(layer) for layer in plan.layers.values()).most_common()
    parts = [f"{plural(count, 'layer')} with {name}" for name, count in names[:MOST_NAMED]]
    if others := sum(count for _, count in names[MOST_NAMED:]):
        parts.append(f"{plural(others, 'layer')} with others")
    return ", ".join([*parts, *(["images channels-last"] if plan.channels_last else [])])


def _untouched(plan: Plan) -> str:
    """Return why a plan leaves all layers alone."""
    faster = [name for name, reason in plan.kept.items() if WOULD_SAVE in reason]
    if not faster:
        return "no method is faster than dense float32 in any layer that may be treated"
    return (
        f"what is faster than dense float32 adds too much noise, such as in {faster[0]!r}, where {plan.kept[faster[0]]}"
    )


def _plainly(seconds: float, first: Screened) -> str:
    """Return the time of the plain step, and what it would be in its better layout."""
    if first.shortest == 1:
        return f"{1e3 * seconds:.1f} ms"
    shorter = f"{1e3 * first.shortest * seconds:.1f} ms after model.to(memory_format=torch.channels_last)"
    return f"{1e3 * seconds:.1f} ms, or {shorter}"


def _no_gain(first: Screened) -> str:
    """Return why no plan can gain anything, from the times of methods."""
    size = _size_of(len(first.timed.layers[DENSE]))
    if not first.timed.treated:
        return f"no method is faster than dense float32 in any layer that may be treated {size}"
    return (
        f"with the fastest method that may be worth its noise in each layer, it takes {1e3 * first.fastest:.1f} ms, "
        f"and dense float32 {_plainly(first.step, first)}; a search for a plan is worth it from {LEAST_BOUND:.0%} on "
        f"{size}"
    )


def _with(found: Profile) -> str:
    assert found.menus is not None
    return _size_of(len(found.menus.layers))


def _size_of(layers: int) -> str:
    return f"({plural(layers, 'layer')}, {plural(torch.get_num_threads(), 'thread')})."


def _lacking(found: Profile) -> str:
    """Return what the profile lacks for a plan, in a sentence; empty where it lacks nothing."""
    if found.broken:
        return found.broken
    if found.noise is None:
        return "no layer has a weight that learns."
    if found.noise.energies is None or found.minibatch is None or not found.minibatch.unit > 0:
        return "the variance of its minibatches could not be measured."
    if found.menus is None:
        return "the times of its layers could not be measured."
    return ""


def _none(words: str) -> tuple[Plan, str]:
    return Plan(), words
