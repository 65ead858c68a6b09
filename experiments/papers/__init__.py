"""The papers' tables and figures, and experiments of our own, by `./dev reproduce NAME`: their number beside ours.

`THEORY` is computed in a moment: each entry takes no argument, needs no data and returns a `Result`.  An `Experiment`
is measured or trained: a list of `cells`, each finished in a file of its own, from which its tables are drawn.  A new
one is a file in this folder and a line in `EXPERIMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from .formats import fig3a, fig3b, fig3c, table2
from .pruning import fig4
from .result import Result

if TYPE_CHECKING:
    from .experiment import Experiment

THEORY: dict[str, Callable[[], Result]] = {
    "table2": table2,
    "fig3a": fig3a,
    "fig3b": fig3b,
    "fig3c": fig3c,
    "fig4": fig4,
}
EXPERIMENTS = {
    "table1": "Table1",
    "fig2": "Fig2",
    "table3": "Table3",
    "table4": "Table4",
    "fig5": "Fig5",
    "encoding": "Encoding",
    "stability": "Stability",
    "int4wa": "Int4wa",
    "statquant": "Statquant",
    "int4": "Int4",
    "beyond": "Beyond",
    "lognormal": "Lognormal",
    "sparsity": "Sparsity",
    "noise": "Noise",
    "learning": "Learning",
    "bits": "Bits",
    "explosion": "Explosion",
    "intervals": "Intervals",
    "vcas": "Vcas",
}
"""The module of each experiment, which is its name, and the class in it; imported when it is asked for, with torch."""


def experiment_of(name: str) -> type[Experiment]:
    """The class of an experiment, whose fields are its options."""
    found: type[Experiment] = getattr(import_module(f"{__name__}.{name}"), EXPERIMENTS[name])
    return found


__all__ = ["EXPERIMENTS", "THEORY", "Result", "experiment_of"]
