"""The papers' tables and figures, computed anew: the printed value beside ours.

Each entry of `REPRODUCTIONS` takes no argument, needs no data and returns a `Result`.
"""

from collections.abc import Callable

from .formats import fig3a, fig3b, fig3c, table2
from .pruning import fig4
from .result import Result

REPRODUCTIONS: dict[str, Callable[[], Result]] = {
    "table2": table2,
    "fig3a": fig3a,
    "fig3b": fig3b,
    "fig3c": fig3c,
    "fig4": fig4,
}

__all__ = ["REPRODUCTIONS", "Result"]
