"""The two ways to a profile: run the model on some batches, or look on in the user's own loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidType, InvalidValue, LogradWarning, sentence
from ..formats.values import check_width
from ..report.progress import tracked
from .broken import broken_layers, noted
from .losses import LossFunction, loss_of
from .modules import FilterFunction
from .noise import check_plain, measure
from .observer import Observer
from .profiles import Profile
from .restoring import restored


def observe(
    model: nn.Module,
    every: int = 50,
    *,
    filter_fn: FilterFunction | None = None,
    weight_gradients: bool = True,
    sample: int = 8192,
) -> Observer:
    """A context in which the gradients of a model are counted while the user's own loop trains it.

    Each backward is a step; the first and then every `every`-th is observed, and is in the profile when the next
    forward begins or the context ends.  A profile keeps 256 steps: beyond, every second is dropped and `every`
    doubles.  Nothing about the training changes, but compiled code runs eagerly inside the context, as hooks do not
    reach it.  Under a GradScaler gradients are counted as they are, with the loss scale in them.  The multiply-adds of
    the first step are counted as well (`Profile.work`), unless it runs inside compiled code, a transform or another
    dispatch mode.  NaN and infinite gradients are warned of when the context ends.

    With a plan attached, a layer's gradient is counted as it arrives: after the treatments of the layers behind it and
    before its own.  The gradient of its weight is counted after.

    Args:
        model: any module; DistributedDataParallel and `torch.compile` wrappers are looked through.
        every: of so many steps one is observed.
        filter_fn: `filter_fn(module, name)` says which modules are looked at; by default every Linear, convolution and
            transposed convolution.
        weight_gradients: count the gradients of their weights as well.
        sample: values of each gradient to keep from the last observed step, for Q-Q plots and measured errors.

    ```python
    with lograd.observe(model) as profile:
        for images, labels in loader:
            ...  # forward, backward, optimizer step
    profile.to_html("gradients.html")
    ```
    """
    return Observer(model, every, filter_fn, weight_gradients, sample)


def profile(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: LossFunction | None = None,
    steps: int = 20,
    *,
    filter_fn: FilterFunction | None = None,
    every: int = 1,
    weight_gradients: bool = True,
    sample: int = 8192,
    noise: int = 0,
) -> Profile:
    """Look at the gradients of a model on some batches, and give the model back bit for bit.

    Gradients only: there is no optimizer step.  The model runs in the mode it is in; call `model.train()` first where
    it matters.  Parameters, buffers, `.grad`, modes and the random state are restored, also when `loss_fn` raises, and
    so is an attached plan: its counters and statistics do not see these batches.  NaN and infinite gradients are warned
    of, with layer and step.

    Args:
        model: any module.
        batches: any iterable; at most `steps` are taken, and fewer where it ends sooner.
        loss_fn: for a batch that is a pair `(input, target)`, a tuple or list of two, the loss is
            `loss_fn(model(input), target)`, as with torch's own losses; for any other batch, such as a dict or a tuple
            of three, it is `loss_fn(model, batch)`.  None takes `model(**batch).loss`, as models of transformers
            compute it from a batch with labels.
        steps: batches to run.
        every: of so many steps one is observed.
        filter_fn, weight_gradients, sample: as for `lograd.observe`.
        noise: how often to prune each layer's gradient in the last batch, one layer at a time, and see how far all
            weight gradients move.  `Profile.plan(allocation="noise")` needs it; 2 are enough.  It takes a backward
            each, and the memory of all layers' gradients at once.  No plan may be attached.
    """
    check_width("steps", steps, 1, 2**31)
    if check_width("noise", noise, 0, 2**31):
        check_plain(model)
    if loss_fn is not None and not callable(loss_fn):
        raise InvalidType(
            sentence("loss_fn", loss_fn, "a function, such as torch.nn.functional.cross_entropy, or None")
        )
    if not isinstance(batches, Iterable) or isinstance(batches, Tensor | str | bytes):
        raise InvalidType(sentence("batches", f"an object of type {type(batches).__name__}", "an iterable of batches"))
    observer = Observer(model, every, filter_fn, weight_gradients, sample, own_step=True)
    with restored(model), torch.enable_grad(), observer as result:
        batch = _run(model, tracked(islice(batches, steps), steps, "observing gradients"), loss_fn, observer)
    if batch is None:
        raise InvalidValue("batches must hold at least one batch; it was empty.")
    if not result.steps:
        name, reason = next(iter(result.missed.items()))
        raise InvalidValue(f"a gradient must reach at least one layer; none did (layer {name!r}: {reason}).")
    if result.broken:
        warnings.warn(result.broken, LogradWarning, stacklevel=2)
    if noise and broken_layers(result.layers):
        warnings.warn("noise was not measured, since not all gradients are finite.", LogradWarning, stacklevel=2)
    elif noise:
        with restored(model), torch.enable_grad():
            show = partial(tracked, what="measuring noise", unit="measurement")
            result.noise = measure(model, result.layers, partial(loss_of, model, batch, loss_fn), noise, show)
        if result.noise is None:
            warnings.warn("noise was not measured: no layer has a weight that learns.", LogradWarning, stacklevel=2)
    return result


def _run(model: nn.Module, batches: Iterable[Any], loss_fn: LossFunction | None, observer: Observer) -> Any:
    """Forward and backward of each batch; returns the last one, None without any."""
    parameters = list(model.parameters())
    batch = None
    for step, batch in enumerate(batches):
        for parameter in parameters:
            parameter.grad = None
        with nullcontext() if step else observer.work:  # the first step is counted
            loss = loss_of(model, batch, loss_fn)
            loss.backward()  # type: ignore[no-untyped-call]
        observer.result.loss = noted(observer.result.loss, step, float(loss.detach()))
    return batch
