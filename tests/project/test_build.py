"""The build of the extension: what it leaves to the linker, and what happens where it cannot be built."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from everyday import daily

from lograd import native

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a build reads."""
    copy = tmp_path / "tree"
    shutil.copytree(ROOT / "src", copy / "src", ignore=IGNORED)
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def run(command: list[str], **environment: str) -> str:
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def reason_after_install(tree: Path, **environment: str) -> str:
    """Builds a wheel, installs it on its own and asks that copy of lograd why it has no kernels."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheels, target = tree.parent / "wheels", tree.parent / "target"
    # Debug, because only the outcome matters here and it compiles in half the time.
    options = ["--no-build-isolation", "--no-deps", "-C", "cmake.build-type=Debug"]
    run([*pip, "wheel", *options, "-w", str(wheels), str(tree)], **environment)
    (wheel,) = wheels.iterdir()
    run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)])
    assert not list(target.glob("lograd/_native.*.so"))

    # -S keeps the .pth file of the editable install out, which would put the checkout before the copy.
    path = os.pathsep.join([str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    script = (
        "import lograd; from lograd import native; print(lograd.__file__); s = native.status();"
        "print(s.available); print(s.reason)"
    )
    output = run([sys.executable, "-S", "-c", script], PYTHONPATH=path, LOGRAD_NATIVE="")
    file, available, reason = output.splitlines()
    assert Path(file).is_relative_to(target)
    assert available == "False"
    return reason


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None or shutil.which("nm") is None, reason="needs a C++ compiler"
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How CMake would compile each source of csrc/, by its path in there, without the names of object files."""
    build = tmp_path_factory.mktemp("build")
    nanobind = run([sys.executable, "-m", "nanobind", "--cmake_dir"]).strip()
    options = {
        "CMAKE_BUILD_TYPE": "Debug", "CMAKE_EXPORT_COMPILE_COMMANDS": "ON", "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": nanobind,
    }  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), *(f"-D{k}={v}" for k, v in options.items())]
    run(cmake, PATH=path)
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if (file := Path(entry["file"])).is_relative_to(ROOT / "src/lograd/csrc"):
            command = shlex.split(entry["command"])
            found[file.relative_to(ROOT / "src/lograd/csrc").as_posix()] = command[: command.index("-o")]
    return found


def shared_symbols(source: Path, command: list[str], out: Path) -> list[str]:
    """The symbols of a source, compiled without inlining, that the linker may share with those of other sources."""
    run([*command, "-O0", "-o", str(out), "-c", str(source)])
    lines = run(["nm", "-C", "--defined-only", "--extern-only", str(out)]).splitlines()
    symbols = [line.split(maxsplit=2)[2] for line in lines]
    return [symbol for symbol in symbols if not symbol.startswith("DW.ref.")]  # an address, no code


@needs_compiler
def test_only_the_sources_in_isa_have_flags_of_an_instruction_set(commands: dict[str, list[str]]) -> None:
    flagged = {name for name, command in commands.items() if any(re.match("-m(avx|fma|f16c|arch)", o) for o in command)}
    assert flagged <= {f"isa/{name}.cpp" for name in native.INSTRUCTION_SETS[1:]}
    assert "isa/generic.cpp" in commands


@needs_compiler
@pytest.mark.parametrize("isa", daily(native.INSTRUCTION_SETS, ("avx2",)))
def test_kernels_share_no_symbol_with_another_instruction_set(
    isa: str, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    # The linker keeps one copy of an inline function.  Were it outside the set's namespace, that copy could be one with
    # instructions that this CPU does not have.
    name = f"isa/{isa}.cpp"
    if name not in commands:
        pytest.skip(f"no {isa} kernels on this architecture")
    symbols = shared_symbols(ROOT / "src/lograd/csrc" / name, commands[name], tmp_path / "kernels.o")
    assert f"lograd::{isa}::table()" in symbols
    assert [symbol for symbol in symbols if f"lograd::{isa}::" not in symbol] == []


@needs_compiler
def test_a_function_outside_the_namespace_would_be_found(commands: dict[str, list[str]], tmp_path: Path) -> None:
    source = tmp_path / "hazard.cpp"
    source.write_text(
        "namespace lograd {\n"
        "inline int hazard(int x) { return x + 1; }\n"
        "namespace generic { int table() { return hazard(2); } }\n"
        "}\n",
        encoding="utf-8",
    )
    symbols = shared_symbols(source, commands["isa/generic.cpp"], tmp_path / "hazard.o")
    assert [symbol for symbol in symbols if "lograd::generic::" not in symbol] == ["lograd::hazard(int)"]


@pytest.mark.slow  # builds a wheel
def test_without_a_compiler(tree: Path) -> None:
    # cmake and ninja live beside the interpreter; compilers do not.
    tools = str(Path(sys.executable).parent)
    reason = reason_after_install(tree, CXX="/nonexistent/c++", CC="/nonexistent/cc", PATH=tools)
    assert reason == "no C++ compiler was found when lograd was installed"


@pytest.mark.slow  # builds a wheel
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
def test_when_compiling_fails(tree: Path) -> None:
    with (tree / "src/lograd/csrc/base/cpu.cpp").open("a", encoding="utf-8") as file:
        file.write("this is not C++\n")
    reason = reason_after_install(tree)
    assert reason.startswith("the C++ build failed when lograd was installed")
    assert "pip install -v" in reason
