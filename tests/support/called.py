"""A command line in this process: what a process would print and return, without importing torch once more.

Signals, pipes and what an import does need a process of their own; their tests start one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lograd.cli import main


def called(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`lograd` with these arguments in a folder; modules of that folder are forgotten afterwards."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with _place(cwd, ["lograd", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@contextmanager
def _place(cwd: Path | None, arguments: list[str]) -> Iterator[None]:
    """The folder, the arguments, the search path and the warnings of a new process."""
    before, path, given, modules = os.getcwd(), sys.path, sys.argv, set(sys.modules)
    sys.path, sys.argv = list(path), arguments
    if cwd is not None:
        os.chdir(cwd)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            yield
    finally:
        os.chdir(before)
        sys.path, sys.argv = path, given
        for name in set(sys.modules) - modules:
            if cwd is not None and (getattr(sys.modules[name], "__file__", None) or "").startswith(str(cwd)):
                del sys.modules[name]
