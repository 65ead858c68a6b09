"""The whole story on real data inside the package: profile, plan, train side by side, compare; ends in a page.

`tasks` are trained (`racing`), `findings` are the numbers, `words`, `tables`, `drawing` and `page` show them.
"""

from .story import Story, tell

__all__ = ["Story", "tell"]
