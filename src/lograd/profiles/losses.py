"""From a batch to its loss: pairs as torch's losses take them, any other batch as the user's function does.

Whoever gives a loss function of the wrong form learns in one sentence which forms there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..errors import InvalidType, InvalidValue

LossFunction = Callable[..., Any]
FORMS = (
    "for a pair (input, target) it is called as loss_fn(model(input), target), for any other batch as "
    "loss_fn(model, batch), such as lambda model, batch: cross_entropy(model(batch['x']), batch['y']), and without one "
    "the loss is model(**batch).loss"
)


def loss_of(model: nn.Module, batch: Any, loss_fn: LossFunction | None) -> Tensor:
    """The loss of a batch, checked: a scalar that depends on something that learns."""
    if loss_fn is None:
        loss, what = _own_loss(model, batch), "the loss in the output of the model"
    else:
        loss, what = _given_loss(model, batch, loss_fn), "what loss_fn returns"
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InvalidType(f"{what} must be a tensor with one element, the loss; got {got}.")
    if not loss.requires_grad:
        raise InvalidValue("the loss must depend on a parameter that requires a gradient; this one does not.")
    return loss.reshape(())


def _given_loss(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Any:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        output = model(batch[0])
        with _forms_said(model, batch, (output, batch[1])):
            return loss_fn(output, batch[1])
    with _forms_said(model, batch, (model, batch)):
        return loss_fn(model, batch)


def _own_loss(model: nn.Module, batch: Any) -> Any:
    """What models of transformers do: the batch has the names of the forward's arguments, and the output has a loss."""
    if not isinstance(batch, Mapping):
        raise InvalidType(
            f"without a loss function a batch must be a dict of the model's arguments; got {_described(batch)}; give "
            f"loss_fn: {FORMS}."
        )
    output = model(**batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise InvalidValue(
            f"the model returned no loss, but an object of type {type(output).__name__}; put the labels into the batch "
            "under the name that its forward has for them, such as 'labels', or give a loss function."
        )
    return loss


@contextmanager
def _forms_said(model: nn.Module, batch: Any, arguments: tuple[Any, Any]) -> Iterator[None]:
    """Say which forms a loss function may have, where it failed because it was not made for these arguments."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        if not _refuses(error, model, arguments):
            raise
        text = str(error).split("\n")[0].rstrip(".")
        raise InvalidType(
            f"loss_fn does not fit a batch that is {_described(batch)} ({type(error).__name__}: {text}); {FORMS}."
        ) from error


def _refuses(error: Exception, model: nn.Module, arguments: tuple[Any, Any]) -> bool:
    """Whether a function refused its own arguments: it takes another number of them, or complains of their types."""
    trace = error.__traceback__
    inside = []
    while trace is not None:
        inside.append(trace.tb_frame)
        trace = trace.tb_next
    if isinstance(error, TypeError) and len(inside) == 2:  # this file's two frames alone: it was not even entered
        return True
    parts = set(map(id, model.modules()))
    running = [frame for frame in inside if frame.f_code.co_name != "__getattr__"]
    if any(id(frame.f_locals.get("self")) in parts for frame in running):  # in the forward of the model
        return False
    text = str(error)
    if "'Tensor' object is not callable" in text:  # a function of (model, batch) that was given an output
        return isinstance(arguments[0], Tensor)
    names = [type(one).__name__ for one in arguments if not isinstance(one, Tensor)]
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return "a tensor"
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"
