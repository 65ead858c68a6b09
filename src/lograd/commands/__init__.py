"""The commands, one file each; `cli` makes them into one program.

They are functions that typer reads: their arguments are the options, their docstrings the help.  What takes long to
import is imported inside of them, so that `lograd --help` is quick.
"""

from .cite import cite
from .compare import compare
from .demo import demo
from .doctor import doctor
from .formats import formats
from .plan import plan
from .profile import profile
from .recipes import recipes
from .reproduce import reproduce
from .train import train
from .variance import variance

COMMANDS = (demo, profile, plan, variance, train, compare, formats, recipes, reproduce, doctor, cite)
"""In the order in which the help lists them: what one does to a model, and then what one looks up."""

__all__ = ["COMMANDS"]
