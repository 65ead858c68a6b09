"""`lograd env`: versions, CPU features, native kernels."""

from __future__ import annotations

from .console import Json, cell, print_json, print_table


def env(as_json: Json = False) -> None:
    """Versions, CPU features, native kernels in use, threads: what a bug report needs."""
    from ..report.environment import describe

    sections = describe()
    if as_json:
        print_json(sections)
        return
    for title, section in sections.items():
        print_table(title, ["", ""], [[key, cell(value)] for key, value in section.items()], header=False)
