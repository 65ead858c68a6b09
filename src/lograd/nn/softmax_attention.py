"""Attention whose six matrix products run in integers: `scaled_dot_product_attention` and the operators behind it.

With P = softmax(s Q K^T + mask) and O = P V, for each slice (a head of a sample),

    forward     S = Q K^T                 O = P V
    backward    dP = dO V^T               dV = P^T dO
                dS = P (dP - sum P dP)    dQ = s dS K           dK = s dS^T Q

- Q, K and V have one range per slice, symmetric, and are rounded to nearest once.  These codes are what is kept for the
  backward, which computes S and P from them again, the same bits as in the forward.
- P is not negative, so its codes are unsigned; each row has its own range, as its scale can be taken out of P V.
- dV sums over the rows of P.  So dO is multiplied by their steps before it is quantized, and dP divided by them.
- dO and dS have one range per slice, symmetric, and are rounded stochastically: unbiased.
- Softmax and its derivative are float32.  Dropout, masks and rows that see nothing (their output is zero) are as in
  torch.nn.functional.scaled_dot_product_attention.

Matrices of (length, length) exist for a few slices at a time only; nothing depends on how many.  A NaN or an infinity
makes the results of its slice NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidType, InvalidValue, sentence
from ..formats.values import check_width
from ..ops import pack_integers
from ..ops.contracts import FLOATS, Takes
from ..ops.registry import call, register
from ..ops.scaled_products import Steps, scaled

ELEMENTS = 2**19
"""Elements of the (length, length) matrices that are in memory at one time; one slice at least."""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    bits: int = 8,
    seed: int | None = None,
) -> Tensor:
    """Return softmax(scale query key^T + mask) value, with all products of forward and backward in integers.

    Args:
        query: (..., length, width); float32, bfloat16 or float16, as key and value.
        key: (..., other length, width).
        value: (..., other length, any width).
        attn_mask: True where a position is seen, or a float tensor that is added; it gets no gradient.
        dropout_p: the probability with which an element of the softmax becomes zero.
        is_causal: each position sees those before it and itself.
        scale: 1 / sqrt(width) if None.
        bits: of all operands, 2 to 8.
        seed: of stochastic rounding and dropout; None draws one from PyTorch's generator.
    """
    reason = reason_not_attended(query, key, value, attn_mask, dropout_p, is_causal)
    if reason is not None:
        raise (InvalidType if "must be float32" in reason else InvalidValue)(reason)
    check_width("bits", bits, 2, 8)
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    q, k, v = (each.expand(*lead, *each.shape[-2:]).reshape(-1, *each.shape[-2:]) for each in (query, key, value))
    bias = _bias(attn_mask, is_causal, q, k)
    if bias is not None:
        bias = bias.expand(*lead, *bias.shape[-2:])
    drawn = torch.randint(2**62, (1,), device=q.device) if seed is None else torch.tensor([seed], device=q.device)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    seeds = torch.cat([drawn, torch.zeros_like(drawn)])
    result: Tensor = _Attention.apply(q, k, v, bias, seeds, factor, dropout_p, bits)  # type: ignore[no-untyped-call]
    return result.view(*lead, *result.shape[-2:])


def reason_not_attended(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool
) -> str | None:
    """Return why attention cannot be computed here, as a sentence; None if it can."""
    for name, each in (("query", query), ("key", key), ("value", value)):
        if each.dtype not in FLOATS or each.dtype != query.dtype:
            return f"query, key and value must be float32, bfloat16 or float16, all the same; {name} is {each.dtype}."
        if each.dim() < 2 or each.is_nested:
            return f"{name} must be a plain tensor (..., length, width); got {each.dim()} dimensions."
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return (
            "query and key must have the same width, key and value the same length; got shapes "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
        )
    if not 0 <= dropout_p < 1:
        return sentence("dropout_p", dropout_p, "from 0 to below 1")
    if attn_mask is not None and is_causal:
        return "attn_mask and is_causal exclude each other."
    if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
        return "attn_mask requires a gradient, which attention in integers does not give."
    return None


def _bias(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the mask as a sum before the softmax: 0 or -inf for one of booleans; no larger than the mask."""
    if causal:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1)
    elif mask is None:
        return None
    elif mask.dtype != torch.bool:
        return mask.detach().float()
    else:
        hidden = ~mask
    return torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, -torch.inf)


