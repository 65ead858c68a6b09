"""Blocks that are tables of a benchmark as it wrote them, beside the JSON file that they were made from."""

from __future__ import annotations

from .blocks import Maker
from .from_results import BENCHMARKS, where


def written(name: str, place: int = 0, *starts: str, lead: int = 1) -> Maker:
    """Return a maker of one of the tables in benchmarks/results/NAME.md, with its machine.

    Args:
        name: of the benchmark.
        place: of the table in the file.
        starts: rows are taken whose first cells are one of these; all rows, if there is none.
        lead: how many cells that are, joined by a bar.
    """

    def make() -> str:
        parts = (BENCHMARKS / f"{name}.md").read_text().strip().split("\n\n")
        head, rule, *rows = [part for part in parts if part.startswith("|")][place].split("\n")
        chosen = [row for row in rows if not starts or "|".join(map(str.strip, row.split("|")[1 : lead + 1])) in starts]
        return "\n".join([head, rule, *chosen]) + f"\n\n{where(name)}"

    return make


PACKETS = (
    "Shannon limit", "the paper", "lograd", "lograd, entropy", "zstd-1", "lz4", "lograd: prune + encode",
    "lograd: encode", "lograd: decode", "zstd-1: encode", "zstd-1: decode", "lz4: encode", "lz4: decode",
)  # fmt: skip
EDGES = ("plain", "prune90 / none", "int4 / none", "int8-nearest / int8-nearest", "prune90 / int8-nearest")
BLOCKS: dict[str, Maker] = {
    "codec": written("codec", 0, *PACKETS),
    "wire": written("wire", 0, *(f"{edge}|{link}" for link in ("100mbit", "1gbit") for edge in EDGES), lead=2),
    "plan-noise": written("predictions"),
    "against": written("against-avx512vnni"),
}
"""A function for each name of a block."""
