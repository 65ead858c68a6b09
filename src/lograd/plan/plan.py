"""The plan: the treatments of each layer, as a JSON file that a person can review.

It is made from a profile or from a recipe, and `attach` carries it out.  `Plan.load` is the exact inverse of `save`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, final

from ..errors import InvalidType, InvalidValue, LogradError, LogradWarning, nearest_name, plural, sentence
from ..files import check_object, check_text, checksum_of_json, read_file, read_json, replace_file
from ..formats import Format
from ..formats.values import check_width
from ..text import TextTable, text_table
from ..treatments import BACKWARD, OPERANDS, PRODUCTS, SYMBOLS, Prediction, Sentence, describe, recipe
from ..treatments.products import check_backward_products
from ..treatments.prune import PruningLaw
from ..treatments.verdicts import LARGE_RELATIVE_ERROR, VERDICTS_IN_WORDS, verdict
from .evidence import Evidence, listed, percent
from .layer import LayerPlan, Override

VERSION = 2
SWITCHES = ("normalization", "channels_last")
FIELDS = ("every", "layers", "kept", "keep", "attention", "saved", *SWITCHES, "evidence")
KEEP = ("first", "last")
"""Layers that a plan may keep without their names: the first, if it is a convolution, and the last linear one."""
CHECKSUM = "checksum"
"""The field of a saved plan that tells whether the others are still those that were saved."""
EVERY = "(every other)"
"""Stands for the layers that a plan does not name."""


@final
@dataclass(frozen=True, repr=False)
class Plan:
    """Treatments by layer name.

    Args:
        layers: a LayerPlan for each layer name, in the order in which the layers run.
        kept: layers left alone on purpose, and why.
        every: what is done to each supported layer that `layers` does not name; None leaves them alone.
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
        evidence: what the profile knows and predicts of the plan; it changes nothing in training.
    """

    layers: Mapping[str, LayerPlan] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    every: LayerPlan | None = None
    keep: tuple[str, ...] = ()
    attention: int | None = None
    saved: int | None = None
    normalization: bool = False
    channels_last: bool = False
    evidence: Evidence = field(default_factory=Evidence)

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

    @property
    def skipped(self) -> float:
        """The predicted share of the products for dX and dW of all layers, kept ones included, that zeros skip.

        0 where the work is not known; `skipped_of_step` is the share of the whole training step.
        """
        total = self.total_work
        return self._saved / total if total else 0.0

    @property
    def skipped_of_step(self) -> float | None:
        """The share of the multiply-adds of the whole training step, forward and backward, that predicted zeros skip.

        None where the step was not counted, as in a plan without a profile.
        """
        step = self.evidence.step
        return None if step is None else step.share(self._saved)

    @property
    def total_work(self) -> int:
        """Operations of the products for dX and dW of all layers in the profile."""
        return sum(map(sum, self.evidence.work.values()))

    @property
    def _saved(self) -> float:
        return sum(layer.skipped(self.evidence.work.get(name, (0, 0))) for name, layer in self.layers.items())

    # -- changing --

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
        change = Override(sparsity, law, bits, format, scale, rounding, check_backward_products(products))
        if treat and change.empty:
            raise InvalidValue(
                "override needs something to change, such as sparsity=0.9, format='1-4-1' or treat=False."
            )
        if not treat and not change.empty:
            raise InvalidValue("override with treat=False leaves layers alone, so it takes nothing else to change.")
        layers, kept, evidence = dict(self.layers), dict(self.kept), self.evidence
        changed = self._matching(pattern)
        for name in changed:
            found = evidence.statistics.get(name)
            before = layers.pop(name, None) or (self.every if name not in kept else None)
            kept.pop(name, None)
            if treat:
                layers[name] = change.apply(name, before or LayerPlan(masked=found.masked if found else 0.0), found)
            else:
                kept[name] = f"left alone by override({pattern!r})"
        order = dict.fromkeys([*evidence.statistics, *self.layers, *layers])  # as the layers run, new ones at the end
        unpruned = {name: reason for name, reason in evidence.unpruned.items() if name not in changed}
        return replace(
            self,
            layers={name: layers[name] for name in order if name in layers},
            kept=kept,
            evidence=replace(evidence, growth=None, expected=None, unpruned=unpruned),  # of the layers as they were
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

    # -- reading --

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each treated operand and each kept layer: its treatment, share of work and predictions.

        None stands for what is not known.
        """
        step = self.evidence.step
        total = max(self.total_work if step is None else step.total, 1)
        shares = {name: (dX / total, dW / total) for name, (dX, dW) in self.evidence.work.items()}
        named = {**self.layers, **({} if self.every is None else {EVERY: self.every})}
        rows = [row for name, layer in named.items() for row in _rows(name, layer, shares.get(name, (0.0, 0.0)))]
        return rows + [_row(name, "", f"kept: {reason}") for name, reason in self.kept.items()]

    def table(self) -> TextTable:
        """Return a table for the terminal: what is done to each layer, and what theory expects of it."""
        title = f"Plan for {plural(len(self.layers), 'layer')}" + (f", {len(self.kept)} kept" if self.kept else "")
        forms: dict[str, Callable[[Any], str]] = {
            "elements": "{:,}".format,
            "work": percent,
            "zeros": "{:.1%}".format,
            "cosine": lambda cosine: f"{cosine:.4f} {verdict(cosine)}",
            "relative_error": "{:.4f}".format,
        }
        cells = [
            [
                *(row[name] for name in ("layer", "product", "treatment")),
                *(
                    form(row[name]) if row[name] is not None else "–" if row["product"] else ""
                    for name, form in forms.items()
                ),
            ]
            for row in self.rows()
        ]
        columns = ("layer", "<product", "<treatment", "elements/step", "work", "zeros", "cosine", "relative error")
        droppable = ("elements/step", "relative error", "work", "<product")
        return text_table(title, columns, cells, "\n".join(self._notes()), droppable=droppable)

    def _notes(self) -> list[str]:
        """Return what the columns mean, and what holds of the plan as a whole."""
        notes, evidence = [], self.evidence
        expected = [found for layer in self.layers.values() for name in BACKWARD if (found := layer.prediction(name))]
        if self.layers:
            notes.append("Zeros, cosine and relative error, the mean of |error| / |g|, are predicted.")
        if expected:
            notes.append(f"Cosine: {VERDICTS_IN_WORDS}.")
        if any(one.relative_error >= 1 and verdict(one.cosine) != "risky" for one in expected):
            notes.append(LARGE_RELATIVE_ERROR)
        if evidence.unpruned:
            reasons = listed([f"{name}: {reason}" for name, reason in evidence.unpruned.items()], 3)
            notes.append(f"Not pruned: {len(evidence.unpruned)} of the rounded layers ({reasons}).")
        notes += [bits] if (bits := self._bits()) else []
        if self.skipped:
            of_step = self.skipped_of_step
            notes.append(
                "Work is the share of the products for dX and dW of the layers in this plan, kept ones included; the "
                f"whole step was not counted. Predicted zeros skip {self.skipped:.1%} of these products."
                if of_step is None
                else "Work is the share of the multiply-adds of the whole training step; predicted zeros skip "
                f"{percent(of_step)} of it, and {self.skipped:.1%} of the products for dX and dW."
            )
        notes += [] if evidence.step is None else evidence.step.lines(evidence.work)
        return notes + [one.words() for one in (evidence.growth, evidence.expected) if one is not None]

    def _bits(self) -> str:
        """Return whether few bits are real or simulated; empty for a plan that rounds nothing."""
        layers = [*self.layers.values(), *([] if self.every is None else [self.every])]
        sites = [layer.site(product, name) for layer in layers for product in PRODUCTS for name in OPERANDS[product]]
        if not any(one.element_bits is not None for found in sites for one in found):
            return ""
        if not any(layer.has_levels(product) for layer in layers for product in PRODUCTS):
            return "Bits are simulated: rounding saves neither time nor memory."
        real = [SYMBOLS[product] for product in PRODUCTS if all(layer.has_levels(product) for layer in layers)]
        return (
            f"Bits are real in {' and '.join(real) or 'some products'} of layers that integer products serve, unless "
            "dense ones are asked for; elsewhere they are simulated."
        )

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        every = [] if self.every is None else [f"every {'other ' if self.layers else ''}layer: {self.every.words()}"]
        named = [plural(len(self.layers), "layer")] if self.layers or not every else []
        kept = [f"{len(self.kept)} kept"] if self.kept else []
        skipped = [f"{self.skipped:.1%} of the work skipped"] if self.skipped else []
        expected = self.evidence.expected
        noise = [expected.brief] if expected is not None and expected.brief else []
        return f"Plan({', '.join([*named, *every, *kept, *skipped, *noise])})"

    # -- the file --

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, of which `from_dict` makes this plan again."""
        evidence = self.evidence.to_dict()
        return {
            "lograd_plan": VERSION,
            **({} if self.every is None else {"every": self.every.to_dict()}),
            "layers": {name: layer.to_dict() for name, layer in self.layers.items()},
            "kept": dict(self.kept),
            **({"keep": list(self.keep)} if self.keep else {}),
            **{name: bits for name in ("attention", "saved") if (bits := getattr(self, name)) is not None},
            **{name: True for name in SWITCHES if getattr(self, name)},
            **({"evidence": evidence} if evidence else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan that `to_dict` was given; the exact inverse."""
        if not isinstance(data, dict) or data.get("lograd_plan") != VERSION:
            raise InvalidValue(
                f'this is not a plan of version {VERSION}: that is a JSON object with "lograd_plan": {VERSION}.'
            )
        check_object("a plan", data, ("lograd_plan",), (*FIELDS, CHECKSUM))
        rest = {name: value for name, value in data.items() if name != CHECKSUM}
        if data.get(CHECKSUM) not in (None, checksum_of_json(rest)):
            warnings.warn(
                "the plan was changed after lograd saved it, as its checksum tells; if that was on purpose, "
                f"Plan.load(path).save(path) writes a new one, or remove the field {CHECKSUM!r}.",
                LogradWarning,
                stacklevel=3,
            )
        layers, kept = (check_object(name, data.get(name, {}), (), None) for name in ("layers", "kept"))
        if not isinstance(keep := data.get("keep", []), list):
            raise InvalidValue(sentence("keep of a plan", keep, "a list of 'first' and 'last'"))
        return cls(
            {name: LayerPlan.from_dict(layer) for name, layer in layers.items()},
            {name: check_text(f"why layer {name!r} is kept", reason) for name, reason in kept.items()},
            LayerPlan.from_dict(data["every"]) if "every" in data else None,
            tuple(check_text("keep of a plan", one) for one in keep),
            data.get("attention"),
            data.get("saved"),
            evidence=Evidence.from_dict(data.get("evidence", {})),
            **{name: data.get(name, False) for name in SWITCHES},
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON for people, with a checksum at its end by which `load` sees later changes; return its path."""
        data = self.to_dict()
        return replace_file(path, (_pretty(data | {CHECKSUM: checksum_of_json(data)}) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Return the plan in a file; what is wrong with the file is said in one sentence.

        A plan may be edited by hand, so one that was changed after it was saved is checked as strictly as any other,
        and taken with a warning; a plan without a checksum is taken as it is.
        """
        content = read_file(path)
        try:
            return cls.from_dict(read_json(content))
        except LogradError as error:
            raise InvalidValue(f"Cannot read the plan {path}: {error}") from None

    def hash(self) -> str:
        """Return hexadecimal digits that change with anything that changes the training; the evidence does not."""
        content = {name: value for name, value in self.to_dict().items() if name != "evidence"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _rows(name: str, layer: LayerPlan, work: tuple[float, float]) -> list[dict[str, Any]]:
    """Return a row for each treated site; `work` holds the shares of the products for dX and dW."""
    sites: list[tuple[str, Sentence, Prediction | None, float]] = [
        (SYMBOLS[product], layer.site(product, "gradient"), layer.prediction(product), share)
        for product, share in zip(BACKWARD, work, strict=True)
    ]
    if sites[0][1:3] == sites[1][1:3]:
        sites = [("both", *sites[0][1:3], sum(work))]
    sites += [
        (operand if product in BACKWARD else f"{operand} of Y", found, None, 0.0)
        for product in (*BACKWARD, *PRODUCTS[:1])
        for operand in OPERANDS[product]
        if operand != "gradient" and (found := layer.site(product, operand))
    ]
    return [
        _row(name, product, describe(treatments), layer.elements or None, share or None, predicted)
        for product, treatments, predicted, share in sites
    ]


def _row(
    layer: str,
    product: str,
    treatment: str,
    elements: int | None = None,
    work: float | None = None,
    predicted: Prediction | None = None,
) -> dict[str, Any]:
    names = {"zeros": "sparsity", "cosine": "cosine", "relative_error": "relative_error"}
    numbers = {name: None if predicted is None else getattr(predicted, of) for name, of in names.items()}
    row = {"layer": layer, "product": product, "treatment": treatment, "elements": elements, "work": work}
    return row | numbers


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