class _Attention(torch.autograd.Function):
    """Attention of slices (slices, length, width)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key: Tensor, scale: float, dropout: float,
        bits: int,
    ) -> Tensor:  # fmt: skip
        result, *kept = call("integer_attention", q, k, v, bias, key, scale, dropout, bits)
        ctx.save_for_backward(*kept, bias, key)
        ctx.settings = scale, dropout, bits
        out: Tensor = result
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gradients = call("integer_attention_backward", g, *ctx.saved_tensors, *ctx.settings)
        return *gradients, None, None, None, None, None


# ------------------------------------------------------------------------------------------------------------ operators


class _Slices(NamedTuple):
    """Codes of slices, with the step of each."""

    codes: Tensor
    step: Tensor
    """float32 (slices, 1, 1)."""
    zero: int

    def transposed(self) -> _Slices:
        """Return the slices with rows as columns."""
        return self._replace(codes=self.codes.transpose(1, 2))

    def part(self, where: slice) -> _Slices:
        """Return some of the slices."""
        return self._replace(codes=self.codes[where], step=self.step[where])


def _coded(x: Tensor, bits: int, key: Tensor | None = None) -> _Slices:
    """Return slices as codes, with a range for each; rounded stochastically if there is a key."""
    rounding: Any = "nearest" if key is None else "stochastic"
    packed = pack_integers(x, bits, per="channel", symmetric=True, rounding=rounding, seed=0 if key is None else key)
    return _Slices(packed.codes, packed.scale.reciprocal().view(-1, 1, 1), _zero(bits))


def _ahead(key: Tensor, elements: int) -> Tensor:
    """Return the key of random numbers that lie so many elements ahead."""
    return key + torch.tensor([0, elements], device=key.device)


def _zero(bits: int) -> int:
    return int(2 ** (bits - 1) - 1)


def _product(a: _Slices, b: _Slices, *factors: Tensor | float) -> Tensor:
    """Return a b, times the steps of both and other factors, in this order."""
    sums: Tensor = call("integer_matmul", a.codes, b.codes, a.zero, b.zero, None, None, None)
    return scaled(sums, Steps((a.step, b.step, *factors)))


class _Weights(NamedTuple):
    """P of some slices."""

    p: Tensor
    """float32, before dropout."""
    kept: Tensor | None
    """1 where dropout keeps an element, else 0; None without dropout."""
    codes: Tensor
    """After dropout."""
    rows: Tensor
    """float32 (slices, length, 1): the step of each row, with dropout's 1 / (1 - p); 0 for rows that see nothing."""


def _weights(
    q: _Slices, k: _Slices, bias: Tensor | None, where: slice, key: Tensor, scale: float, dropout: float, bits: int
) -> _Weights:
    """Return P of some slices, from codes: the same in forward and backward."""
    s = _product(q.part(where), k.part(where).transposed(), scale)
    if bias is None:
        p = s.softmax(-1)
    else:
        added = _part_of(bias, where)
        p = s.add_(added).softmax(-1)
        blind = (added == -torch.inf).all(-1, keepdim=True)
        if bool(blind.any()):
            p = p.masked_fill_(blind, 0.0)
    kept = _kept(p, dropout, key, where.start) if dropout else None
    seen = p if kept is None else p * kept
    packed = pack_integers(seen.view(-1, seen.shape[-1]), bits, per="channel")
    step = packed.scale.reciprocal() / (1 - dropout)  # 0 in a row of zeros
    return _Weights(p, kept, packed.codes.view(seen.shape), step.view(*seen.shape[:-1], 1))


def _kept(p: Tensor, dropout: float, key: Tensor, first: int) -> Tensor:
    """Return 1 for elements that dropout keeps, else 0; drawn slice by slice, as few are computed at a time."""
    kept = torch.empty_like(p)
    for place in range(p.shape[0]):
        generator = torch.Generator(p.device).manual_seed((int(key[0]) + first + place) % 2**63)
        kept[place].bernoulli_(1 - dropout, generator=generator)
    return kept


def _part_of(bias: Tensor, where: slice) -> Tensor:
    """Return the bias of some slices, whose leading dimensions are counted as one."""
    lead = bias.shape[:-2]
    if not lead:
        return bias
    places = torch.unravel_index(torch.arange(where.start, where.stop, device=bias.device), lead)
    return bias[places]


