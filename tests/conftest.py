"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# No deadline: on a shared machine one slow example says nothing.
settings.register_profile("lograd", deadline=None, print_blob=True)
settings.load_profile("lograd")
