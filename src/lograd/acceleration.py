"""`lograd.accelerate`: a faster training step from one call, decided in the first steps of the user's own training.

There is no search.  In the first step each layer compares its plain output with rounded ones, and takes the fastest
widths whose error is small.  In the next few steps the model runs plain and with integers in turns; each layer is
timed, and those that are not faster stay as they are.  Rows of gradients (tokens, samples) that are zero, or so small
that dropping them adds hardly any noise, are not multiplied, in layers where most rows are.  Then whole steps are
compared with plain ones in their better layout: where nothing is gained, everything falls back, and one sentence says
why.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from types import TracebackType
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from . import native
from .attachment import Handle, attach
from .attachment.explain import Counters, read_counters
from .attachment.selection import fitting_modules
from .engine.backends import LEAST_WORK
from .engine.layers import (
    reason_not_channels_last,
    reason_not_supported,
    reason_unserved,
    unwrapped,
    work_of_element,
    works_transposed,
)
from .engine.stopwatch import Stopwatch, seconds
from .environment import cpuinfo
from .errors import InvalidType, InvalidValue, LogradWarning, plural, sentence
from .measure.passes import LossFunction, check_kinds, loss_of, restored
from .measure.planner import keep_patterns, matching_layers
from .ops.row_pruning import check_noise
from .plan import LayerPlan, Plan
from .treatments import Rows, apply, both, recipe

VNNI_LINEAR, VNNI_CONVOLUTION = ("int8-full-rows",), ("int8-full",)
"""Widths on CPUs that multiply bytes in one step: fewer bits take as long.  Ranges by row take 2 to 6 % of a step more
than one range, and add a fortieth of its noise to the gradient of a MiniLM that is fine-tuned."""
NARROW_LINEAR, NARROW_CONVOLUTION = ("int6-full-rows", "int8x6-full-rows", "int8-full-rows"), ("int6-full", "int8-full")
"""Widths to try on other CPUs, the fastest first."""
FLOAT32 = "identity"
"""The widths of a layer that stays float32."""
MOST_ERROR = 0.012
"""The largest relative squared error of a layer's output by rounding its operands (docs/accelerate.md has the
trainings behind it)."""
ROUNDS = 2
"""Steps of each kind that are timed; the shorter counts."""
ROW_NOISE = 0.13
"""The share of the allowed noise by which each layer drops rows, relative to the energy of its gradient: what later
layers drop is noise in all layers before them.  In MiniLM 0.02 in each layer added 0.15 of the minibatch's variance."""
MOST_ROWS = 0.6
"""The largest share of rows that may be left for dropping the others to pay."""
MARGIN = 0.03
"""A layer, or the whole step, must be faster by this share: a timing cannot tell less from chance."""
FORGOTTEN = 20
"""Training forwards without a call of `step` after which a user is warned."""


def accelerate(
    model: nn.Module,
    batches: Iterable[Any] | None = None,
    loss_fn: LossFunction | None = None,
    *,
    seed: int = 0,
    keep: str | Iterable[str] = (),
    noise: float = 0.05,
    quiet: bool = False,
) -> Acceleration:
    """Make the training step of a model faster on this CPU, or leave it as it is and say why; return a handle.

        handle = lograd.accelerate(model)
        for ...:
            ...
            optimizer.step()
            handle.step()

    The first 4 to 15 steps of the training are the measurement: they run plain and with integer products in turns, so
    they take about as long as plain ones.  What was found is then printed to standard error.

    Args:
        model: float32 on the CPU, without an attached plan.
        batches, loss_fn: given, as for `lograd.profile`, the decision is made now, on these batches: the model is
            restored afterwards.  By default it is made in the steps that follow.
        seed: of the random numbers with which gradients are rounded.
        keep: layers that are left alone, as for `Profile.plan`.
        noise: the variance that dropping rows may add, over that of the minibatch; 0 drops the rows that are zero
            alone, which adds none.
        quiet: print nothing.
    """
    found = Acceleration(model, seed, keep, quiet, noise)
    if batches is not None:
        found._decide_now(batches, loss_fn)
    elif loss_fn is not None:
        found.remove()
        raise InvalidValue("loss_fn is for deciding before the training, on batches of yours; give batches as well.")
    return found


