"""Formats that are made inside of what torch.compile compiles: no graph break, and the bits of eager code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bits import assert_same_bits, awkward
from everyday import daily
from torch import Tensor

import lograd
from lograd import BlockFormat, FloatFormat, IntFormat, InvalidType, InvalidValue, ops, parse_format
from lograd.formats import CATALOGUE

E8M0_TEXT = "0-8-0:fn:nozero"

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: ops.quantize(x, FloatFormat(exponent=5, mantissa=2), scale=1.0, rounding="nearest"),
    "float, stochastic": lambda x: ops.quantize(x, FloatFormat(3, 0), 0.3, "stochastic", 7, 11),
    "float with all options": lambda x: ops.quantize(x, FloatFormat(4, 3, bias=5, specials="fnuz")),
    "integer": lambda x: ops.quantize(x, IntFormat(bits=4), 2.0, "stochastic", 3),
    "symmetric integer": lambda x: ops.quantize(x, IntFormat(4, symmetric=True)),
    "text": lambda x: ops.quantize(x, parse_format("1-4-1")),
    "text with options": lambda x: ops.quantize(x, parse_format("1-4-3:fn:bias=9"), 3.0),
    "name": lambda x: ops.quantize(x, parse_format("e5m2")),
    "catalogue": lambda x: ops.quantize(x, CATALOGUE["e2m1"]),  # type: ignore[arg-type]
    "codes": lambda x: ops.quantize_codes(x, FloatFormat(4, 3), 2.0, "stochastic", 5),
    "codes of a text": lambda x: ops.quantize_codes(x, parse_format("int4")),
    "there and back": lambda x: ops.dequantize_codes(ops.quantize_codes(x, IntFormat(8)), IntFormat(8), 1.0, x.dtype),
    "nibbles": lambda x: ops.pack_nibbles(ops.quantize_codes(x, FloatFormat(2, 1))),
    "blocks": lambda x: ops.quantize_blocks(x, parse_format("mxfp4")),
    "blocks from parts": lambda x: ops.quantize_blocks(
        x, BlockFormat(FloatFormat(2, 1), 32, FloatFormat(8, 0, None, "fn", False, False, False)), "stochastic",
        "unbiased", 3,
    ),
    "blocks from texts": lambda x: ops.quantize_blocks(x, parse_format(f"1-2-1/16/{E8M0_TEXT}")),
    "block codes": lambda x: ops.quantize_block_codes(x, parse_format("mxfp6"), "stochastic", seed=4).codes,
    "nvfp4": lambda x: ops.quantize_blocks(
        x, parse_format("nvfp4"), tensor_scale=ops.tensor_scale_of(x, parse_format("nvfp4"))
    ),
    "luq": lambda x: ops.luq(x, 4, 3).result,
    "pruned": lambda x: ops.stochastic_prune(x, 0.5, 3, 4),
    "dithered": lambda x: ops.dither(x, 0.5, 3, 4),
    "a number of the format": lambda x: ops.quantize(x, FloatFormat(4, 3), FloatFormat(4, 3).max / 1000),
    "chosen by its width": lambda x: ops.quantize(x, FloatFormat(exponent=x.dim() + 1, mantissa=1)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", daily(CALLS, ("float, stochastic", "text with options", "integer", "nvfp4", "luq")))
def test_made_inside(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")
    for dtype in (torch.float32, torch.bfloat16):
        x = awkward((8, 64), dtype, seed=3)
        assert_same_bits(compiled(x), CALLS[name](x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_made_inside_of_code_that_inductor_generates() -> None:
    def step(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
        format = lograd.FloatFormat(exponent=bits - 2, mantissa=1)
        return (
            ops.quantize(2 * x, format, rounding="stochastic", seed=bits),
            ops.quantize(x, IntFormat(bits)),
            ops.quantize_blocks(x, parse_format("mxfp8")),
        )

    compiled = torch.compile(step, fullgraph=True)
    x = awkward((16, 64), torch.float32)
    for bits in (5, 4, 6):
        for got, want in zip(compiled(x, bits), step(x, bits), strict=True):
            assert_same_bits(got, want)


FROM_OUTSIDE: dict[str, tuple[Callable[..., Tensor], list[object]]] = {
    "values": (ops.quantize, [FloatFormat(4, 3), FloatFormat(5, 2), IntFormat(4), IntFormat(5), FloatFormat(4, 3)]),
    "codes": (ops.quantize_codes, [FloatFormat(4, 3), FloatFormat(5, 2), IntFormat(4), FloatFormat(4, 3)]),
    "blocks": (ops.quantize_blocks, [CATALOGUE[name] for name in ("mxfp4", "mxfp6", "nvfp4", "mxfp8", "mxfp4")]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_a_format_may_come_from_outside_and_change(name: str) -> None:
    """From the second format on, torch.compile has symbols in place of its numbers."""
    operator, formats = FROM_OUTSIDE[name]
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, format: operator(x, format), fullgraph=True, backend="aot_eager")
    x = awkward((8, 64), torch.float32)
    for format in formats:
        assert_same_bits(compiled(x, format), operator(x, format))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.quantize(x, FloatFormat(8, 7)), InvalidValue, "quantize takes formats of at most 8 bits"),
        (lambda x: ops.quantize(x, "1-4-1"), InvalidType, "quantize takes a FloatFormat or an IntFormat"),
        (lambda x: ops.quantize(x, FloatFormat(12, 1)), InvalidValue, "exponent bits must be a whole number"),
    ],
)
def test_compiled_code_refuses_what_eager_code_refuses(
    call: Callable[[Tensor], Tensor], error: type[Exception], message: str
) -> None:
    x = torch.ones(4)
    torch._dynamo.reset()
    for function in (call, torch.compile(call, backend="aot_eager")):
        with pytest.raises(error, match=message):
            function(x)
