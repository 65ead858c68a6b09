"""The menu of each layer: what each method costs and how much noise it brings, measured inside the user's model.

Plain values without torch, which a profile keeps in its file; `timing` measures them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, final

from ..errors import InvalidValue
from ..files.checks import check_number, check_object, check_text, check_whole
from ..report import TextTable, text_table
from .methods import DENSE, method

MOST_NAMED = 4096
"""Threads, and methods of a layer, that a file may claim."""


@final
@dataclass(frozen=True)
class Candidate:
    """One method in one layer.

    Args:
        method: its name (`methods.method`).
        forward, backward: seconds in a step, summed over the times that the layer runs.
        input_noise, weight_noise: the noise-to-signal ratio of the treated gradient in the products for dX and dW: of
            rounding measured on the gradient of one batch, of pruning predicted by the law.
        penalty: |g_q - g|^2 over all learned parameters: the change of the exact gradient of one batch where this
            layer's forward alone is rounded; 0 where the forward is exact.
    """

    method: str
    forward: float
    backward: float
    input_noise: float = 0.0
    weight_noise: float = 0.0
    penalty: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward + self.backward


@final
@dataclass(frozen=True)
class Menus:
    """The candidates of each layer, and the times of whole steps.

    Args:
        layers: by layer in the order of execution, and by method; each layer has "dense".
        step: seconds of a plain step, forward and backward.
        uniform: seconds of a step with one method in every layer.
        extras: seconds that switches of a whole plan save, such as "normalization".
        threads: threads that PyTorch had.
        loss: the change of the loss of one batch by a method in every layer, where it rounds the forward.
        penalty: |g_q - g|^2 with such a method in every layer.  Penalties of single layers add up to more where there
            are kinks: an input of a ReLU that two errors push over zero has changed sides once.
    """

    layers: Mapping[str, Mapping[str, Candidate]]
    step: float
    uniform: Mapping[str, float] = field(default_factory=dict)
    extras: Mapping[str, float] = field(default_factory=dict)
    threads: int = 1
    loss: Mapping[str, float] = field(default_factory=dict)
    penalty: Mapping[str, float] = field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were timed, "dense" first."""
        return tuple(dict.fromkeys([DENSE, *(name for menu in self.layers.values() for name in menu)]))

    @property
    def rest(self) -> float:
        """Seconds of a plain step outside of these layers: normalization, attention, the loss, and so on."""
        return max(self.step - sum(menu[DENSE].seconds for menu in self.layers.values()), 0.0)

    def seconds(self, choice: Mapping[str, str]) -> float:
        """Return the predicted seconds of a step with a method for each layer; layers without one are dense."""
        for name in choice:
            if name not in self.layers or choice[name] not in self.layers[name]:
                raise InvalidValue(f"method {choice[name]!r} was not timed for a layer {name!r}.")
        return self.rest + sum(menu[choice.get(name, DENSE)].seconds for name, menu in self.layers.items())

    def scaled(self) -> Menus:
        """Return these menus with penalties of single layers that add up to at most that of all layers together."""
        sums = {name: sum(menu[name].penalty for menu in self.layers.values() if name in menu) for name in self.penalty}
        factors = {name: min(self.penalty[name] / total, 1.0) for name, total in sums.items() if total > 0}
        layers = {
            layer: {name: replace(one, penalty=one.penalty * factors.get(name, 1.0)) for name, one in menu.items()}
            for layer, menu in self.layers.items()
        }
        return replace(self, layers=layers)

    # -- the file --

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes these menus again."""
        return {
            "step": self.step,
            "threads": self.threads,
            "uniform": dict(self.uniform),
            "extras": dict(self.extras),
            "loss": dict(self.loss),
            "penalty": dict(self.penalty),
            "layers": {name: [asdict(candidate) for candidate in menu.values()] for name, menu in self.layers.items()},
        }

    @classmethod
    def from_json(cls, data: Any, layers: Collection[str]) -> Menus:
        """Return the menus that `to_json` was given; the exact inverse, every value checked.

        Args:
            layers: the names that a profile knows.
        """
        check_object("menus", data, ("step", "threads", "uniform", "extras", "loss", "penalty", "layers"))
        if not isinstance(data["layers"], dict) or not set(layers).issuperset(data["layers"]):
            raise InvalidValue("its menus must be those of layers which it has.")
        return cls(
            {name: _menu(name, entries) for name, entries in data["layers"].items()},
            check_number("the seconds of a step", data["step"], 0),
            _by_method("uniform", data["uniform"], 0),
            _numbers("extras", data["extras"], 0),
            check_whole("threads", data["threads"], 1, MOST_NAMED),
            _by_method("loss", data["loss"]),
            _by_method("penalty", data["penalty"], 0),
        )

    # -- for people --

    def table(self) -> TextTable:
        """Return a table for the terminal: milliseconds of each layer by each method, the fastest marked by a star."""
        methods = self.methods
        rows = [[name, *_cells(menu, methods)] for name, menu in self.layers.items()]
        rows.append(["rest of the plain step", f"{1e3 * self.rest:.2f}", *("" for _ in methods[1:])])
        whole = {DENSE: self.step} | dict(self.uniform)
        rows.append(["whole step", *(f"{1e3 * whole[name]:.1f}" if name in whole else "–" for name in methods)])
        notes = [
            "Milliseconds of forward and backward in a step; * marks the fastest method of a layer.",
            "The whole step was timed with the method in every layer.",
            *(f"{name.capitalize()} saves {1e3 * saved:.1f} ms." for name, saved in self.extras.items()),
        ]
        if self.loss:
            changes = ", ".join(f"{name} {change:+.2g}" for name, change in self.loss.items())
            notes.append(f"The loss of the batch changes by the rounded forward: {changes}.")
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return text_table(
            f"Times of {len(self.layers)} layers with {threads}", ("layer", *methods), rows, "\n".join(notes),
            droppable=methods[:0:-1],
        )  # fmt: skip


def _menu(layer: str, entries: Any) -> dict[str, Candidate]:
    if not isinstance(entries, list) or len(entries) > MOST_NAMED:
        raise InvalidValue(f"the menu of layer {layer!r} must be a short list of candidates.")
    found = [_candidate(layer, entry) for entry in entries]
    menu = {candidate.method: candidate for candidate in found}
    if DENSE not in menu or len(menu) < len(found):
        raise InvalidValue(f"the menu of layer {layer!r} must have {DENSE!r}, and each method once.")
    return menu


def _candidate(layer: str, entry: Any) -> Candidate:
    numbers = [one.name for one in fields(Candidate)[1:]]
    check_object(f"a candidate of layer {layer!r}", entry, ("method", *numbers))
    name = method(check_text(f"a method of layer {layer!r}", entry["method"])).name
    return Candidate(name, *(check_number(f"{one} of layer {layer!r}", entry[one], 0) for one in numbers))


def _numbers(what: str, data: Any, low: float = float("-inf")) -> dict[str, float]:
    if not isinstance(data, dict):
        raise InvalidValue(f"{what} of menus must be an object with a number for each name.")
    return {name: check_number(f"{what} of {name[:60]!r}", value, low) for name, value in data.items()}


def _by_method(what: str, data: Any, low: float = float("-inf")) -> dict[str, float]:
    return {method(name).name: value for name, value in _numbers(what, data, low).items()}


def _cells(menu: Mapping[str, Candidate], methods: tuple[str, ...]) -> list[str]:
    """Return the milliseconds of each method, with a star at the least."""
    fastest = min(menu.values(), key=lambda candidate: candidate.seconds).method
    return [
        f"{'*' if name == fastest else ''}{1e3 * menu[name].seconds:.2f}" if name in menu else "–" for name in methods
    ]
