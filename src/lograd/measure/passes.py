"""Running a model so that gradients can be compared: its loss, its state, and the hooks that see gradients.

Everything in this package that runs a model does it through here: `loss_of` takes any kind of batch, `restored` puts
the model back as it was, `Passes` repeats the same batch from the same state, and `arriving` catches the gradients of
layers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..attachment import Handle, attach
from ..attachment.swap import engine_of
from ..engine.layer import LayerEngine
from ..engine.layers import plain_name, unwrapped
from ..errors import InvalidType, InvalidValue, LogradWarning, sentence
from ..ops import log_histogram
from ..ops.contracts import FLOAT_TYPES
from ..plan import Plan
from ..treatments import Prune, Statistics
from ..treatments.sentence import numbers_of
from .values import TOTAL, VECTORS, GradientVariance, Measured, Minibatch, Values, mean_of

FilterFunction = Callable[[nn.Module, str], bool]
# -- the loss --

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


def length_of(batches: Iterable[Any], most: int) -> int:
    """Return the number of batches, at most so many; where it is not known it counts as the most."""
    try:
        return min(most, len(batches))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # also a loader with a __len__ over a dataset that has none
        return most


# -- state --


def check_kinds(batches: object, loss_fn: object, progress: object) -> None:
    """Refuse arguments of `profile` that are of a wrong type."""
    if progress is not None and not isinstance(progress, bool):
        raise InvalidType(sentence("progress", progress, "True, False or None"))
    if loss_fn is not None and not callable(loss_fn):
        raise InvalidType(
            sentence("loss_fn", loss_fn, "a function, such as torch.nn.functional.cross_entropy, or None")
        )
    if not isinstance(batches, Iterable) or isinstance(batches, Tensor | str | bytes):
        raise InvalidType(sentence("batches", f"an object of type {type(batches).__name__}", "an iterable of batches"))


def check_plain(model: nn.Module, what: str = "noise is") -> None:
    """Refuse a model with an attached plan, which would be measured as well."""
    if any(engine_of(module) is not None for module in model.modules()):
        raise InvalidValue(f"{what} measured on a plain model, and this one has a plan attached; call remove() first.")


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, gradients, modes and the random state on exit, also after an exception.

    The counters, histograms and random keys of an attached plan are restored as well.  State that a model keeps
    elsewhere, such as a counter in a plain attribute, is not known and not restored.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    tables: list[Any] = [table for module in modules for table in (module._parameters, module._buffers)]
    owned = [(table, dict(table)) for table in tables]
    engines = [engine for module in modules if (engine := engine_of(module)) is not None]
    tables += [engine.tensors() for engine in engines]
    tensors = {tensor: tensor.detach().clone() for table in tables for tensor in table.values() if tensor is not None}
    needs = {tensor: tensor.requires_grad for tensor in tensors}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            for table, entries in owned:
                table.clear()
                table.update(entries)
            with torch.no_grad():
                for tensor, before in tensors.items():
                    tensor.copy_(before)
                    tensor.requires_grad_(needs[tensor])
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode


@contextmanager
def attached(
    model: nn.Module, plan: Plan, backend: Any = "auto", seed: int = 0, silent: bool = True
) -> Iterator[Handle]:
    """Attach a plan for some passes; silent, without a word on layers that it does not suit."""
    with warnings.catch_warnings():
        if silent:
            warnings.simplefilter("ignore", LogradWarning)
        with attach(model, plan, seed, backend=backend) as handle:
            yield handle


# -- names and gradients of parameters --


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with their names in the plain model, so that a plan fits before and after `torch.compile`."""
    if not isinstance(model, nn.Module):
        raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
    for name, module in unwrapped(model).named_modules():
        if "_orig_mod" not in module._modules:  # skips the wrapper of torch.compile; the module itself follows
            yield plain_name(name), module


def weight_of(module: nn.Module) -> nn.Parameter | None:
    """Return the module's weight if it is a plain parameter, else None.

    A weight that is computed, as under spectral_norm, is not touched: reading it would compute it once more, and some
    of these computations change buffers.
    """
    return module._parameters.get("weight")


