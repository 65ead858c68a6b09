"""Output for people: tables for the terminal, and self-contained HTML pages with charts drawn as SVG.

Pages need no plotting library, no script and no network.
"""

from ..files.atomic import CannotWrite, check_folder
from .chart import Chart
from .extra import MissingExtra
from .heatmap import HeatMap
from .marks import Band, Bars, Histogram, Line, Mark, Points, Rule
from .old_page import Page, Tile
from .page import Section, write_page
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
    "MissingExtra",
    "Page",
    "Points",
    "Rule",
    "Section",
    "TextTable",
    "Tile",
    "check_folder",
    "text_table",
    "write_page",
]
