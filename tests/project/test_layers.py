"""The import graph of lograd against the layers in pyproject.toml, and a docstring for everything public."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "lograd"
Graph = dict[str, set[str]]


def declared_layers() -> list[list[str]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        layers: list[list[str]] = tomllib.load(file)["tool"]["lograd"]["layers"]
    return layers


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path, module: str) -> Iterator[str]:
    """Absolute dotted names that a file imports at any depth; for `from a import b`, the name `a.b`."""
    here = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = here.split(".")[: len(here.split(".")) - (node.level - 1)]
                base = ".".join([*above, base] if base else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(package: Path) -> Graph:
    """Which modules of the package each of them imports, itself excepted."""
    paths = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    compiled = f"{PACKAGE}._native"  # has no Python file

    def target(name: str) -> str | None:
        """The module behind a dotted name, which may end in a class or a function."""
        while name.partition(".")[0] == PACKAGE:
            if name in paths or name == compiled:
                return name
            name = name.rpartition(".")[0]
        return None

    return {
        module: {found for name in imported_names(path, module) if (found := target(name)) and found != module}
        for module, path in paths.items()
    }


def unit(module: str) -> str:
    """The name by which a layer knows a module: the part below `lograd`."""
    return module.split(".")[1] if "." in module else "__init__"


def violations(graph: Graph, layers: list[list[str]]) -> list[str]:
    """One sentence for each breach."""
    height = {name: index for index, names in enumerate(layers) for name in names}
    found = [f"no layer names {module}" for module in graph if unit(module) not in height]
    for module, imports in graph.items():
        for other in sorted(imports):
            low, high = unit(module), unit(other)
            if low == high or low not in height or high not in height:
                continue
            if height[high] > height[low]:
                found.append(f"{module} imports {other}, which stands above it")
            elif height[high] == height[low]:
                found.append(f"{module} imports {other}, its neighbour in one layer")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append("cycle: " + " -> ".join(reversed(error.args[1])))
    return found


def test_layers_name_each_module_once() -> None:
    names = [name for layer in declared_layers() for name in layer]
    assert len(names) == len(set(names))


def test_imports_respect_the_layers() -> None:
    graph = import_graph(ROOT / "src" / PACKAGE)
    assert f"{PACKAGE}.native" in graph, "the walk found no modules"
    assert violations(graph, declared_layers()) == []


# The checker itself.  Each tree has one flaw; the last one has none.
LAYERS = [["errors"], ["laws"], ["theory"], ["__init__"], ["demo", "citation"]]

TREES: dict[str, tuple[dict[str, str], str]] = {
    "upward": ({"laws.py": "import lograd.theory", "theory.py": ""}, "lograd.laws imports lograd.theory, which stands"),
    "upward, inside a function": (
        {"laws.py": "def f():\n    from lograd.theory import error\n", "theory.py": "error = 1"},
        "lograd.laws imports lograd.theory, which stands above",
    ),
    "upward, relative": (
        {"laws/__init__.py": "", "laws/normal.py": "from ..theory import scale", "theory.py": ""},
        "lograd.laws.normal imports lograd.theory, which stands above",
    ),
    "upward, to the public surface": ({"laws.py": "from lograd import LogNormal"}, "lograd.laws imports lograd, which"),
    "the public surface, upward": (
        {"__init__.py": "from . import demo", "demo.py": ""},
        "lograd imports lograd.demo, which stands above",
    ),
    "sideways": ({"demo.py": "from . import citation", "citation.py": ""}, "lograd.demo imports lograd.citation, its"),
    "cycle": (
        {"laws/__init__.py": "", "laws/a.py": "from . import b", "laws/b.py": "from .a import x"},
        "cycle: ",
    ),
    "unnamed": ({"surprise.py": ""}, "no layer names lograd.surprise"),
    "none": (
        {
            "errors.py": "import sys",
            "laws/__init__.py": "from .a import x",
            "laws/a.py": "from lograd.errors import E\nimport numpy.lograd",
            "theory.py": "from lograd import laws, errors",
            "demo.py": "import lograd",
        },
        "",
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_checker_sees_planted_flaws(name: str, tmp_path: Path) -> None:
    files, expected = TREES[name]
    for file, text in {"__init__.py": "", **files}.items():
        path = tmp_path / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    found = violations(import_graph(tmp_path / PACKAGE), LAYERS)

    if expected:
        assert len(found) == 1
        assert found[0].startswith(expected)
    else:
        assert found == []


# -- docstrings --

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef


def trees(folder: Path) -> dict[str, ast.Module]:
    """The syntax tree of each Python file, by its path."""
    return {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


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
    assert undocumented(trees(ROOT / "src" / PACKAGE)) == []


def test_functions_without_a_docstring_are_found() -> None:
    text = '''
def f():
    """Return one."""
def _g(): pass
class B:
    """A base."""
    def m(self):
        """Return it."""
class C(B):
    """A class."""
    def m(self): pass
    def n(self): pass
'''
    assert [line.split()[1] for line in undocumented({"a.py": ast.parse(text)})] == ["n"]
