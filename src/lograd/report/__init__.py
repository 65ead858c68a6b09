"""One self-contained HTML file with charts drawn as SVG: no plotting library, no script, no network."""

from .chart import Band, Bars, Chart, Histogram, Line, Mark, Points, Rule
from .page import CannotWrite, Page, check_folder

__all__ = [
    "Band",
    "Bars",
    "CannotWrite",
    "Chart",
    "Histogram",
    "Line",
    "Mark",
    "Page",
    "Points",
    "Rule",
    "check_folder",
]
