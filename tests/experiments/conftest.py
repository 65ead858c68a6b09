"""Modules of the pages' generator, which lies outside of the package."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator(monkeypatch):
    """A function that imports a module of the generator anew."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [name for name in sys.modules if name == "docs" or name.startswith("docs.")]:
        monkeypatch.delitem(sys.modules, name)
    return lambda name: importlib.import_module(f"docs.generator.{name}")
