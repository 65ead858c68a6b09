"""The plan: the treatments of each layer, as a JSON file that a person can review.

It is made from a profile or from a recipe, and `attach` carries it out.  `Plan.load` is the exact inverse of `save`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, final

from ..errors import InvalidType, InvalidValue, LogradError, LogradWarning, nearest_name, plural, sentence
from ..files import strict_json
from ..files.atomic import read_file, replace_file
from ..files.checks import check_text
from ..files.seals import checksum_of_json
from ..formats import Format
from ..formats.values import check_width
from ..report import TextTable
from ..treatments import BACKWARD, Statistics, recipe
from ..treatments.products import check_backward_products
from ..treatments.prune import PruningLaw
from . import version1
from .change import Change, changes
from .expected import Expected
from .forecast import Forecast
from .layer import LayerPlan, check_fields
from .table import plan_table
from .work import StepWork

VERSION = 2
FIELDS = (
    "every", "layers", "kept", "keep", "work", "step", "growth", "unpruned", "attention", "saved", "normalization",
    "channels_last", "expected",
)  # fmt: skip
SWITCHES = ("normalization", "channels_last")
KEEP = ("first", "last")
"""Layers that a plan may keep without their names: the first, if it is a convolution, and the last linear one."""
CHECKSUM = "checksum"
"""The field of a saved plan that tells whether the others are still those that were saved."""


@final
@dataclass(frozen=True, repr=False)
class Plan:
    """Treatments by layer name.

    Args:
        layers: a LayerPlan for each layer name, in the order in which the layers run.
        kept: layers left alone on purpose, and why.
        every: what is done to each supported layer that `layers` does not name; None leaves them alone.
        work: operations of the products for dX and dW of each layer per step in the profile, kept layers included.
        step: operations of the whole training step in the profile, and what of it no plan treats, where it was counted.
        statistics: the laws behind the predictions, where the plan comes from a profile; not saved with it.
        growth: by how much noise is predicted to multiply the energy of a gradient; None if that is not known.
        unpruned: layers that are rounded and not pruned as others are, and why.
        keep: layers left alone whose names the plan does not know: "first", the model's first layer if it is a
            convolution, and "last", its last linear layer.  Where no other layer is left, they are treated.
        attention: bits of the integers in which attention is computed, forward and backward; None leaves it to PyTorch.
        saved: bits of what layers that are not treated keep for the backward, such as BatchNorm and GELU, where that is
            known to be safe (docs/integer.md); None keeps all of it as it is.  Codes of at most 4 bits that treated
            layers keep then share bytes.
        normalization: compute BatchNorm in training and the ReLU behind it in one pass; results are PyTorch's within
            float32 rounding.
        channels_last: leave the outputs of integer convolutions as these compute them, with channels side by side in
            memory, so that layers behind them work in that layout too.  The weights stay as they are.
        expected: the noise that the profile predicts, in units of the minibatch's own variance; None where the profile
            has not measured both.
    """

    layers: Mapping[str, LayerPlan] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    every: LayerPlan | None = None
    work: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    step: StepWork | None = None
    statistics: Mapping[str, Statistics] = field(default_factory=dict, compare=False)
    growth: Forecast | None = None
    unpruned: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    attention: int | None = None
    saved: int | None = None
    normalization: bool = False
    channels_last: bool = False
    expected: Expected | None = None

    def __post_init__(self) -> None:
        for name, bits in (("attention", self.attention), ("saved", self.saved)):
            if bits is not None:
                check_width(f"{name} of a plan", bits, 2, 8)
        for name in SWITCHES:
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidType(sentence(f"{name} of a plan", value, "True or False"))
        if not set(self.keep) <= set(KEEP):
            raise InvalidValue(sentence("keep of a plan", list(self.keep), "'first', 'last' or both"))
        for name in self.layers:
            if name in self.kept:
                raise InvalidValue(f"a plan either treats a layer or keeps it; {name!r} is in both lists.")

    @classmethod
    def uniform(cls, name: str, keep: Iterable[str] | None = None) -> Plan:
        """Return a plan with one recipe, such as "fp6", for every supported layer of whatever model it is attached to.

        `lograd recipes` lists the names; `treatments.recipe` says how they are joined.

        Args:
            keep: "first", "last" or both, as in `Plan`.  By default both for a recipe that treats the output, such as
                "int4-full", and none for others.

        >>> Plan.uniform("prune85+fp6").every.input_gradient.gradient[0].sparsity
        0.85
        """
        every = LayerPlan.of(recipe(name))
        if keep is None:
            keep = KEEP if every.output.treats else ()
        return cls(every=every, keep=(keep,) if isinstance(keep, str) else tuple(keep))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, of which `from_json` makes this plan again."""
        data: dict[str, Any] = {"lograd_plan": VERSION}
        if self.every is not None:
            data["every"] = self.every.to_json()
        return data | {
            "layers": {name: layer.to_json() for name, layer in self.layers.items()},
            "kept": dict(self.kept),
            **({"keep": list(self.keep)} if self.keep else {}),
            **({"work": {name: list(counts) for name, counts in self.work.items()}} if self.work else {}),
            **({"step": self.step.to_json()} if self.step is not None else {}),
            **({} if self.growth is None else {"growth": self.growth.to_json()}),
            **({"unpruned": dict(self.unpruned)} if self.unpruned else {}),
            **{name: bits for name in ("attention", "saved") if (bits := getattr(self, name)) is not None},
            **{name: True for name in SWITCHES if getattr(self, name)},
            **({} if self.expected is None else {"expected": self.expected.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Return the plan that `to_json` was given; the exact inverse."""
        if not isinstance(data, dict) or "lograd_plan" not in data:
            raise InvalidValue('this is not a plan: a plan is a JSON object with "lograd_plan" and its version.')
        version = data["lograd_plan"]
        if type(version) is not int or version not in (version1.VERSION, VERSION):
            raise InvalidValue(
                f"this plan has version {version!r}, and this lograd reads versions {version1.VERSION} and {VERSION}; "
                "make the plan again, or use the lograd that wrote it."
            )
        check_fields("a plan", data, ("lograd_plan", *FIELDS, CHECKSUM))
        _check_checksum(data)
        if version == version1.VERSION:
            data = version1.upgraded(data)
        layers, kept, unpruned = (data.get(name, {}) for name in ("layers", "kept", "unpruned"))
        if not all(isinstance(one, dict) for one in (layers, kept, unpruned)):
            raise InvalidValue('"layers", "kept" and "unpruned" of a plan must be objects with layer names.')
        return cls(
            work=_work_from_json(data.get("work", {})),
            step=StepWork.from_json(data["step"]) if "step" in data else None,
            layers={name: LayerPlan.from_json(layer) for name, layer in layers.items()},
            kept={name: check_text(f"why layer {name!r} is kept", reason) for name, reason in kept.items()},
            every=LayerPlan.from_json(data["every"]) if "every" in data else None,
            keep=_keep_from_json(data.get("keep", [])),
            growth=Forecast.from_json(data["growth"]) if "growth" in data else None,
            unpruned={
                name: check_text(f"why layer {name!r} is not pruned", reason) for name, reason in unpruned.items()
            },
            attention=data.get("attention"),
            saved=data.get("saved"),
            **{name: data.get(name, False) for name in SWITCHES},
            expected=Expected.from_json(data["expected"]) if "expected" in data else None,
        )

    @property
    def skipped(self) -> float:
        """The share of the products for dX and dW of all layers in `work`, kept ones included, that zeros skip.

        Predicted; `skipped_of_step` is the share of the whole training step.
        """
        total = self.total_work
        return self._saved / total if total else 0.0

    @property
    def skipped_of_step(self) -> float | None:
        """The share of the multiply-adds of the whole training step, forward and backward, that predicted zeros skip.

        None where the step was not counted: in a plan without a profile, or from one of an older lograd.
        """
        return None if self.step is None else self.step.share(self._saved)

    @property
    def _saved(self) -> float:
        return sum(layer.skipped(self.work.get(name, (0, 0))) for name, layer in self.layers.items())

    @property
    def total_work(self) -> int:
        """Operations of the products for dX and dW of all layers in `work`."""
        return sum(map(sum, self.work.values()))

    # -- changing, comparing, reading --

    def override(
        self,
        pattern: str,
        *,
        sparsity: float | None = None,
        law: PruningLaw | None = None,
        bits: int | None = None,
        format: str | Format | None = None,
        scale: str | None = None,
        rounding: Literal["stochastic", "nearest"] | None = None,
        products: str | Iterable[str] = BACKWARD,
        treat: bool = True,
    ) -> Plan:
        """Return a plan with other treatments for the layers whose name matches; what is not given stays as it is.

        Predictions of changed layers are computed anew where the plan knows the laws, and dropped where it does not.

        Args:
            pattern: a layer name, with the wildcards *, ? and [...].  In a uniform plan it must be a name.
            sparsity, law: of the pruning, which is added where there is none.
            bits: the best float of so many bits for the layer's law; needs a plan that comes from a profile.
            format, scale, rounding: of the rounding, which is added where there is none.
            products: change the gradient's treatment in these products only: "input_gradient", "weight_gradient".
            treat: False leaves the layers alone.
        """
        if not isinstance(pattern, str):
            raise InvalidType(sentence("pattern", pattern, "a layer name or a pattern of names, such as 'layer1.*'"))
        if not isinstance(treat, bool):
            raise InvalidType(sentence("treat", treat, "True or False"))
        change = Change(sparsity, law, bits, format, scale, rounding, check_backward_products(products))
        if treat and change.empty:
            raise InvalidValue(
                "override needs something to change, such as sparsity=0.9, format='1-4-1' or treat=False."
            )
        if not treat and not change.empty:
            raise InvalidValue("override with treat=False leaves layers alone, so it takes nothing else to change.")
        layers, kept = dict(self.layers), dict(self.kept)
        changed = self._matching(pattern)
        for name in changed:
            found = self.statistics.get(name)
            before = layers.pop(name, None) or (self.every if name not in kept else None)
            kept.pop(name, None)
            if treat:
                layers[name] = change.apply(name, before or LayerPlan(masked=found.masked if found else 0.0), found)
            else:
                kept[name] = f"left alone by override({pattern!r})"
        order = dict.fromkeys([*self.statistics, *self.layers, *layers])  # as the layers run, new ones at the end
        return replace(
            self,
            layers={name: layers[name] for name in order if name in layers},
            kept=kept,
            growth=None,  # both followed from the layers as they were
            expected=None,
            unpruned={name: reason for name, reason in self.unpruned.items() if name not in changed},
        )

    def _matching(self, pattern: str) -> list[str]:
        names = list(dict.fromkeys([*self.layers, *self.kept]))
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found and self.every is not None:
            if set("*?[") & set(pattern):
                raise InvalidValue(
                    f"a uniform plan knows no layer names yet, so the pattern {pattern!r} matches none; give a name."
                )
            return [pattern]
        if not found:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise InvalidValue(
                f"{pattern!r} matches no layer of the plan; it has {shown}.{nearest_name(pattern, names)}"
            )
        return found

    def diff(self, other: Plan) -> str:
        """Return the changes from this plan to the other, one line for each: + added, - removed, ~ changed."""
        if not isinstance(other, Plan):
            raise InvalidType(sentence("what a plan is compared with", other, "a Plan"))
        lines = []
        mine, theirs = (_entries(plan) for plan in (self, other))
        for name in dict.fromkeys([*mine, *theirs]):
            before, after = mine.get(name), theirs.get(name)
            if before is None or after is None:
                sign, entry = ("+", after) if before is None else ("-", before)
                lines.append(f"{sign} {name}: {_in_words(entry)}")
            elif isinstance(before, LayerPlan) and isinstance(after, LayerPlan):
                lines += [f"~ {name}: {line}" for line in changes(before, after)]
            elif before != after:
                lines.append(f"~ {name}: {_in_words(before)} -> {_in_words(after)}")
        return "\n".join(lines)

    def table(self) -> TextTable:
        """Return a table for the terminal: what is done to each layer, and what theory expects of it."""
        return plan_table(self)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        every = [] if self.every is None else [f"every {'other ' if self.layers else ''}layer: {self.every.words()}"]
        named = [plural(len(self.layers), "layer")] if self.layers or not every else []
        kept = [f"{len(self.kept)} kept"] if self.kept else []
        skipped = [f"{self.skipped:.1%} of the work skipped"] if self.skipped else []
        noise = [self.expected.brief] if self.expected is not None and self.expected.brief else []
        return f"Plan({', '.join([*named, *every, *kept, *skipped, *noise])})"

    # -- the file --

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON for people, with a checksum at its end by which `load` sees later changes; return its path."""
        data = self.to_json()
        return replace_file(path, (_pretty(data | {CHECKSUM: checksum_of_json(data)}) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Return the plan in a file; what is wrong with the file is said in one sentence.

        A plan may be edited by hand, so one that was changed after it was saved is checked as strictly as any other,
        and taken with a warning; a plan without a checksum is taken as it is.
        """
        content = read_file(path, strict_json.LARGEST)
        try:
            return cls.from_json(strict_json.parse(content))
        except LogradError as error:
            raise InvalidValue(f"Cannot read the plan {path}: {error}") from None

    def hash(self) -> str:
        """Return hexadecimal digits that change with anything that changes the training."""
        return version1.digits(self.to_json())

    def is_known_as(self, digits: object) -> bool:
        """Return True if digits are the hash of this plan, now or in the version of plans before this one."""
        return digits in (self.hash(), version1.hash_of(self.to_json(), dict(self.layers), self.every))


def _check_checksum(data: dict[str, Any]) -> None:
    """Warn of a plan that was changed after it was saved, on purpose or by damage."""
    if CHECKSUM not in data:
        return
    rest = {name: value for name, value in data.items() if name != CHECKSUM}
    if check_text("the checksum of a plan", data[CHECKSUM]) != checksum_of_json(rest):
        warnings.warn(
            "the plan was changed after lograd saved it, as its checksum tells; if that was on purpose, "
            f"Plan.load(path).save(path) writes a new one, or remove the field {CHECKSUM!r}.",
            LogradWarning,
            stacklevel=4,
        )


def _keep_from_json(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list):
        raise InvalidValue(sentence("keep of a plan", data, "a list of 'first' and 'last'"))
    return tuple(check_text("keep of a plan", one) for one in data)


def _work_from_json(data: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(data, dict):
        raise InvalidValue(sentence("work of a plan", data, "an object with layer names"))
    for name, counts in data.items():
        if not isinstance(counts, list) or [type(count) for count in counts] != [int, int] or min(counts) < 0:
            raise InvalidValue(sentence(f"work of layer {name!r}", counts, "two counts of operations, for dX and dW"))
    return {name: (counts[0], counts[1]) for name, counts in data.items()}


Entry = LayerPlan | str


def _entries(plan: Plan) -> dict[str, Entry]:
    every: dict[str, Entry] = {} if plan.every is None else {"(every other)": plan.every}
    return {**plan.layers, **every, **plan.kept}


def _in_words(entry: Entry | None) -> str:
    if not isinstance(entry, LayerPlan):
        return f"kept ({entry})"
    return entry.words()


def _pretty(data: Any, indent: int = 0) -> str:
    """Return JSON with indent 2 in which whatever fits stands on one line, so that a layer takes a few."""
    line = json.dumps(data, allow_nan=False)
    if not isinstance(data, dict | list) or not data or len(line) + indent <= 96:
        return line
    pad = " " * (indent + 2)
    if isinstance(data, list):
        inner = [pad + _pretty(item, indent + 2) for item in data]
    else:
        inner = [f"{pad}{json.dumps(key)}: {_pretty(value, indent + 2)}" for key, value in data.items()]
    start, end = ("[", "]") if isinstance(data, list) else ("{", "}")
    return start + "\n" + ",\n".join(inner) + "\n" + " " * indent + end