def _parts(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Yield the slices that are computed at one time."""
    count = max(1, ELEMENTS // max(1, q.shape[1] * k.shape[1]))
    for start in range(0, q.shape[0], count):
        yield slice(start, min(start + count, q.shape[0]))


def integer_attention(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, key: Tensor, scale: float, dropout: float,
    bits: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return O, and what the backward reads: codes of Q, K and V, and their steps (3, slices)."""
    q, k, v = (_coded(each, bits) for each in (query, keys, values))
    out = torch.empty(*query.shape[:2], values.shape[2], dtype=query.dtype, device=query.device)
    for where in _parts(query, keys):
        p = _weights(q, k, bias, where, key, scale, dropout, bits)
        out[where] = _product(_Slices(p.codes, p.rows, 0), v.part(where))
    return out, q.codes, k.codes, v.codes, torch.stack([each.step.view(-1) for each in (q, k, v)])


def integer_attention_backward(
    g: Tensor, query: Tensor, keys: Tensor, values: Tensor, steps: Tensor, bias: Tensor | None, key: Tensor,
    scale: float, dropout: float, bits: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dQ, dK and dV from the codes that the forward has kept."""
    q, k, v = (
        _Slices(codes, step.view(-1, 1, 1), _zero(bits))
        for codes, step in zip((query, keys, values), steps, strict=True)
    )
    d_q, d_k, d_v = (torch.empty(each.shape, dtype=g.dtype, device=g.device) for each in (query, keys, values))
    behind = g.numel()  # random numbers of dS follow those of dO
    for where in _parts(query, keys):
        p = _weights(q, k, bias, where, key, scale, dropout, bits)
        d_out = _coded(g[where].float() * p.rows, bits, _ahead(key, where.start * g[0].numel()))
        weights = _Slices(p.codes, torch.ones_like(d_out.step), 0)
        d_v[where] = _product(weights.transposed(), d_out)
        d_p = _product(d_out, v.part(where).transposed(), torch.where(p.rows == 0, 0.0, 1 / p.rows))
        if p.kept is not None:
            d_p = d_p.mul_(p.kept).div_(1 - dropout)
        d_s = torch._softmax_backward_data(d_p, p.p, -1, torch.float32)
        coded = _coded(d_s, bits, _ahead(key, behind + where.start * d_s[0].numel()))
        d_q[where] = _product(coded, k.part(where), scale)
        d_k[where] = _product(coded.transposed(), q.part(where), scale)
    return d_q, d_k, d_v


# --------------------------------------------------------------------------------------------------------- registration


def _check(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, key: Tensor, scale: float, dropout: float,
    bits: int,
) -> None:  # fmt: skip
    """Refuse what are not slices of queries, keys and values, with a bias that covers them."""
    shapes = [tuple(each.shape) for each in (query, keys, values)]
    fits = {len(shape) for shape in shapes} == {3} and len({shape[0] for shape in shapes}) == 1
    if not fits or shapes[0][2] != shapes[1][2] or shapes[1][1] != shapes[2][1]:
        raise InvalidValue(f"attention takes slices of queries, keys and values that fit; got shapes {shapes}.")
    if bias is not None:
        sizes = ((1, query.shape[1]), (1, keys.shape[1]))
        covers = bias.dim() >= 2 and all(size in some for size, some in zip(bias.shape[-2:], sizes, strict=True))
        if not covers or (bias.dim() > 2 and bias.shape[:-2].numel() != query.shape[0]):
            raise InvalidValue(
                f"the bias of attention must fit {(*shapes[0][:2], shapes[1][1])}, with all leading dimensions written "
                f"out; got shape {tuple(bias.shape)}."
            )
    if not 0 <= dropout < 1:
        raise InvalidValue(sentence("dropout of attention", dropout, "from 0 to below 1"))


def _check_backward(
    g: Tensor, query: Tensor, keys: Tensor, values: Tensor, steps: Tensor, bias: Tensor | None, key: Tensor,
    scale: float, dropout: float, bits: int,
) -> None:  # fmt: skip
    """Refuse what does not belong together."""
    _check(query, keys, values, bias, key, scale, dropout, bits)
    if tuple(g.shape) != (*query.shape[:2], values.shape[2]):
        raise InvalidValue(f"g must have the shape of the result of attention; got {tuple(g.shape)}.")
    if tuple(steps.shape) != (3, query.shape[0]):
        raise InvalidValue(f"steps must have the shape (3, {query.shape[0]}); got {tuple(steps.shape)}.")


def _fake(query: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    codes = (torch.empty(each.shape, dtype=torch.uint8, device=each.device) for each in (query, keys, values))
    out = query.new_empty((*query.shape[:2], values.shape[2]))
    return out, *codes, query.new_empty((3, query.shape[0]), dtype=torch.float32)


def _fake_backward(g: Tensor, query: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty(each.shape, dtype=g.dtype, device=g.device) for each in (query, keys, values))


_SETTINGS = "Tensor? bias, Tensor key, float scale, float dropout, int bits"
_FLOAT, _CODES, _NUMBERS = Takes(FLOATS), Takes((torch.uint8,)), Takes((torch.float32,))

register(
    f"integer_attention(Tensor query, Tensor keys, Tensor values, {_SETTINGS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    integer_attention,
    integer_attention,
    _fake,
    _check,
    {"query": _FLOAT, "keys": _FLOAT, "values": _FLOAT, "bias": _NUMBERS},
)
register(
    f"integer_attention_backward(Tensor g, Tensor query, Tensor keys, Tensor values, Tensor steps, {_SETTINGS}) -> "
    "(Tensor, Tensor, Tensor)",
    integer_attention_backward,
    integer_attention_backward,
    _fake_backward,
    _check_backward,
    {"query": _CODES, "keys": _CODES, "values": _CODES, "steps": _NUMBERS, "bias": _NUMBERS},
)
