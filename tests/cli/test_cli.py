"""The command line as a person meets it: its exit code, its output."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from called import called

import lograd
from lograd.cli import citations
from lograd.formats import CATALOGUE

COMMANDS = ["profile", "plan", "variance", "doctor", "formats", "recipes", "cite"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command):
    done = called(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["formats", "1-4"], "'1-4' is not a format"),
        (["formats", "mxpf4"], "Did you mean 'mxfp4'?"),
        (["frobnicate"], "No such command"),
        (["env"], "No such command"),
        (["doctor", "--threads", "0"], "--threads must be a whole number from 1 to"),
        (["doctor", "--threads", "0", "--no-times"], "--threads must be a whole number from 1 to"),
        (["formats", "--jsonn"], "No such option"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, tmp_path):
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reader_may_stop_early():
    command = f"set -o pipefail; {sys.executable} -c 'from lograd.cli import main; main()' formats float16 | head -1"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_names_survive_a_narrow_terminal():
    code = (
        "import lograd.cli as c; c.out = c.PatientConsole(width=40, markup=False); from lograd.cli import main; main()"
    )
    text = subprocess.run([sys.executable, "-c", code, "formats"], capture_output=True, text=True, check=True).stdout
    assert "…" not in text


def test_version_and_no_arguments():
    assert called("--version").stdout.strip() == lograd.__version__
    assert "formats" in called().stdout + called().stderr


def test_formats_lists_the_catalogue_and_every_code():
    rows = json.loads(called("formats", "--json").stdout)
    assert [row["name"] for row in rows] == list(CATALOGUE)
    three = json.loads(called("formats", "1-3-0", "--json").stdout)
    positive = [0, 0.25, 0.5, 1, 2, 4, 8, 16]
    assert [code["value"] for code in three["codes"]] == [*positive, *(-value for value in positive)]
    assert "nan" in [code["value"] for code in json.loads(called("formats", "e4m3fn", "--json").stdout)["codes"]]
    text = called("formats", "nvfp4").stdout
    assert "1-2-1/16/1-4-3:fn" in text
    assert "before its scale" in text
    assert "too wide to list" in called("formats", "float32").stdout


def test_doctor_reports_versions_features_and_native_kernels():
    sections = json.loads(called("doctor", "--no-times", "--json").stdout)
    assert sections["versions"]["numpy"] == np.__version__
    native = sections["native module"]
    assert native["in use"] is (native["reason"] == "")
    assert ("log_histogram" in " ".join(native["kernels"])) is native["in use"]
    assert sections["instruction sets"]["lograd uses"]
    assert "numpy" in called("doctor", "--no-times").stdout


def test_cite_prints_what_the_docstrings_carry():
    done = called("cite")
    assert done.returncode == 0
    for key in ("chmiel2021", "chen2020", "ocp2023", "nvidia2025", "ye2020"):
        assert f"{{{key}," in done.stdout
    found = citations()
    source = "".join(path.read_text() for path in Path(lograd.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"\[([a-z]+\d{4})\]", source)) <= {entry.key for entry in found}  # no reference without entry
    assert all(len(entry.bibtex) > 80 for entry in found)
    assert "lograd.theory.pruning" in next(entry for entry in found if entry.key == "chmiel2021").used_by