@final
class Acceleration:
    """A model that is made faster.  `with accelerate(model) as handle:` gives it back at the end.

    Until the decision is made, `plan` has no layers and `explain()` says so.
    """

    def __init__(
        self, model: nn.Module, seed: int, keep: str | Iterable[str], quiet: bool, noise: float = 0.05
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(sentence("model", f"an object of type {type(model).__name__}", "a torch.nn.Module"))
        root = unwrapped(model)
        if any(isinstance(getattr(hook, "__self__", None), Acceleration) for hook in root._forward_pre_hooks.values()):
            raise InvalidValue("the model is being accelerated already; call remove() of that handle first.")
        self.model, self.seed, self.quiet = model, seed, quiet
        self._rows = both(Rows(noise=ROW_NOISE * check_noise(noise), most=MOST_ROWS))
        self.plan = Plan()
        """The plan that is attached; it has no layers where nothing is attached, or not yet."""
        self.words = ""
        """The decision in words; empty until it is made."""
        self.steps = 0
        self._handle: Handle | None = None
        self._undo = ExitStack()
        """Takes back the hooks of the measurement."""
        self._candidates = _candidates(model, keep)
        self._trial: Generator[None, None, None] | None = self._measure()
        self._start = 0.0
        self._forwards = 0
        self._unproven = False
        """True until a forward has shown that the model runs with images channels-last."""
        self._strides: list[tuple[int, ...]] = []
        """Those of the model's plain output."""
        self._work: dict[str, float] = {}
        """Multiply-adds of the candidates' outputs in this step; times are compared by it: batches differ in size."""
        self._first_work = 0.0
        for name, module in self._candidates.items():
            self._undo.callback(module.register_forward_hook(partial(self._ran, name)).remove)
        self._undo.callback(root.register_forward_pre_hook(self._begins, with_kwargs=True).remove)
        if isinstance(model, torch._dynamo.OptimizedModule):  # compiled code would not call hooks
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        next(self._trial)

    # -- training --

    def step(self, *, loss_scale: float | None = None) -> None:
        """Count a step, after `optimizer.step()`; the first ones decide what is attached.

        Args:
            loss_scale: as for `Handle.step`.
        """
        now = seconds()
        self.steps += 1
        if self._handle is not None:
            self._handle.step(loss_scale=loss_scale)
        if self._trial is not None:
            self._last, self._forwards = now - self._start, 0
            self._first_work = self._first_work or sum(self._work.values())
            next(self._trial, None)
            self._work.clear()

    def _begins(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the time at the first forward of a step; a forward pre-hook of the model."""
        if not (module.training and torch.is_grad_enabled()):
            return
        if self._unproven:
            self._prove(module, args, options)
        if not self._forwards:
            self._start = seconds()
        self._forwards += 1
        if self._forwards == FORGOTTEN and not self.steps:
            warnings.warn(
                f"{FORGOTTEN} forwards without handle.step(): call it after each optimizer.step(), or nothing is "
                "accelerated.",
                LogradWarning,
                stacklevel=2,
            )

    def _prove(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Run the forward once more, with images channels-last; where it fails, or others would notice, they are not.

        A `view` of images refuses that layout, and so would one of the user's own that gets images from the model.
        """
        self._unproven = False
        assert self._handle is not None
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        try:
            with torch.random.fork_rng(devices=[]):
                turned = _strides(module.forward(*args, **options)) == self._strides
        except RuntimeError:  # of a layout, or of the user, whose own forward then raises it again
            turned = False
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        if not turned:
            self._attach(replace(self._handle.plan, channels_last=False))

    def _decide_now(self, batches: Iterable[Any], loss_fn: LossFunction | None) -> None:
        """Run the measurement on given batches; an exception gives the model back as it was."""
        try:
            check_kinds(batches, loss_fn, None)
            taken = list(islice(batches, 4))
            if not taken:
                raise InvalidValue("batches are empty; give at least one.")
            with restored(self.model), torch.enable_grad():
                for batch in cycle(taken):
                    if self._trial is None:
                        break
                    for parameter in self.model.parameters():
                        parameter.grad = None
                    loss_of(self.model, batch, loss_fn).backward()  # type: ignore[no-untyped-call]
                    self.step()
            self.steps = 0
            self._attach(self.plan)  # with fresh random numbers and counters
        except BaseException:
            self.remove()
            raise

    # -- the measurement: each `yield` is a step of the training --

    def _measure(self) -> Generator[None, None, None]:
        """Run the first steps, each in its own way, and decide."""
        with self._widths() as widths:
            yield
        layers = {name: self._layer(name, width, rows=True) for name, width in widths.chosen.items()}
        convolves = any(isinstance(self._candidates[name], nn.Conv2d) for name in layers)
        turns = convolves and reason_not_channels_last(self.model) is None
        normalizes = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        everywhere = Plan(layers, normalization=normalizes, channels_last=turns)
        if not layers:
            self._stay(widths.reason())
            return
        self._unproven = turns
        watch = Stopwatch({name: self._candidates[name] for name in layers})
        times: dict[str, list[StepTimes]] = {"plain": [], "integer": []}
        yield from self._run(everywhere)  # warm-up
        if self._handle is not None:
            everywhere = self._handle.plan
        turns = everywhere.channels_last
        for _ in range(ROUNDS):
            yield from self._run(Plan(), watch, times["plain"])
            yield from self._run(everywhere, watch, times["integer"])
            few = self._few_rows()
            if not _faster(times, layers):
                self._stay(f"integer products are faster in none of {plural(len(layers), 'layer')}")
                return
        faster = _faster(times, layers)
        kept = {name: self._layer(name, widths.chosen[name], name in few) for name in faster}
        plan = replace(everywhere, layers={name: layer for name, layer in kept.items() if layer.treats})
        plain = times["plain"]
        chosen: list[StepTimes] = []
        yield from self._run(plan)
        for _ in range(ROUNDS):
            yield from self._run(plan, None, chosen)
            yield from self._run(Plan(), None, plain)
        if few:
            whole = {name: self._layer(name, widths.chosen[name], rows=False) for name in plan.layers}
            undropped = replace(plan, layers={name: layer for name, layer in whole.items() if layer.treats})
            all_rows: list[StepTimes] = []
            yield from self._run(undropped)
            for _ in range(ROUNDS):
                yield from self._run(undropped, None, all_rows)
            if _shortest(all_rows) < _shortest(chosen):
                plan, chosen, few = undropped, all_rows, {}
        if turns:
            unturned = replace(plan, channels_last=False)
            other: list[StepTimes] = []
            dense_turned: list[StepTimes] = []
            yield from self._run(unturned)
            yield from self._run(unturned, None, other)
            if _shortest(other) < _shortest(chosen):
                plan, chosen = unturned, other
            with _weights_channels_last(self.model):
                yield from self._run(Plan())
                yield from self._run(Plan(), None, dense_turned)
            if _shortest(dense_turned) < (1 - MARGIN) * _shortest(plain):
                plain = dense_turned
        done = _what_is_done(plan, widths.chosen, few)
        self._conclude(plan, done, _shortest(chosen), _shortest(plain), plain is not times["plain"])

    def _layer(self, name: str, width: str, rows: bool) -> LayerPlan:
        """Return the plan of a layer: its widths, and the rows that it drops if it is a linear layer."""
        plain = recipe(width)
        drops = rows and not isinstance(self._candidates[name], _ConvNd)
        return LayerPlan.of(self._rows.then(plain) if drops else plain)

    def _few_rows(self) -> dict[str, float]:
        """Return the share of rows that is multiplied in the layers where it is small, in the step that has ended."""
        counts = {} if self._handle is None else self._handle.counters().layers
        shares = {name: one.rows_kept / one.rows for name, one in counts.items() if one.rows}
        return {name: share for name, share in shares.items() if share <= MOST_ROWS}

    def _run(self, plan: Plan, watch: Stopwatch | None = None, times: list[StepTimes] | None = None) -> Iterator[None]:
        """Let the next step run with a plan, and note its time and, with a stopwatch, those of layers."""
        self._attach(plan)
        if watch is None:
            yield
        else:
            with watch.running():
                yield
        if times is not None:
            times.append(self._times(watch))

    def _ran(self, name: str, module: nn.Module, args: object, output: object) -> None:
        """Count the work of a layer; a forward hook."""
        if isinstance(output, Tensor) and output.requires_grad:
            self._work[name] = self._work.get(name, 0.0) + output.numel() * work_of_element(module)

    def _times(self, watch: Stopwatch | None) -> StepTimes:
        """Return the times of the step that has just ended, as those of a step with the work of the first."""
        scale = self._first_work / (sum(self._work.values()) or 1.0)
        layers = {} if watch is None else {name: scale * one.total for name, one in watch.read().items()}
        return StepTimes(scale * self._last, layers)

    @contextmanager
    def _widths(self) -> Iterator[_Widths]:
        """Compare plain and rounded outputs of all candidates in the steps inside."""
        found = _Widths()
        hooks = [
            module.register_forward_hook(partial(found.look, name), prepend=True)
            for name, module in self._candidates.items()
        ]
        hooks.append(unwrapped(self.model).register_forward_hook(self._remember_strides))
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    def _remember_strides(self, module: nn.Module, args: object, output: object) -> None:
        self._strides = _strides(output)

    def _attach(self, plan: Plan) -> None:
        if self._handle is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LogradWarning)  # a trial of one step has nothing to say
                self._handle.remove()
            self._handle = None
        if plan.layers:
            self._handle = attach(self.model, plan, self.seed, backend="integer")
            for layer in self._handle.layers.values():
                layer.output_error = 0.0  # known to be small, and not to be measured again

    def _stay(self, reason: str) -> None:
        """Leave the model as it is, for a reason."""
        self._attach(Plan())
        threads = plural(torch.get_num_threads(), "thread")
        self._end(f"the step stays as it is: {reason} ({threads}).{_bf16_words()}")

    def _conclude(self, plan: Plan, done: str, chosen: float, plain: float, turned: bool) -> None:
        """Keep the plan if its step is shorter than the plain one in its better layout."""
        layout = " after model.to(memory_format=torch.channels_last)" if turned else ""
        times = f"{1e3 * chosen:.1f} ms with {done}, and {1e3 * plain:.1f} ms in float32{layout}"
        if chosen >= (1 - MARGIN) * plain:
            self._stay(f"it takes {times}")
            return
        self.plan = plan
        self._attach(plan)
        left = len(self._candidates) - len(plan.layers)
        rest = f"; {plural(left, 'other layer')} stay{'s' * (left == 1)} float32" if left else ""
        self._end(
            f"a step takes {times}: {plain / chosen:.2f} times faster, measured in the first steps{rest}."
            + _bf16_words()
        )

    def _end(self, words: str) -> None:
        self._trial, self.words = None, words
        self._undo.close()
        if not self.quiet:
            print(f"lograd: {words}", file=sys.stderr)

    # -- what happened, and undoing --

    def explain(self) -> str:
        """Return the decision, and what is applied to each layer."""
        if self._trial is not None:
            return f"Measuring: {plural(self.steps, 'step')} so far; the decision comes after 4 to 15."
        return self.words if self._handle is None else f"{self.words}\n{self._handle.explain()}"

    def counters(self) -> Counters:
        """Return exact counts of all that was treated since the decision; see `Handle.counters`."""
        return read_counters({}) if self._handle is None else self._handle.counters()

    def metrics(self) -> dict[str, float]:
        """Return the same as one flat dictionary, for any logger."""
        return {"lograd/steps": self.steps, **self.counters().metrics()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs beside model and optimizer: the decision, and the state of its handle."""
        return {
            "steps": self.steps,
            "words": self.words,
            "plan": None if self._trial is not None else self.plan.to_dict(),
            "handle": None if self._handle is None or self._trial is not None else self._handle.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the decision of another run; one that was not made yet is made here."""
        if not isinstance(state, Mapping) or not {"steps", "words", "plan", "handle"} <= set(state):
            raise InvalidValue(sentence("state", type(state).__name__, "what `state_dict` of an acceleration returned"))
        if state["plan"] is None:
            return
        plan = Plan.from_dict(state["plan"])
        self._end_trial()
        self.plan, self.words, self.steps = plan, str(state["words"]), int(state["steps"])
        self._attach(plan)
        if self._handle is not None and state["handle"] is not None:
            self._handle.load_state_dict(state["handle"])

    def remove(self) -> None:
        """Give the model back as it was, byte for byte."""
        self._end_trial()
        if self._handle is not None:
            self._handle.remove()

    def _end_trial(self) -> None:
        """End the measurement, decided or not: no hook and no other layout of a weight stays behind."""
        if self._trial is not None:
            self._trial.close()
            self._trial = None
        self._undo.close()

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


# -- candidates and their widths --


def _candidates(model: nn.Module, keep: str | Iterable[str]) -> dict[str, nn.Module]:
    """Return the layers that may have integer products, by name; refuse a model that can have none."""
    modules = fitting_modules(model, Plan())
    for parameter in model.parameters():
        if parameter.device.type != "cpu":
            raise InvalidValue(f"accelerate is for CPUs, and this model is on {parameter.device.type}.")
        if parameter.dtype == torch.float64:
            raise InvalidValue("accelerate takes a float32 model, and this one is float64; call model.float() first.")
    if not native.status().available:
        raise InvalidValue(f"accelerate needs the native kernels: {native.status().reason}")
    kept = matching_layers(list(modules), keep_patterns(keep))
    unique = {id(module): name for name, module in reversed(modules.items())}
    found = {
        name: module for name, module in modules.items()
        if unique[id(module)] == name and name not in kept and reason_not_supported(module) is None
        and reason_unserved(module, "integer") is None
    }  # fmt: skip
    if not found:
        raise InvalidValue(
            "accelerate has nothing to do: the model has no linear layer or convolution with integer products"
            f"{' besides those that keep names' if kept else ''}; lograd.attach explains each layer."
        )
    return found


class _Widths:
    """The widths of each layer, by the error of its output."""

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        """Layers that no widths serve, and why."""

    def look(self, name: str, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """Compare the output of a layer with rounded ones, once; a forward hook."""
        if name in self.chosen or name in self.refused or not isinstance(output, Tensor) or not output.requires_grad:
            return
        x = args[0] if args else None
        if torch.is_autocast_enabled("cpu") or not isinstance(x, Tensor) or x.dtype != torch.float32:
            self.refused[name] = "its activations are not float32"
        elif output.numel() * work_of_element(module) < LEAST_WORK:
            self.refused[name] = "it is too small"
        else:
            with torch.no_grad():
                self._choose(name, module, x.detach(), output.detach())

    def _choose(self, name: str, module: nn.Module, x: Tensor, y: Tensor) -> None:
        convolves = isinstance(module, _ConvNd)
        vnni = "vnni" in native.status().isa
        linear, convolution = (VNNI_LINEAR, VNNI_CONVOLUTION) if vnni else (NARROW_LINEAR, NARROW_CONVOLUTION)
        for width in convolution if convolves else linear:
            error = _energy(rounded_output(module, x, width) - y) / max(_energy(y), 1e-300)
            if error <= MOST_ERROR:
                self.chosen[name] = width
                return
        if convolves:
            self.refused[name] = f"rounding its operands has a relative squared error of {error:.2g} in its output"
        else:  # rows of its gradient may still be dropped
            self.chosen[name] = FLOAT32

    def reason(self) -> str:
        """Return why no layer is left."""
        if not self.refused:
            return "no layer ran in the first step (a model that is compiled must be so before the call)"
        (reason, count), *_ = Counter(self.refused.values()).most_common(1)
        return f"{reason} ({count} of {plural(len(self.refused), 'layer')})"


def rounded_output(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """Return the output of a layer whose operands are rounded as a recipe says, by dense products."""
    output = recipe(name).output
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert not isinstance(bias, nn.Module)
    by_output = weight.t() if works_transposed(module) else weight
    rounded = apply(output.weights, by_output.detach()).result
    if isinstance(module, _ConvNd):
        y: Tensor = module._conv_forward(apply(output.activations, x).result, rounded, module.bias)
        return y
    rows = x.reshape(-1, x.shape[-1])
    found = F.linear(apply(output.activations, rows).result, rounded, bias)
    return found.reshape(*x.shape[:-1], found.shape[-1])


def _energy(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


# -- times --


class StepTimes(NamedTuple):
    """Seconds of one step, from its first forward to `step`, and of its layers."""

    step: float
    layers: Mapping[str, float]


def _shortest(times: Iterable[StepTimes]) -> float:
    return min(one.step for one in times)


def _faster(times: Mapping[str, list[StepTimes]], layers: Iterable[str]) -> list[str]:
    """Return the layers that are faster in integers than plain."""
    plain, integer = (
        {name: min(one.layers[name] for one in times[kind]) for name in layers} for kind in ("plain", "integer")
    )
    return [name for name in layers if integer[name] < (1 - MARGIN) * plain[name]]


def _what_is_done(plan: Plan, widths: Mapping[str, str], few: Mapping[str, float]) -> str:
    """Return how many layers have which widths, the most frequent first, and the rows that are multiplied."""
    names = Counter(widths[name] for name in plan.layers if widths[name] != FLOAT32).most_common()
    parts = [f"{name} in {plural(count, 'layer')}" for name, count in names]
    if shares := [share for name, share in few.items() if name in plan.layers]:
        parts.append(f"{sum(shares) / len(shares):.0%} of the rows of gradients in {plural(len(shares), 'layer')}")
    return ", ".join([*parts, *(["images channels-last"] if plan.channels_last else [])])


@contextmanager
def _weights_channels_last(model: nn.Module) -> Iterator[None]:
    """Lay the weights of convolutions over images out channels-last for a while; what they learn meanwhile stays."""
    found = {module._parameters.get("weight") for module in model.modules() if isinstance(module, nn.Conv2d)}
    before = {weight: weight.data for weight in found if type(weight) is nn.Parameter}
    try:
        for weight, data in before.items():
            weight.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, data in before.items():
            weight.data = data.copy_(weight.data)


def _bf16_words() -> str:
    """Return a sentence where the CPU multiplies bfloat16 in one step; else nothing.

    AMX of some virtual machines kills the process, so products are not tried here; `lograd doctor` tries in a child.
    """
    if not {"amx_bf16", "avx512_bf16"} & set(cpuinfo("flags").split()):
        return ""
    return (
        " This CPU multiplies bfloat16, and torch.autocast('cpu', torch.bfloat16) may be faster: `lograd doctor` times "
        "both."
    )


def _strides(output: object) -> list[tuple[int, ...]]:
    """Return the strides of all tensors in the output of a model."""
    return [leaf.stride() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
