"""Installation where the extension cannot be built: it succeeds as pure Python and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

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
        "import lograd; from lograd import data, native; print(lograd.__file__); s = native.status();"
        "print(s.available); print(s.reason); print(len(data.shakespeare()), len(data.digits().train_labels))"
    )
    output = run([sys.executable, "-S", "-c", script], PYTHONPATH=path, LOGRAD_NATIVE="")
    file, available, reason, data = output.splitlines()
    assert Path(file).is_relative_to(target)
    assert available == "False"
    assert data == "133465 1297"  # the data travels with the wheel
    return reason


def test_without_a_compiler(tree: Path) -> None:
    # cmake and ninja live beside the interpreter; compilers do not.
    tools = str(Path(sys.executable).parent)
    reason = reason_after_install(tree, CXX="/nonexistent/c++", CC="/nonexistent/cc", PATH=tools)
    assert reason == "no C++ compiler was found when lograd was installed"


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
def test_when_compiling_fails(tree: Path) -> None:
    with (tree / "src/lograd/csrc/cpu.cpp").open("a", encoding="utf-8") as file:
        file.write("this is not C++\n")
    reason = reason_after_install(tree)
    assert reason.startswith("the C++ build failed when lograd was installed")
    assert "pip install -v" in reason
