"""Blocks that are tables of a benchmark as it wrote them, beside the JSON file that they were made from."""

from __future__ import annotations

from .blocks import Maker
from .from_results import BENCHMARKS


def written(name: str, place: int = 0) -> Maker:
    """Return a maker of one of the tables in benchmarks/results/NAME.md."""

    def make() -> str:
        parts = (BENCHMARKS / f"{name}.md").read_text().strip().split("\n\n")
        return [part for part in parts if part.startswith("|")][place]

    return make


BLOCKS: dict[str, Maker] = {
    "codec": written("codec"),
    "codec-bits": written("codec", 1),
    "wire": written("wire"),
    "plan-noise": written("predictions"),
    "plan-time": written("predictions", 1),
    "plan-frontier": written("predictions", 2),
}
"""A function for each name of a block."""
