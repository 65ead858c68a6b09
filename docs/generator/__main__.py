"""`./dev docs` writes the tables into the pages; `./dev docs --check` names the pages that are out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import from_benchmarks, from_code, from_integer, from_proof, from_reproduction, from_results, from_weights
from .blocks import filled

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (from_code, from_results, from_reproduction, from_integer, from_weights, from_benchmarks, from_proof)
BLOCKS = {name: maker for source in SOURCES for name, maker in source.BLOCKS.items()}


def pages() -> list[Path]:
    """The pages of the repository that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    """The exit code: 1 if --check finds a page that differs from what would be written."""
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    parser.add_argument("page", nargs="*", type=Path, help="the pages; README.md and docs/*.md if none is given")
    given = parser.parse_args()
    stale = []
    for page in given.page or pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before, BLOCKS, page.name)
        if after != before:
            stale.append(page)
            if not given.check:
                page.write_text(after, encoding="utf-8")
    for page in stale:
        print(f"{page} {'is out of date; ./dev docs writes it' if given.check else 'written'}.", file=sys.stderr)
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
