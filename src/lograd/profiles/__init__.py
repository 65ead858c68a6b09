"""Profiles: what the gradients of a model look like, observed without changing the model.

Hooks count (`observer`), records keep (`records`), and everything else reads the records: tables, the file, the page,
and plans (`planning`).
"""

from .observer import Observer
from .profiles import Profile
from .records import LayerProfile, Record
from .running import observe, profile

__all__ = ["LayerProfile", "Observer", "Profile", "Record", "observe", "profile"]
