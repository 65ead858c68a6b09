"""A folder with a module of the user's, and the command line in it."""

import sys

import pytest
from own_models import MINE

from lograd.cli import main

BROKEN = """
def broken():
    return network(), loader(), lambda x, y: 1 / 0

def raises():
    raise RuntimeError("no data")

def alone():
    return network()

def swapped():
    return loader(), network()

def epochs():
    return network(), lambda epoch: loader(), cross_entropy
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module `mine`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mine", None)
    (tmp_path / "mine.py").write_text(MINE + BROKEN)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the entry point in this process: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lograd", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return done.value.code or 0, captured.out, captured.err

    return call
