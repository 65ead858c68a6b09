"""The loss of a batch, by a loss function of any of the supported forms or by the model itself.

A loss function that does not fit its batches is answered by one sentence that lists the forms.
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
    """Return the loss of a batch as a scalar that requires a gradient.

    Args:
        batch: a pair `(input, target)`, or anything else that `loss_fn` takes.
        loss_fn: called as `loss_fn(model(input), target)` for a pair, and as `loss_fn(model, batch)` for any other
            batch.  None takes the loss that the model itself returns for a dict of its arguments.
    """
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
    """Return `model(**batch).loss`, as the models of the transformers library compute it."""
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
    """Turn an exception into a list of the supported forms, if the loss function does not take these arguments."""
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
    """Return True if a function refused its own arguments: it takes another number of them, or other types."""
    trace = error.__traceback__
    inside = []
    while trace is not None:
        inside.append(trace.tb_frame)
        trace = trace.tb_next
    if isinstance(error, TypeError) and len(inside) == 2:  # only the two frames of this file: the call itself failed
        return True
    parts = set(map(id, model.modules()))
    running = [frame for frame in inside if frame.f_code.co_name != "__getattr__"]
    if any(id(frame.f_locals.get("self")) in parts for frame in running):  # in the forward of the model
        return False
    text = str(error)
    if "'Tensor' object is not callable" in text:  # loss_fn(model, batch), called with an output
        return isinstance(arguments[0], Tensor)
    names = [type(one).__name__ for one in arguments if not isinstance(one, Tensor)]
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return "a tensor"
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"