def learned_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, by their names in the plain model."""
    named = unwrapped(model).named_parameters()
    return {plain_name(name): one for name, one in named if one.requires_grad}


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, dense, and zero where none came."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False)
    return gradient.to_dense() if gradient.is_sparse else gradient.detach()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).double()


def energy(tensor: Tensor) -> float:
    """Return |g|^2 of a tensor."""
    flat = _flat(tensor)
    return float(torch.dot(flat, flat))


@final
class Passes:
    """Forward and backward of one model, always from the same state.

    Buffers and PyTorch's random numbers are put back before each pass, so a forward is repeated bit for bit, dropout
    included.  What a model keeps elsewhere than in buffers is not known.

    Args:
        model: the caller restores its state in the end (`restored`).
        loss_fn: as for `lograd.profile`.
        advance: called with 1 after each pass.
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction | None, advance: Callable[[int], None] = lambda count: None
    ) -> None:
        self.model, self.loss_fn, self.advance = model, loss_fn, advance
        self.parameters = learned_parameters(model)
        self._tables = [(module._buffers, dict(module._buffers)) for module in model.modules()]
        self._buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
        self._devices = list({one.device for one in model.parameters() if one.device.type == "cuda"})
        self.take_random_state()

    def take_random_state(self) -> None:
        """Take the random state of now for all passes to come."""
        self._random = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]

    def run(self, batch: Any) -> tuple[float, list[Tensor]]:
        """Return the loss and the gradients of all learned parameters, dense, and zero where none came."""
        self._put_back()
        for parameter in self.parameters.values():
            parameter.grad = None
        loss = loss_of(self.model, batch, self.loss_fn)
        loss.backward()  # type: ignore[no-untyped-call]
        found = [gradient_of(parameter) for parameter in self.parameters.values()]
        for parameter in self.parameters.values():
            parameter.grad = None  # the next pass must not write into what was returned
        self.advance(1)
        return float(loss.detach()), found

    def gradients(self, batch: Any) -> list[Tensor]:
        """Return the gradients alone."""
        return self.run(batch)[1]

    def _put_back(self) -> None:
        first, *others = self._random
        torch.set_rng_state(first)
        for device, state in zip(self._devices, others, strict=True):
            torch.cuda.set_rng_state(state, device)
        for table, entries in self._tables:  # a forward may have bound a name to another tensor
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for buffer, before in self._buffers.items():
                buffer.copy_(before)


# -- squared norms --


