"""What is shown: tables for the terminal, and one self-contained HTML file with charts drawn as SVG.

No plotting library, no script, no network.
"""

from ..files.atomic import CannotWrite, check_folder
from .chart import Chart
from .marks import Band, Bars, Histogram, Line, Mark, Points, Rule
from .page import Page, Tile
from .text import TextTable, text_table

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
    "TextTable",
    "Tile",
    "check_folder",
    "text_table",
]
