"""Treatments as values: their words, what plan files hold of them, and what is refused, each in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lograd
from lograd import FloatFormat, InvalidType, InvalidValue, LayerPlan, Plan, treatments
from lograd.laws import LogNormal
from lograd.treatments import recipe

t: Any = treatments
HINDSIGHT = t.Integers(4, ranges="hindsight")

WORDS: dict[str, Any] = {
    "fp4 LUQ, mean of 2": t.Luq(4, samples=2),
    "fp4 LUQ, in hindsight": t.Luq(4, ranges="hindsight"),
    "fp3 LUQ, mean of 4, in hindsight": t.Luq(3, samples=4, ranges="hindsight"),
    "int4 levels, in hindsight": HINDSIGHT,
    "int6 levels, per channel, symmetric": t.Integers(6, "channel", symmetric=True),
    "int8 levels, stochastic": t.Integers(8, rounding="stochastic"),
    "int8 levels, steps of powers of two": t.Integers(8, power_of_two=True),
    "int4 levels, learned clip": t.Learned(4),
    "int8 levels, LSQ": t.Learned(8, "lsq"),
    "int2 levels, SAWB": t.Sawb(2),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_treatment_comes_back_from_json_and_has_words(words: str) -> None:
    assert str(WORDS[words]) == words
    assert t.Treatment.from_json(WORDS[words].to_json()) == WORDS[words]


def test_rare_fields_and_claims() -> None:
    assert t.Luq(4).to_json() == {"kind": "luq", "bits": 4, "rounding": "stochastic"}, "older plans read the same"
    assert "power_of_two" not in t.Integers(8).to_json(), "older plans read the same"
    assert t.Luq(4, samples=2).unbiased
    assert not t.Luq(4, ranges="hindsight").unbiased  # what is outside is cut off
    assert t.Integers(5, rounding="stochastic").unbiased
    assert not t.Integers(5, rounding="stochastic", ranges="hindsight").unbiased
    assert t.Integers(5).element_bits == 5
    assert len(t.memories((t.Integers(4), HINDSIGHT), torch.zeros(3))[1]) == 3


def attached(*parts: str) -> Callable[[], Any]:
    return lambda: lograd.attach(nn.Linear(8, 8), Plan(every=LayerPlan.of(recipe("+".join(parts)))))


REFUSED: dict[str, Callable[[], Any]] = {
    # fields
    "samples of LUQ with 4 bits must be a power of two up to 16": lambda: t.Luq(samples=3),
    "a power of two up to 16, so that a mean has a code; got 0": lambda: t.Luq(samples=0),
    "a power of two up to 16, so that a mean has a code; got True": lambda: t.Luq(samples=True),
    "samples of LUQ with 8 bits must be 1": lambda: t.Luq(8, samples=2),
    "all draws are the same": lambda: t.Luq(samples=2, rounding="nearest"),
    "ranges must be one of": lambda: t.Luq(ranges="foresight"),
    "bits must be": lambda: t.Integers(1),
    "per must be one of": lambda: t.Integers(4, "token"),
    "power_of_two": lambda: t.Integers(4, power_of_two=2),
    "rounding must be": lambda: t.Integers(4, rounding="up"),
    "remembers one range, per='tensor'; per='channel'": lambda: t.Integers(4, "channel", ranges="hindsight"),
    "remembers one range, per='tensor'; per='row'": lambda: t.Integers(4, "row", ranges="hindsight"),
    "takes symmetric=True": lambda: t.Integers(4, "row", power_of_two=True),
    "2, 4 or 5": lambda: t.Sawb(3),
    "'clip', 'lsq'": lambda: t.Learned(4, "pact"),
    "one treatment of a sentence may learn": attached("int4wa-clips", "int4wa-lsq"),
    "sparsity must be above 0 and below 1": lambda: t.Prune(1.2),
    "sparsity must be a number above 0 and below 1": lambda: t.Prune("0.5"),
    "Did you mean 'lognormal'": lambda: t.Prune(0.5, "lognorm"),
    "Did you mean 'cosine'": lambda: t.Prune(0.5, allocation="cosin"),
    "at most 8 bits": lambda: t.Quantize(FloatFormat(5, 10)),
    "takes a FloatFormat or an IntFormat": lambda: t.Quantize("mxfp4"),
    "Did you mean 'max'": lambda: t.Quantize("1-4-1", scale="maxx"),
    "rounding must be one of 'stochastic', 'nearest'": lambda: t.Quantize("1-4-1", rounding="up"),
    "between 2": lambda: t.Quantize("1-4-1", "2^200"),
    "overflow must be one of 'saturate', 'infinity'": lambda: t.Quantize("1-4-1", overflow="wrap"),
    "one of 16, 32, 64, 128": lambda: t.Hadamard(recipe("mxfp4").input_gradient.gradient[0], block=48),
    "an Empirical law of one layer": lambda: t.Statistics(LogNormal(0, 1)),
    # JSON
    "Did you mean 'prune'": lambda: t.Treatment.from_json({"kind": "prunes", "sparsity": 0.5}),
    "Did you mean 'sparsity'": lambda: t.Treatment.from_json({"kind": "prune", "sparsty": 0.5}),
    "needs its field 'sparsity'": lambda: t.Treatment.from_json({"kind": "prune"}),
    'an object with a "kind"': lambda: t.Treatment.from_json([1]),
    "this is not a plan": lambda: Plan.from_dict({"layers": {}}),
    "not a plan of version 2": lambda: Plan.from_dict({"lograd_plan": 1}),
    "Did you mean 'layers'": lambda: Plan.from_dict({"lograd_plan": 2, "layer": {}}),
    # names of recipes
    "Did you mean 'fp6'": lambda: recipe("fp66"),
    "Did you mean 'topk85-sample'": lambda: recipe("topk85-samples"),
    "cannot hold 1-4-1 scale max": lambda: recipe("fp6-rht"),
    "has one way of rounding": lambda: recipe("dithered-nearest"),
    "'a/b/c' is not a recipe": lambda: recipe("a/b/c"),
    "'prune100' is not a recipe": lambda: recipe("prune100"),
    "'prune８５' is not a recipe": lambda: recipe("prune８５"),  # noqa: RUF001
    "'dithered85' is not a recipe": lambda: recipe("dithered85"),
    "'dithered.' is not a recipe": lambda: recipe("dithered."),
    "'mxfp6-e4m3' is not a recipe": lambda: recipe("mxfp6-e4m3"),
    "treats nothing": lambda: recipe("identity-rht"),
    "endings -rht and -ht": lambda: recipe("mxfp4-rht-ht"),
    "endings -nearest and -stochastic": lambda: recipe("fp6-nearest-stochastic"),
    "parts the treatments for dX from those for dW, once": lambda: recipe("fp6/fp5/fp4"),
    "beginning with a letter; got 'a+b'": lambda: lograd.register_recipe("a+b", t.Prune(0.5)),
    "beginning with a letter; got 3": lambda: lograd.register_recipe(3, t.Prune(0.5)),  # type: ignore[arg-type]
    "ends in -rht": lambda: lograd.register_recipe("mine-rht", t.Prune(0.5)),
    "'prune12' means something already": lambda: lograd.register_recipe("prune12", t.Prune(0.5)),
    "'dense' means something already": lambda: lograd.register_recipe("dense", t.Prune(0.5)),
    "a tuple of treatments": lambda: lograd.register_recipe("mine", "prune85"),  # type: ignore[arg-type]
    # plans
    "nothing may stand before it": lambda: LayerPlan.of(recipe("topk50+prune80-cosine")),
    "threshold of its own": lambda: Plan.uniform("atp85").override("fc", sparsity=0.5),
    "gradient cannot be treated there": lambda: LayerPlan(output=recipe("fp6").input_gradient),
    "cannot treat weights": lambda: LayerPlan(output=t.ProductPlan(weights=(t.Prune(0.5, allocation="cosine"),))),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises((InvalidValue, InvalidType)) as caught:
        REFUSED[words]()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_plan_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(InvalidValue, match=r"Cannot read the plan .*plan\.json: it is not JSON"):
        Plan.load(path)
    with pytest.raises(OSError, match="No such file"):
        Plan.load(tmp_path / "missing.json")