class ParameterGroups:
    """The parameters of a model in groups: each weight tensor alone, all vectors together, and everything.

    Args:
        parameters: those that learn, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        tensors = [name for name, one in parameters.items() if one.dim() > 1]
        vectors = [VECTORS] if len(tensors) < len(parameters) else []
        self.names = (*tensors, *vectors, TOTAL)
        self._of = [self.names.index(name if one.dim() > 1 else VECTORS) for name, one in parameters.items()]
        self.elements = self.summed([one.numel() for one in parameters.values()]).astype(np.int64).tolist()

    def summed(self, numbers: Sequence[float] | Values) -> Values:
        """Return sums over the groups of numbers that belong to parameters, the first dimension."""
        each = np.asarray(numbers, dtype=np.float64)
        found = np.zeros((len(self.names), *each.shape[1:]))
        np.add.at(found, self._of, each)
        found[-1] = each.sum(0)
        return found

    def energies(self, gradients: Sequence[Tensor]) -> Values:
        """Return |g|^2 of each group."""
        return self.summed([energy(one) for one in gradients])

    def products(self, ones: Sequence[Tensor], others: Sequence[Tensor]) -> Values:
        """Return <g, h> of each group."""
        pairs = zip(ones, others, strict=True)
        return self.summed([float(torch.dot(_flat(one), _flat(other))) for one, other in pairs])

    def gram(self, draws: Sequence[Sequence[Tensor]]) -> Values:
        """Return <d_r, d_s> of each group for all pairs of draws; its diagonal holds their energies."""
        found = []
        for several in zip(*draws, strict=True):
            matrix = torch.stack([_flat(one) for one in several])
            products = (matrix @ matrix.T).numpy(force=True)
            np.fill_diagonal(products, [energy(one) for one in several])
            found.append(products)
        return self.summed(np.array(found))


class Minibatches:
    """The mean gradient of minibatches and its variance, from one after the other.

    With m_b the mean of the first b gradients, (b - 1) / b |g_b - m_(b-1)|^2 is an unbiased estimate of the variance,
    and for normal gradients these estimates are independent (Helmert's contrasts).  So their mean is V, the usual sum
    of squares over n - 1, and their spread gives its standard error, without a second look at any gradient.
    """

    def __init__(self, groups: ParameterGroups) -> None:
        self.groups = groups
        self.count = 0
        self._mean: list[Tensor] = []
        self._contrasts: list[Values] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradient of one more minibatch."""
        self.count += 1
        if not self._mean:
            self._mean = [one.to(torch.float64, copy=True) for one in gradients]
            return
        moved = []
        for mean, one in zip(self._mean, gradients, strict=True):  # one at a time, for the memory of one in float64
            step = one.double() - mean
            moved.append(energy(step))
            mean += step / self.count
        self._contrasts.append(self.groups.summed(moved) * (self.count - 1) / self.count)

    def variance(self) -> list[Measured]:
        """Return V of each group; it needs three minibatches."""
        means, errors = mean_of(np.array(self._contrasts).T)
        return [Measured(float(mean), float(error)) for mean, error in zip(means, errors, strict=True)]

    @property
    def finite(self) -> bool:
        """True if no gradient had NaN or infinite elements."""
        return bool(np.all(np.isfinite(self._contrasts)))

    def result(self) -> Minibatch:
        """Return variance and signal of each weight tensor and of the whole gradient; it needs three minibatches."""
        columns = zip(self.groups.names, self.groups.elements, self.variance(), self.signal().tolist(), strict=True)
        *tensors, total = (GradientVariance(*column) for column in columns)
        return Minibatch(tuple(tensors), total, self.count)

    def signal(self) -> Values:
        """Return |E g|^2 of each group, without the share of it that is variance."""
        variance = np.array([one.mean for one in self.variance()])
        result: Values = self.groups.energies(self._mean) - variance / self.count
        return result


# -- gradients of layers --


def on_gradient(tensor: Any, act: Callable[[Tensor], Tensor | None]) -> Any:
    """Call `act` with the gradient of a tensor, which it may replace; return the handle that removes the hook."""
    return tensor.register_hook(act)


def countable(gradient: Tensor) -> Tensor:
    """Return the gradient in a type that the operators take: float64 becomes float32."""
    gradient = gradient.detach()
    return gradient if gradient.dtype in FLOAT_TYPES else gradient.float()


class Arrived:
    """The exact gradients that arrive at one layer, one for each time that it runs."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.passed_on = False
        """True if the layer computes dX: its input needs a gradient."""


def arriving(modules: Mapping[str, nn.Module], run: Callable[[], object]) -> dict[str, Arrived]:
    """Return the gradients that arrive at each of some layers.

    Args:
        run: runs forward and backward.
    """
    found = {name: Arrived() for name in modules}
    hooks = [
        module.register_forward_hook(partial(_layer_ran, found[name]), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layer_ran(arrived: Arrived, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    """Put a hook on the gradient of the layer's output; a forward hook."""
    arrived.passed_on |= any(isinstance(one, Tensor) and one.requires_grad for one in (*args, *kwargs.values()))
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, lambda gradient: arrived.gradients.append(_as_treated(module, countable(gradient))))


def _as_treated(module: nn.Module, g: Tensor) -> Tensor:
    """Return a copy of a gradient in the shape in which it is treated: (rows, outputs), or a batch of images."""
    if not isinstance(module, _ConvNd):
        return g.reshape(-1, g.shape[-1]).clone()
    batched = g.dim() == len(module.kernel_size) + 2
    return (g if batched else g.unsqueeze(0)).clone()


@contextmanager
def settling(engines: Mapping[str, LayerEngine], modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let attached layers take the numbers of their gradients from the very gradients that arrive inside.

    Otherwise numbers follow from the step before, and so does the noise that reaches the next layer: in a deep network
    thresholds, and with them the zeros, are what was asked for only after as many steps as there are layers.

    Args:
        engines: of attached layers, that have had statistics once.
        modules: their modules.
    """
    hooks = [
        modules[name].register_forward_hook(partial(_settles, engine))
        for name, engine in engines.items()
        if engine.gradient.has_statistics and engine.gradient.ready
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _settles(engine: LayerEngine, module: nn.Module, args: object, output: object) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        on_gradient(output, partial(_take_numbers, engine))


def _take_numbers(engine: LayerEngine, gradient: Tensor) -> None:
    if not bool(torch.isfinite(gradient).all()) or not bool(gradient.any()):
        return
    statistics = Statistics(log_histogram(countable(gradient)).law())
    for site in engine.gradient.sites.values():
        # Other thresholds depend on more than this gradient: on other layers, or on what BatchNorm has refilled.
        if not any(isinstance(one, Prune) and one != Prune(one.sparsity) for one in site.treatments):
            site.set_numbers(numbers_of(site.treatments, statistics))
