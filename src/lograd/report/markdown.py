"""Tables in Markdown."""

from .text import markdown
from .text import markdown_row as line

__all__ = ["line", "markdown"]
