"""`lograd formats`: the catalogue of number formats, or every code of one."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from .console import Json, cell, out, print_json, print_table


def formats(
    format: Annotated[str | None, typer.Argument(help="A format such as 1-4-1, int4 or mxfp4; none for all.")] = None,
    as_json: Json = False,
) -> None:
    """The catalogue of number formats, or every code of one format."""
    from ..formats import CATALOGUE, BlockFormat, parse_format

    if format is None:
        rows = [_summary(name, entry) for name, entry in CATALOGUE.items()]
        if as_json:
            print_json(rows)
        else:
            print_table("Formats with a name", list(rows[0]), [list(map(cell, row.values())) for row in rows])
            out.print("\nAny other: 1-EXPONENT-MANTISSA (lograd formats 1-4-1), intBITS, ELEMENT/SIZE/SCALE.")
        return
    chosen = parse_format(format)
    summary = _summary(format, chosen)
    element = chosen.element if isinstance(chosen, BlockFormat) else chosen
    codes = _codes(element)
    if as_json:
        print_json(summary | {"codes": codes})
        return
    print_table(str(chosen), ["property", "value"], [[key, cell(value)] for key, value in summary.items()])
    if not codes:
        out.print(f"\n{element} is too wide to list, or has no codes; formats of up to 8 bits list theirs.")
        return
    title = "Elements of a block, before its scale" if isinstance(chosen, BlockFormat) else "Every code"
    half = (len(codes) + 1) // 2  # two columns: in a signed float, the negative codes beside the positive ones
    pairs = [
        [*codes[i].values(), *(codes[i + half].values() if i + half < len(codes) else ("", ""))] for i in range(half)
    ]
    print_table(title, ["code", "value", "code", "value"], [[cell(value) for value in row] for row in pairs])


def _summary(name: str, format: Any) -> dict[str, Any]:
    from ..formats import BlockFormat

    element = format.element if isinstance(format, BlockFormat) else format
    listable = element.bits <= 16
    return {
        "name": name,
        "text": str(format),
        "bits per element": format.bits_per_element if isinstance(format, BlockFormat) else format.bits,
        "finite values": len(element.values()) if listable else None,
        "largest": element.max,
        "smallest positive": element.min_positive,
        "infinity and NaN": getattr(element, "specials", "none"),
    }


def _codes(format: Any) -> list[dict[str, Any]]:
    from ..formats import IdealFormat

    if isinstance(format, IdealFormat) or format.bits > 8:
        return []
    return [{"code": f"{code:0{format.bits}b}", "value": _plain(format.decode(code))} for code in range(2**format.bits)]


def _plain(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)
