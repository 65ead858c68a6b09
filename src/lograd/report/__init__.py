"""Output for people: terminal tables by rich, figures by matplotlib, HTML pages by one Jinja2 template, progress.

Figures and pages need the extra `plot`; pages need no script and no network.
"""

from ..files import CannotWrite, check_folder
from .figures import MissingExtra
from .page import Section, write_page
from .text import TextTable, text_table

__all__ = ["CannotWrite", "MissingExtra", "Section", "TextTable", "check_folder", "text_table", "write_page"]
