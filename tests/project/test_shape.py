"""The shape of the code: a docstring for everything public, tests beside every package, no notes from elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TESTS = ROOT / "src" / "lograd", ROOT / "tests"
NOT_MIRRORS = {"experiments", "golden", "project", "support"}
"""Folders of tests that belong to no package: the laboratory, golden results, the repository, helpers."""
OUTSIDE = re.compile(r"\bMETHODS\b|\b(KERNELS|DESIGN|STYLE|PRODUCT)\.md\b|\bshared/|/work/")
"""References to notes that are not in the repository."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef


def trees(folder: Path) -> dict[str, ast.Module]:
    """The syntax tree of each Python file, by its path from the root of the repository."""
    paths = sorted(folder.rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def definitions(node: ast.AST) -> Iterator[Documented]:
    """Functions, classes and methods that can be imported: not those inside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Documented):
            yield child
        if not isinstance(child, Function):
            yield from definitions(child)


def undocumented(modules: dict[str, ast.Module]) -> list[str]:
    """Public functions, classes and methods without a docstring of their own or of the method that they override."""
    classes = {
        node.name: node for tree in modules.values() for node in definitions(tree) if isinstance(node, ast.ClassDef)
    }
    found = []
    for path, tree in modules.items():
        for node in (tree, *_public_classes(tree)):
            for child in _public_members(node):
                inherited = isinstance(node, ast.ClassDef) and _is_documented_above(node, child.name, classes)
                if ast.get_docstring(child) is None and not inherited:
                    found.append(f"{path}:{child.lineno} {child.name}")
    return found


def _public_members(node: ast.AST) -> Iterator[Documented]:
    """Public definitions directly in a module or class; overloads and setters belong to another definition."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Documented) and not child.name.startswith("_"):
            words = {ast.unparse(one).rpartition(".")[2] for one in child.decorator_list}
            if not words & {"overload", "setter"}:
                yield child
        elif isinstance(child, ast.If | ast.Try):
            yield from _public_members(child)


def _public_classes(node: ast.AST) -> Iterator[ast.ClassDef]:
    for child in _public_members(node):
        if isinstance(child, ast.ClassDef):
            yield child
            yield from _public_classes(child)


def _is_documented_above(node: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """True if a base class documents a method of this name, so that help() shows that text."""
    for base in node.bases:
        above = classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2])
        if above is None or above is node:
            continue
        own = (child for child in definitions(above) if child.name == name)
        if any(ast.get_docstring(child) for child in own) or _is_documented_above(above, name, classes):
            return True
    return False


def test_everything_public_has_a_docstring() -> None:
    assert undocumented(trees(SOURCE)) == []


def test_nothing_refers_to_notes_outside_of_the_repository() -> None:
    kinds = {".py", ".pyi", ".md", ".h", ".cpp", ".txt"}
    texts = [path for folder in (SOURCE, ROOT / "docs") for path in folder.rglob("*") if path.suffix in kinds]
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sorted([*texts, ROOT / "README.md"])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if OUTSIDE.search(line)
    ]
    assert found == []


def test_folders_of_tests_mirror_the_packages() -> None:
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py"))} - NOT_MIRRORS
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")}
    assert folders - packages - modules == set()
    assert packages - folders == set(), "a package without a folder of tests"


# The checker itself.  Each text has the given functions without a docstring.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "clean": ('def f():\n    """Return one."""\ndef _g(): pass\nclass _C:\n    def m(self): pass', []),
    "a function": ("def f(): pass", ["f"]),
    "a method": ('class C:\n    """A class."""\n    def m(self): pass', ["m"]),
    "an override": (
        'class B:\n    """A base."""\n    def m(self):\n        """Return it."""\n'
        'class C(B):\n    """A class."""\n    def m(self): pass\n    def n(self): pass',
        ["n"],
    ),
    "an overload": ('@overload\ndef f(x: int): ...\ndef f(x):\n    """Return it."""', []),
    "inside of a function": ('def f():\n    """Return it."""\n    def g(): pass', []),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_checker_sees_planted_flaws(name: str) -> None:
    text, without = TEXTS[name]
    assert [line.split()[1] for line in undocumented({"a.py": ast.parse(text)})] == without
