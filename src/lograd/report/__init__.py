"""Output for people: tables for the terminal, and self-contained HTML pages with charts drawn as SVG.

Pages need no plotting library, no script and no network.
"""

from ..files.atomic import CannotWrite, check_folder
from .chart import Chart
from .heatmap import HeatMap
from .marks import Band, Bars, Histogram, Line, Mark, Points, Rule
from .page import Page, Tile
from .text import TextTable, text_table

__all__ = [
    "Band",
    "Bars",
    "CannotWrite",
    "Chart",
    "HeatMap",
    "Histogram",
    "Line",
    "Mark",
    "Page",
    "Points",
    "Rule",
    "TextTable",
    "Tile",
    "check_folder",
    "text_table",
]
