"""The commands; `cli` makes them into one program.

They are functions that typer reads: their arguments are the options, their docstrings the help.  What takes long to
import is imported inside of them, so that `lograd --help` is quick.
"""

from .doctor import doctor
from .lookup import cite, formats, recipes
from .models import plan, profile, variance

COMMANDS = (profile, plan, variance, doctor, formats, recipes, cite)
"""In the order in which the help lists them: what one does to a model, and then what one looks up."""

__all__ = ["COMMANDS"]
