"""`lograd.profile`: runs a model on some batches, observes its gradients, and restores the model bit for bit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from ..errors import InvalidType, InvalidValue, LogradWarning, sentence
from ..formats.values import check_width
from ..progress import progress_shown, tracked
from .model_profile import Profile
from .noise import measure_noise
from .observer import Observer
from .passes import (
    FilterFunction,
    LossFunction,
    Minibatches,
    ParameterGroups,
    Passes,
    check_kinds,
    check_plain,
    gradient_of,
    learned_parameters,
    length_of,
    loss_of,
    restored,
)
from .records import NonFiniteLoss, nonfinite_layers
from .timing import check_device, check_methods, measure_menus
from .values import LEAST_BATCHES
from .work import WorkCounter

SAMPLE = 8192
"""Values that are kept of each layer's last gradient, unless told otherwise."""


def profile(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction | None = None,
    steps: int = 20,
    *,
    filter_fn: FilterFunction | None = None,
    every: int = 1,
    weight_gradients: bool = True,
    sample: int = SAMPLE,
    noise: int = 0,
    progress: bool | None = None,
    times: bool = False,
    methods: Iterable[str] | None = None,
) -> Profile:
    """Observe the gradients of a model on some batches, and restore the model bit for bit.

    There is no optimizer step.  The model runs in the mode that it is in; call `model.train()` first if that matters.
    Parameters, buffers, `.grad`, modes and the random state are restored, also when `loss_fn` raises, and so are the
    counters and statistics of an attached plan.  A LogradWarning names layer and step of NaN and infinite gradients.

    Args:
        model: any module.
        batches: any iterable; at most `steps` batches are taken.
        loss_fn: for a batch that is a pair `(input, target)`, a tuple or list of two, the loss is
            `loss_fn(model(input), target)`, as with torch's own losses; for any other batch, such as a dict or a tuple
            of three, it is `loss_fn(model, batch)`.  None takes `model(**batch).loss`, as models of the transformers
            library compute it from a batch with labels.
        steps: batches to run.
        every: observe one of so many steps.
        filter_fn, weight_gradients, sample: as for `lograd.observe`.
        noise: backward passes of the last batch for each layer, in which that layer alone is pruned, to measure how far
            all weight gradients move; 2 are enough for `Profile.plan(allocation="noise")`.  It takes the memory of all
            layers' gradients at once.  No plan may be attached.  From 3 batches on, the variance of the gradient over
            them is estimated too (`Profile.minibatch`), in the memory of one gradient in float64.
        progress: None shows a bar on a terminal; True also prints lines elsewhere, as in a job's log; False is silent.
        times: also measure on the last batch what methods cost in each layer, and their noise (`Profile.menus`), in 8
            steps for each method and 1 for each layer.  The model must be on the CPU.
        methods: those to time (`measure.timing.method`), such as ["int8-full", "prune90"]; None for the usual ones.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> batches = [(torch.randn(16, 4), torch.randn(16, 2)) for _ in range(3)]
    >>> profile(model, batches, torch.nn.functional.mse_loss)
    Profile(2 layers, 3 steps, each observed)
    """
    check_width("steps", steps, 1, 2**31)
    if check_width("noise", noise, 0, 2**31):
        check_plain(model)
    check_kinds(batches, loss_fn, progress)
    names = _methods_to_time(model, times, methods)
    counter = WorkCounter(model)
    observer = Observer(model, every, filter_fn, weight_gradients, sample, counter)
    with progress_shown(progress), restored(model), torch.enable_grad(), observer as result:
        minibatches = Minibatches(ParameterGroups(learned_parameters(model))) if noise else None
        taken = tracked(islice(batches, steps), length_of(batches, steps), "observing gradients")
        batch = _run(model, taken, loss_fn, counter, result, minibatches)
    _check_observed(batch, result)
    problems = []
    if minibatches is not None:
        with progress_shown(progress), restored(model), torch.enable_grad():
            problems.append(_measure_noise(Passes(model, loss_fn), batch, result, noise, minibatches))
    if names:
        with progress_shown(progress), restored(model), torch.enable_grad():
            problems.append(_measure_times(Passes(model, loss_fn), batch, result, names))
    for problem in filter(None, [result.broken, *problems]):
        warnings.warn(problem, LogradWarning, stacklevel=2)
    return result


def _check_observed(batch: object, result: Profile) -> None:
    """Refuse batches of which nothing was observed."""
    if batch is None:
        raise InvalidValue("batches must hold at least one batch; it was empty.")
    if not result.steps:
        name, reason = next(iter(result.missed.items()))
        raise InvalidValue(f"a gradient must reach at least one layer; none did (layer {name!r}: {reason}).")


def _measure_noise(passes: Passes, batch: Any, result: Profile, repeats: int, minibatches: Minibatches) -> str:
    """Store in the profile how noise travels, and its unit; return a sentence where that is not possible."""
    if nonfinite_layers(result.layers):
        return "noise was not measured, since not all gradients are finite."
    show = partial(tracked, what="measuring noise", unit="measurement")
    parameters = list(passes.parameters.values())
    run = partial(passes.gradients, batch)
    result.noise = measure_noise(passes.model, result.layers, parameters, run, repeats, show)
    if result.noise is None:
        return "noise was not measured: no layer has a weight that learns."
    if minibatches.count >= LEAST_BATCHES and minibatches.finite:
        result.minibatch = minibatches.result()
    return ""


def _methods_to_time(model: nn.Module, times: bool, methods: Iterable[str] | None) -> tuple[str, ...]:
    """Return the methods that are to be timed, none without `times`; refuse what cannot be."""
    if not isinstance(times, bool):
        raise InvalidType(sentence("times", times, "True or False"))
    names = check_methods(methods)
    if not times:
        if methods is not None:
            raise InvalidValue("methods are those to be timed; give times=True with them.")
        return ()
    check_plain(model, "times are")
    check_device(model)
    return names


def _measure_times(passes: Passes, batch: Any, result: Profile, methods: tuple[str, ...]) -> str:
    """Time methods in each layer and store the menus in the profile; return a sentence where that is not possible."""
    if nonfinite_layers(result.layers):
        return "times were not measured, since not all gradients are finite."
    loss = partial(loss_of, passes.model, batch, passes.loss_fn)
    result.menus = measure_menus(passes, batch, loss, result.layers, methods)
    return "" if result.menus is not None else "times were not measured: no layer can be treated."


def _run(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction | None,
    counter: WorkCounter,
    result: Profile,
    minibatches: Minibatches | None,
) -> Any:
    """Run forward and backward of each batch; return the last batch, None without any."""
    parameters = list(model.parameters())
    learned = list(learned_parameters(model).values())
    batch = None
    for step, batch in enumerate(batches):
        for parameter in parameters:
            parameter.grad = None
        with nullcontext() if step else counter:  # the first step is counted
            loss = loss_of(model, batch, loss_fn)
            loss.backward()  # type: ignore[no-untyped-call]
        if not math.isfinite(value := float(loss.detach())):
            first = result.loss or NonFiniteLoss(step, "NaN" if math.isnan(value) else "infinite", 0)
            result.loss = replace(first, steps=first.steps + 1)
        if minibatches is not None:
            minibatches.add([gradient_of(parameter) for parameter in learned])
    return batch
