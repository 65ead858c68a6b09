"""Treatments by name, for every layer alike: "fp6", "int5-bhq", "prune85-cosine", "mxfp4-rht", "prune85+fp6"."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import reduce
from typing import Any, Literal

from ..errors import InvalidType, InvalidValue, nearest_name, sentence
from ..formats import BlockFormat, FloatFormat, IntFormat, parse_format
from ..ops.arguments import Rounding
from .atp import Atp
from .blocks import Blocks
from .dithered import Dithered
from .hadamard import Hadamard
from .integers import Integers, Ranges
from .interval import Interval
from .learned import Learned
from .luq import Luq
from .products import ProductPlan, Treated, both, gradients
from .prune import Prune
from .quantize import Quantize
from .rows import Rows
from .s2fp8 import S2fp8
from .sawb import Sawb
from .sentence import Sentence
from .statquant import StatQuant
from .topk import TopK, TopKStochastic
from .treatment import Treatment

EXPONENTS = {4: 3, 5: 4, 6: 4, 7: 4, 8: 5}
"""Exponent bits of FP4 to FP8: the Cifar100 row of Table 2 of [chmiel2021]."""


PERCENT = r"(\d\d(?:\.\d+)?)"


@dataclass(frozen=True)
class Recipe:
    """A family of names."""

    name: str
    """As it is listed: N, NN stand for digits."""
    example: str
    words: str
    """What it does, in one line."""
    reference: str
    """The key of the paper in `lograd cite`; "lograd" for what stands in none."""
    pattern: str
    build: Callable[..., Treated]


def _float(bits: str) -> FloatFormat:
    exponent = EXPONENTS[int(bits)]
    return FloatFormat(exponent, int(bits) - 1 - exponent)


def _float_by_rule(bits: str, rule: str) -> Treated:
    percent = rule.removeprefix("quantile")
    return both(Quantize(_float(bits), rule if percent == rule else f"quantile({_fraction(percent)})"))


def _fraction(percent: str) -> float:
    return float(Decimal(percent) / 100)


def _pruned(percent: str, variant: str | None = None) -> Treated:
    if variant == "cosine":
        return both(Prune(_fraction(percent), allocation="cosine"))
    law: Any = variant or "empirical"
    return both(Prune(_fraction(percent), law))


def _largest(percent: str, variant: str | None = None) -> Treated:
    if variant == "stochastic":
        return both(TopKStochastic(_fraction(percent)))
    over: Any = variant or "tensor"
    return both(TopK(_fraction(percent), over))


def _rows(of: str | None, sparsity: float | None = None, noise: float | None = None) -> Treated:
    return both(Rows(sparsity, noise, of="sample" if of else "row"))


def _rows_first(treatments: Sentence) -> Sentence:
    """Return a sentence with its rows in front: what is dropped needs no other treatment."""
    return tuple(sorted(treatments, key=lambda one: not isinstance(one, Rows)))


def _blocks(*names: str | None) -> Treated:
    """Return blocks of the format whose spelling matched."""
    format: Any = next(filter(None, names))
    return both(Blocks(format))


def _statquant(bits: str, method: Literal["ptq", "psq", "bhq"]) -> Treated:
    return gradients((StatQuant(int(bits), method),), (StatQuant(8, "ptq"),))


def saw(percent: str) -> Treated:
    """SAW [raihan2020], or SWAT: the operands that the gradient meets are sparse, the gradient itself is dense.

    In the paper the forward pass takes the sparse weights, too; here it stays as it is.  The threshold is that of each
    tensor, where the paper keeps one for several batches.

    @inproceedings{raihan2020,
      title     = {Sparse Weight Activation Training},
      author    = {Raihan, Md Aamir and Aamodt, Tor M.},
      booktitle = {Advances in Neural Information Processing Systems},
      year      = {2020}
    }
    """
    operand = (TopK(_fraction(percent)),)
    return Treated(input_gradient=ProductPlan(weights=operand), weight_gradient=ProductPlan(activations=operand))


def hfp8() -> Treated:
    """HFP8 [sun2019]: gradients 1-5-2, weights and activations 1-4-3 with an exponent bias of 11, to nearest.

    The forward pass stays as it is.  The paper scales the loss; here each layer's gradient has its own scale.  It keeps
    the first and the last layer in FP16; `plan.override(name, treat=False)` leaves them alone.  The bias is that of
    third-party code.

    @inproceedings{sun2019,
      title     = {Hybrid 8-bit Floating Point ({HFP8}) Training and Inference for Deep Neural Networks},
      author    = {Sun, Xiao and Choi, Jungwook and Chen, Chia-Yu and Wang, Naigang and Venkataramani, Swagath and
                   Srinivasan, Vijayalakshmi and Cui, Xiaodong and Zhang, Wei and Gopalakrishnan, Kailash},
      booktitle = {Advances in Neural Information Processing Systems},
      year      = {2019}
    }
    """
    gradient = (Quantize(FloatFormat(5, 2), rounding="nearest"),)
    operand = (Quantize(FloatFormat(4, 3, bias=11), "2^0", "nearest"),)
    return Treated(
        input_gradient=ProductPlan(gradient, weights=operand),
        weight_gradient=ProductPlan(gradient, activations=operand),
    )


# ------------------------------------------------------------------------------------------- methods for all operands


def _full_integers(
    bits: str, po2: str | None = None, activations: Integers | None = None, gradient: Integers | None = None
) -> Treated:
    """Return all operands as levels: weights per channel, activations in hindsight, gradients stochastic.

    The gradient is coded twice.  dX sums over outputs, so it needs one range, with the weights' steps in the gradient;
    dW sums over samples, so each output has a range of its own there.  A BatchNorm behind outputs without weights gives
    these gradients hundreds of times larger than others, which would else have no codes left.

    Args:
        po2: given, steps of all operands are powers of two.
        activations: how activations are rounded; without, to as many bits, with one range in hindsight.
        gradient: how the gradient is rounded for dX; without, with one range.
    """
    # Eight bits around the middle are signed bytes as they are; elsewhere in 0 to 255 they would need a correction.
    whole = Integers(int(bits), symmetric=bits == "8", rounding="stochastic", power_of_two=bool(po2))
    by_output = whole if po2 else Integers(int(bits), "column", symmetric=True, rounding="stochastic")
    return _levels(int(bits), (gradient or whole,), (by_output,), bool(po2), activations)


def _full_integers_by_row(bits: str) -> Treated:
    """Return `_full_integers` with a range for each row of activations and gradients of linear layers.

    Activations of pre-trained transformers reach 17 to 95 standard deviations in a few tokens, and one range for all
    tokens leaves the others few levels.  So it is with gradients, most of whose rows are far smaller than a few: dX has
    a row for each, so each may have its range.  The steps of the activations' rows are in the gradient before it is
    rounded for dW.  Patches of convolutions meet several rows, so these have one range.
    """
    return _full_integers(bits, None, Integers(int(bits), "row"), _by_row(bits))


def _by_row(bits: str) -> Integers:
    return Integers(int(bits), "row", symmetric=True, rounding="stochastic")


def _mixed_integers(activations: str, bits: str, rows: str | None = None) -> Treated:
    """Return whole methods whose activations have another width than weights and gradients."""
    operand = Integers(int(activations), "row") if rows else Integers(int(activations), ranges="hindsight")
    return _full_integers(bits, None, operand, _by_row(bits) if rows else None)


def _luq4(samples: str | None = None, hindsight: str | None = None) -> Treated:
    """Return LUQ of [chmiel2023]: INT4 weights and activations by SAWB, gradients in unbiased powers of two.

    Args:
        samples: SMP, so many draws of the gradient, whose mean enters the product for dW; dX has one draw.  (The
            released code hands the mean to both.)
        hindsight: given, the largest magnitude is that of earlier gradients.
    """
    ranges: Ranges = "hindsight" if hindsight else "current"
    operand, one = (Sawb(4),), (Luq(4, ranges=ranges),)
    mean = (Luq(4, samples=int(samples), ranges=ranges),) if samples else one
    return _shared(operand, operand, one, mean)


def _full_interval(bits: str) -> Treated:
    """Return the method of [kim2024]: learned clips of weights and activations, gradients in an interval that follows.

    The paper's values are in units of the clip, which a BatchNorm behind the layer undoes; here they keep their size.
    """
    operand, gradient = (Learned(int(bits)),), (Interval(int(bits)),)
    return _shared(operand, operand, gradient, gradient)


def _weights_and_activations(bits: str, method: str | None = None) -> Treated:
    """Return activations and weights as levels, and gradients as they are.

    Args:
        method: "clips" or "lsq" learns the ranges; without, weights have that of each channel and activations one in
            hindsight.
    """
    if method is None:
        return _levels(int(bits), (), ())
    operand = (Learned(int(bits), "lsq" if method == "lsq" else "clip"),)
    return _shared(operand, operand, (), ())


def _levels(
    bits: int, gradient: Sentence, by_output: Sentence, power_of_two: bool = False, activations: Integers | None = None
) -> Treated:
    operand = activations or Integers(bits, ranges="hindsight", power_of_two=power_of_two)
    weights = (Integers(bits, "channel", symmetric=True, power_of_two=power_of_two),)
    return _shared((operand,), weights, gradient, by_output)


def _fqt(bits: str, method: Literal["ptq", "psq", "bhq"]) -> Treated:
    """Return fully quantized training of [chen2020]: 8-bit weights and activations per tensor, gradients twice.

    The gradient has `bits` by the method in the product for dX, and 8 bits per tensor in that for dW.  The paper treats
    all layers: `Plan.uniform(name, keep=())`.
    """
    operand = (Integers(8),)
    return _shared(operand, operand, (StatQuant(int(bits), method),), (StatQuant(8, "ptq"),))


def _mxfp4_full() -> Treated:
    """Return MXFP4 in all products: the output to nearest, the backward as [tseng2025].

    There both operands are rounded stochastically and without bias, under one random Hadamard transform.  (The paper
    leaves the output in higher precision.)
    """
    nearest, unbiased = (_rounded_blocks("mxfp4", "nearest"),), (Hadamard(_rounded_blocks("mxfp4", "stochastic")),)
    return Treated(
        ProductPlan(activations=nearest, weights=nearest),
        ProductPlan(unbiased, weights=unbiased),
        ProductPlan(unbiased, activations=unbiased),
    )


def _nvfp4_full() -> Treated:
    """Return NVFP4 in all products as [nvidia2025]: gradients stochastic, all else to nearest.

    Both operands of dW are under a random Hadamard transform of 16 neighbours.  The paper's scales for squares of
    weights, which it has in order to use one copy in Y and dX, are not part of it: each product rounds its own.
    """
    nearest, stochastic = _rounded_blocks("nvfp4", "nearest"), _rounded_blocks("nvfp4", "stochastic")
    return Treated(
        ProductPlan(activations=(nearest,), weights=(nearest,)),
        ProductPlan((stochastic,), weights=(nearest,)),
        ProductPlan((Hadamard(stochastic, 16),), activations=(Hadamard(nearest, 16),)),
    )


def _rounded_blocks(name: str, rounding: Rounding) -> Blocks:
    format = parse_format(name)
    assert isinstance(format, BlockFormat)
    return Blocks(format, rounding)


def _shared(activations: Sentence, weights: Sentence, for_input: Sentence, for_weight: Sentence) -> Treated:
    """Return the recipe whose weights and activations are the same in the output and in the backward."""
    return Treated(
        ProductPlan(activations=activations, weights=weights),
        ProductPlan(for_input, weights=weights),
        ProductPlan(for_weight, activations=activations),
    )


# ----------------------------------------------------------------------------------------------------------- the names

RECIPES: tuple[Recipe, ...] = (
    Recipe("identity", "identity", "nothing is changed, and all is counted", "lograd", "identity", Treated),
    Recipe(
        "fpN", "fp6", "float of 4 to 8 bits, largest magnitude at the top, stochastic", "chmiel2021", r"fp([4-8])",
        lambda bits: both(Quantize(_float(bits))),
    ),
    Recipe(
        "fpN-lognormal", "fp6-lognormal", "as the released code: mean of log2 |g| three octaves below 1, to nearest",
        "chmiel2021", r"fp([4-8])-lognormal", lambda bits: both(Quantize(_float(bits), "mean-3", "nearest")),
    ),
    Recipe(
        "fpN-RULE", "fp6-expected_max", "with another scale: max, mean, mean-3, expected_max or quantile99.9",
        "chmiel2021", r"fp([4-8])-(max|mean|mean-3|expected_max|quantile\d\d(?:\.\d+)?)", _float_by_rule,
    ),
    Recipe(
        "fpN-staticK", "fp4-static16", "one loss scale 2^K for all layers, to nearest, saturating", "chmiel2021",
        r"fp([4-8])-static(\d{1,2})", lambda bits, k: both(Quantize(_float(bits), f"2^{k}", "nearest")),
    ),
    Recipe(
        "fpN-dynamic", "fp4-dynamic", "for a GradScaler around the step: overflow of the format is infinite",
        "micikevicius2018", r"fp([4-8])-dynamic",
        lambda bits: both(Quantize(_float(bits), "2^0", "nearest", "infinity")),
    ),
    Recipe(
        "fpN-luq", "fp4-luq", "powers of two up to the largest magnitude, unbiased", "chmiel2023", r"fp([2-8])-luq",
        lambda bits: both(Luq(int(bits))),
    ),
    Recipe(
        "fpN-luq-smpK", "fp4-luq-smp2", "as fpN-luq, with the mean of K draws in dW", "chmiel2023",
        r"fp([2-7])-luq-smp(\d{1,2})",
        lambda bits, samples: gradients((Luq(int(bits)),), (Luq(int(bits), samples=int(samples)),)),
    ),
    Recipe(
        "intN", "int8", "integers of 2 to 8 bits, largest magnitude at the top, stochastic", "lograd", r"int([2-8])",
        lambda bits: both(Quantize(IntFormat(int(bits)))),
    ),
    Recipe(
        "intN-squared, intN-cosine", "int4-cosine",
        "large magnitudes cut off for the least squared error, or for the largest cosine", "zhu2020",
        r"int([2-8])-(squared|cosine)", lambda bits, rule: both(Quantize(IntFormat(int(bits)), rule)),
    ),
    Recipe(
        "intN-ptq", "int8-ptq", "one range per tensor; dW with 8 bits per tensor", "chen2020", r"int([2-8])-(ptq)",
        _statquant,
    ),
    Recipe(
        "intN-psq", "int8-psq", "one range per sample; dW with 8 bits per tensor", "chen2020", r"int([2-8])-(psq)",
        _statquant,
    ),
    Recipe(
        "intN-bhq", "int5-bhq", "block Householder; dW with 8 bits per tensor", "chen2020", r"int([2-8])-(bhq)",
        _statquant,
    ),
    Recipe(
        "intN-interval", "int4-interval", "a clipped interval that follows its clipped share", "kim2024",
        r"int([2-8])-interval", lambda bits: both(Interval(int(bits))),
    ),
    Recipe(
        "mxfp4, mxfp6, mxfp8", "mxfp4", "blocks of 32 with a power-of-two scale; also mxfp6-e2m3, mxfp8-e5m2",
        "tseng2025", r"(mxfp[468])|(mxfp4)-e2m1|(mxfp6)-e3m2|(mxfp8)-e4m3|(mxfp6-e2m3|mxfp8-e5m2)",
        _blocks,
    ),
    Recipe(
        "nvfp4", "nvfp4", "blocks of 16 with an E4M3 scale, and one scale per tensor", "nvidia2025", "nvfp4",
        lambda: _blocks("nvfp4"),
    ),
    Recipe(
        "s2fp8", "s2fp8", "logarithms shifted and squeezed into 1-5-2", "cambier2020", "s2fp8", lambda: both(S2fp8())
    ),
    Recipe(
        "hfp8", "hfp8", "gradients 1-5-2; the weights and activations that they meet 1-4-3", "sun2019", "hfp8", hfp8
    ),
    Recipe(
        "pruneNN", "prune85", "stochastic pruning to NN % zeros by the gradient's own histogram", "chmiel2021",
        rf"prune{PERCENT}", _pruned,
    ),
    Recipe(
        "pruneNN-LAW", "prune85-lognormal", "with the threshold of a lognormal or a normal law", "chmiel2021",
        rf"prune{PERCENT}-(lognormal|normal)", _pruned,
    ),
    Recipe(
        "pruneNN-cosine", "prune85-cosine", "NN % of the work of all layers, all with the same cosine", "lograd",
        rf"prune{PERCENT}-(cosine)", _pruned,
    ),
    Recipe(
        "rowsNN, rowsNN-sample", "rows85",
        "NN % of the rows (tokens, pixels), or of the samples, dropped without bias",
        "wang2024", rf"rows{PERCENT}(-sample)?", lambda percent, of=None: _rows(of, sparsity=_fraction(percent)),
    ),
    Recipe(
        "rows-noiseR, rows-noiseR-sample", "rows-noise0.02",
        "as many rows dropped as add the share R of the gradient's energy", "wang2024",
        r"rows-noise(\d*\.?\d+)(-sample)?", lambda noise, of=None: _rows(of, noise=float(noise)),
    ),
    Recipe(
        "rows-exact", "rows-exact", "rows that are zero are not multiplied, and nothing else is changed", "lograd",
        "rows-exact", lambda: both(Rows(noise=0.0)),
    ),
    Recipe(
        "topkNN", "topk85", "the NN % smallest magnitudes of the tensor become zero", "chmiel2021", rf"topk{PERCENT}",
        _largest,
    ),
    Recipe(
        "topkNN-sample", "topk85-sample", "meProp: of each sample", "sun2017", rf"topk{PERCENT}-(sample)", _largest
    ),
    Recipe(
        "topkNN-batch", "topk85-batch", "unified meProp: the same positions in all samples", "sun2017",
        rf"topk{PERCENT}-(batch)", _largest,
    ),
    Recipe(
        "topkNN-stochastic", "topk85-stochastic", "stochastic pruning at the top-k threshold: fewer zeros than asked",
        "chmiel2021", rf"topk{PERCENT}-(stochastic)", _largest,
    ),
    Recipe(
        "atpNN", "atp85", "threshold of a normal law, mean of the last five batches", "ye2020", rf"atp{PERCENT}",
        lambda percent: both(Atp(_fraction(percent))),
    ),
    Recipe(
        "sawNN", "saw80", "weights and activations top-k pruned in the backward products, gradients dense",
        "raihan2020", rf"saw{PERCENT}", saw,
    ),
    Recipe(
        "dithered, ditheredS", "dithered", "multiples of S standard deviations, or of one, stochastic", "wiedemann2020",
        r"dithered(\d(?:\.\d+)?)?", lambda factor: both(Dithered(float(factor or 1))),
    ),
)  # fmt: skip
"""Families of names that treat the backward products."""

FULL_RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "intN-full", "int6-full", "all three products in integers: weights per channel, gradients stochastic",
        "fournarakis2021", r"int([2-8])-full", _full_integers,
    ),
    Recipe(
        "intN-full-po2", "int8-full-po2", "as intN-full, with steps that are powers of two", "lograd",
        r"int([2-8])-full-(po2)", _full_integers,
    ),
    Recipe(
        "intN-full-rows", "int6-full-rows",
        "as intN-full, with ranges by row for activations and gradients of linear layers", "lograd",
        r"int([2-8])-full-rows", _full_integers_by_row,
    ),
    Recipe(
        "intAxN-full, intAxN-full-rows", "int8x6-full-rows",
        "as intN-full or intN-full-rows, with activations of A bits", "lograd",
        r"int([2-8])x([2-8])-full(-rows)?", _mixed_integers,
    ),
    Recipe(
        "luq4, luq4-hindsight", "luq4", "all three products: INT4 weights and activations, gradients powers of two",
        "chmiel2023", "luq4()(?:-(hindsight))?", _luq4,
    ),
    Recipe(
        "luq4-smpK", "luq4-smp2", "as luq4, with the mean of K draws of the gradient in dW; also -hindsight",
        "chmiel2023", "luq4-smp(2|4|8|16)(?:-(hindsight))?", _luq4,
    ),
    *(
        Recipe(
            f"fqtN-{method}", f"fqt{bits}-{method}",
            f"all three products in integers: 8 bits; for dX gradients of N bits, {words}", "chen2020",
            rf"fqt([2-8])-({method})", _fqt,
        )
        for bits, method, words in ((8, "ptq", "per tensor"), (8, "psq", "per sample"), (5, "bhq", "in blocks of rows"))
    ),
    Recipe(
        "mxfp4-full", "mxfp4-full", "all three products in MXFP4: Y to nearest, dX and dW unbiased under Hadamard",
        "tseng2025", "mxfp4-full", _mxfp4_full,
    ),
    Recipe(
        "nvfp4-full", "nvfp4-full", "all three products in NVFP4: gradients stochastic, dW under Hadamard",
        "nvidia2025", "nvfp4-full", _nvfp4_full,
    ),
    Recipe(
        "intN-full-interval", "int4-full-interval",
        "all three products: weights and activations with learned clips, gradients in an interval", "kim2024",
        r"int([2-8])-full-interval", _full_interval,
    ),
    Recipe(
        "intNwa, intNwa-clips, intNwa-lsq", "int4wa",
        "weights and activations as levels, gradients as they are; ranges by channel, or learned", "lograd",
        r"int([2-8])wa(?:-(clips|lsq))?", _weights_and_activations,
    ),
)  # fmt: skip
"""Families of names that treat all three products, that of the output included."""

ALL_RECIPES = RECIPES + FULL_RECIPES
"""All families of names."""

registered: dict[str, Treated] = {}
"""Treatments that users have named by `register_recipe`."""

MODIFIERS: dict[str, tuple[str, Callable[[Treatment], Treatment]]] = {
    "nearest": ("rounded to nearest", lambda one: _with_rounding(one, "nearest")),
    "stochastic": ("rounded stochastically", lambda one: _with_rounding(one, "stochastic")),
    "rht": ("under a random Hadamard transform", lambda one: _transformed(one, True)),
    "ht": ("under a Hadamard transform without random signs", lambda one: _transformed(one, False)),
}
"""Endings that any recipe may have which they make sense for."""


def register_recipe(name: str, treatment: Treatment | Sentence | Treated) -> None:
    """Give a treatment a name, which serves wherever a recipe does until the process ends.

    Plans hold the treatment itself, so their files are read without the name.  A name may be given anew.

    Args:
        name: letters, digits, "-", "_" and ".", beginning with a letter.
        treatment: what is done to the gradient, a treatment or a tuple of them; or a `Treated`, which says it for each
            operand of each product, as `recipe` returns it.

    >>> register_recipe("half", Prune(0.5))
    >>> [str(one) for one in recipe("half+fp8").input_gradient.gradient]
    ['prune 0.5', '1-5-2 scale max']
    """
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z][\w.-]*", name, re.ASCII)):
        raise InvalidValue(
            sentence("the name of a recipe", name, "letters, digits, '-', '_' and '.', beginning with a letter")
        )
    ending = name.rpartition("-")[2]
    if ending in MODIFIERS:
        raise InvalidValue(f"{name!r} ends in -{ending}, which is an ending that any recipe may have; take another.")
    if name in ("auto", "dense") or any(re.fullmatch(entry.pattern, name, re.ASCII) for entry in ALL_RECIPES):
        raise InvalidValue(f"{name!r} means something already in lograd; take another name.")
    if isinstance(treatment, Treatment):
        treatment = (treatment,)
    registered[name] = treatment if isinstance(treatment, Treated) else gradients(treatment, treatment)


def recipe(name: str) -> Treated:
    """Return the treatments that a name stands for.

    Parts joined by "+" follow each other, but rows are dropped first.
    "A/B" treats the gradient by A for dX and by B for dW; "identity/prune85"
    prunes for dW alone.  There, B is what B does to the gradient for dX: "mxfp4/int5-bhq" takes int5-bhq for dW.
    Where B is a whole method, its dW is taken as it is: "mxfp4-full/nvfp4-full" has the dW of nvfp4-full.
    Endings: -nearest or -stochastic, and -rht or -ht.

    >>> [str(treatment) for treatment in recipe("prune85+fp6").input_gradient.gradient]
    ['prune 0.85', '1-4-1 scale max']
    >>> [str(treatment) for treatment in recipe("int5-bhq").weight_gradient.gradient]
    ['int8 ptq']
    """
    if not isinstance(name, str):
        raise InvalidType(sentence("a recipe", name, "a name such as 'prune85' or 'fp6'; `lograd recipes` lists them"))
    sides = [_sentence(side, name) for side in name.split("/")]
    if len(sides) > 2:
        raise InvalidValue(f"{name!r} is not a recipe; '/' parts the treatments for dX from those for dW, once.")
    first, last = sides[0], sides[-1]
    if len(sides) == 1:
        return first
    for_weights = last.weight_gradient
    if not last.output.treats:
        for_weights = replace(for_weights, gradient=last.input_gradient.gradient)
    return Treated(first.output, first.input_gradient, for_weights)


def _sentence(side: str, name: str) -> Treated:
    return reduce(Treated.then, (_part(part.strip(), name) for part in side.split("+"))).map(_rows_first)


def _part(part: str, name: str, endings: tuple[str, ...] = ()) -> Treated:
    if part in registered:
        return registered[part]
    for entry in ALL_RECIPES:
        if match := re.fullmatch(entry.pattern, part, re.ASCII):
            return entry.build(*match.groups())
    start, _, ending = part.rpartition("-")
    if start and ending in MODIFIERS:
        if any(ending.endswith("ht") == other.endswith("ht") for other in endings):
            raise InvalidValue(f"{name!r} has the endings -{ending} and -{endings[0]}; one of them will do.")
        found = _part(start, name, (ending, *endings))
        if not found.treats:
            raise InvalidValue(f"{name!r} treats nothing, so '-{ending}' says nothing about it; leave it out.")
        return found.map(lambda treatments: tuple(map(MODIFIERS[ending][1], treatments)))
    examples = [*registered, *(entry.example for entry in ALL_RECIPES)]
    raise InvalidValue(
        f"{name!r} is not a recipe; `lograd recipes` lists them, such as fp6, prune85, int5-bhq and mxfp4."
        f"{nearest_name(part, examples)}"
    )


def _transformed(treatment: Treatment, random: bool) -> Treatment:
    """Return a treatment under a Hadamard transform; one that has a transform keeps the block of it."""
    if isinstance(treatment, Hadamard):
        return replace(treatment, random=random)
    return Hadamard(treatment, random=random)


def _with_rounding(treatment: Treatment, rounding: str) -> Treatment:
    if isinstance(treatment, Hadamard):
        return replace(treatment, inner=_with_rounding(treatment.inner, rounding))
    if all(field.name != "rounding" for field in fields(treatment)):
        raise InvalidValue(
            f"{treatment} has one way of rounding, so '-{rounding}' says nothing about it; leave it out."
        )
    changed: Any = {"rounding": rounding}
    return replace(treatment, **changed)
