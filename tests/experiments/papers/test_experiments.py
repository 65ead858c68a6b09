"""The experiments at their smallest: all cells are finished, the tables have their rows, and nothing is made twice."""

import json

import pytest
import training_files as files
from typer.testing import CliRunner

from experiments.papers import EXPERIMENTS, THEORY, experiment_of
from experiments.papers.bits import WAYS
from experiments.papers.cells import CellFolder
from experiments.papers.experiment import carry_out
from experiments.papers.learning import CASES, TIMED
from lograd import Plan
from lograd.cli import app
from lograd.errors import InvalidValue

pytestmark = pytest.mark.filterwarnings("ignore:noise of this plan")


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def finished(name, folder, **options):
    """A smoke run, with all its cells and tables."""
    chosen = experiment_of(name).make(options, "smoke")
    cells = CellFolder(folder)
    carry_out(chosen, cells)
    written = {path: path.stat().st_mtime_ns for path in cells.path.glob("*.cell.json")}
    carry_out(chosen, cells)
    assert written == {path: path.stat().st_mtime_ns for path in cells.path.glob("*.cell.json")}
    return cells, chosen.draw(cells)


def test_lognormal(tmp_path):
    cells, (networks, *_, random) = finished("lognormal", tmp_path, only="MLP")
    assert len(cells.names) == 5 + 2
    assert [row[:4] for row in networks.rows[:4]] == [
        ["MLP", norm, "ReLU", when] for norm in ("none", "BatchNorm") for when in (0, 2)
    ]
    layers = cells.found("mlp-none-relu")["looks"]["0"]
    assert len(layers) == 5
    assert all(layer["miss"]["empirical"] < 0.2 for layer in layers)
    assert [layer["before"] for layer in layers] == ["ReLU"] * 4 + ["the loss"]
    assert len(random.rows) == 2


@pytest.mark.slow
def test_sparsity(tmp_path):
    cells, (asked, errors) = finished("sparsity", tmp_path)
    assert len(asked.rows) == 12
    for target in (0.5, 0.8, 0.9, 0.95):
        got = cells.found(f"empirical-{target}")["got"]
        assert len(got) == 10
        assert sum(got.values()) / len(got) == pytest.approx(target, abs=0.1)  # counted over two steps of four images
    for row in errors.rows:
        assert float(row[1]) == pytest.approx(float(row[2]), abs=0.01), "predicted and measured cosine"
    with pytest.raises(InvalidValue, match="steps must be more than 20"):
        experiment_of("sparsity").make({"steps": "20"})


@pytest.mark.slow
def test_noise(tmp_path):
    data = files.images(tmp_path / "images.npz")
    cells, (plans, layers) = finished("noise", tmp_path / "cells", data=data)
    assert cells.names == ["after-1", "after-2"]
    assert len(plans.rows) == 2 * 3 * 5
    split = {tuple(row[:3]): float(row[3]) for row in plans.rows}
    for steps in (1, 2):
        assert split["least noise", steps, "85%"] <= 1.001 * split["uniform", steps, "85%"]
        assert split["uniform", steps, "80%"] < split["uniform", steps, "90%"]
    assert [row[0] for row in layers.rows][-1] == "fc"


def test_intervals(tmp_path):
    cells, (choices, layers) = finished("intervals", tmp_path)
    ways = ["minmax", "cosine", "squared", "interval", "all"]
    assert cells.names == sorted(["looks", "float32-0", *(f"{way}-0" for way in ways)])
    assert [row[1] for row in choices.rows[:2]] == [None, "1.000"]
    assert len(layers.rows) == 3 * 10
    looks = cells.found("looks")["looks"]
    assert list(looks) == ["0", "1", "4"]
    for moment in looks.values():
        for layer in moment.values():
            found = layer["choices"]
            assert found["all"]["all by law"] <= 1.001 * min(one["all by law"] for one in found.values())
            assert all(one["large"] <= one["bound"] * (1 + 1e-9) for one in found.values())
    assert cells.found("interval-0")["intervals"]["blocks.0.conv1"]["gamma"] < 1
    assert "<svg" in layers.charts[0].svg()
    assert not any("Diverged" in note for note in choices.notes)
    file = cells.file("interval-0")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"found": record["found"] | {"loss": None}}))
    (choices, _) = experiment_of("intervals").make({}, "smoke").draw(cells)
    assert "Diverged, and in no mean or pair: interval-0." in choices.notes
    with pytest.raises(InvalidValue, match="steps must be at least 4"):
        experiment_of("intervals").make({"steps": "3"})


def test_learning(tmp_path):
    data = files.images(tmp_path / "images.npz")
    cells, (table,) = finished("learning", tmp_path / "cells", data=data)
    assert cells.names == ["dense-0", "noise-late-85-0", "noise-late-85-0-equal-time", "noise-late-85-noise", "times"]
    assert set(cells.found("times")) == set(TIMED)
    rows = {(row[0], row[1]): row for row in table.rows}
    assert list(rows) == [
        ("dense", "equal steps"), ("least noise 85 %, late", "equal steps"), ("least noise 85 %, late", "equal time"),
    ]  # fmt: skip
    dense, pruned, longer = rows.values()
    assert dense[4] == "0.0%"
    assert float(pruned[4].rstrip("%")) > 60
    assert (dense[6], dense[9]) == (None, None)
    assert pruned[2] == dense[2] == 4  # 64 images, batch 16
    assert longer[8] == pruned[8]
    with pytest.raises(InvalidValue, match="'densse' is not one of dense"):
        carry_out(experiment_of("learning").make({"only": "densse", "data": data}), cells)
    assert len(CASES) == 16


def test_bits(tmp_path):
    data = files.images(tmp_path / "images.npz")
    cells, (table,) = finished("bits", tmp_path / "cells", data=data)
    assert cells.names == ["fp32-0", "fqt5-bhq-0", "int4-full-0", "times-fp32-int4-full-fqt5-bhq"]
    assert set(cells.found(cells.names[-1])) == {"fp32", "fqt5-bhq", "int4-full"}
    _, (wider,) = finished("bits", tmp_path / "cells", data=data, only="qat8")  # another process, the same folder
    assert [row[0] for row in wider.rows] == [WAYS[name].title for name in ("fp32", "qat8", "fqt5-bhq", "int4-full")]
    base, statquant, whole = table.rows
    assert base[0] == "float32"
    assert base[3:] == [None, None, "1.00"]
    assert statquant[3] is not None
    assert float(whole[5]) > 0
    with pytest.raises(InvalidValue, match="'fp23' is not one of fp32"):
        carry_out(experiment_of("bits").make({"only": "fp23", "data": data}), cells)
    for way in WAYS.values():  # names that somebody knows
        assert way.recipe is None or Plan.uniform(way.recipe)


def test_bits_without_float32_copies_of_weights(tmp_path):
    data = files.images(tmp_path / "images.npz")
    ways = ["int8-weights", "int8-full-weights"]
    cells, (table,) = finished("bits", tmp_path, data=data, only=",".join(ways))
    assert set(cells.found("times-int8-weights-int8-full-weights")) == {"fp32", *ways}
    assert [row[0] for row in table.rows] == [WAYS[name].title for name in ways]
    assert all("without float32 copies" in row[0] and float(row[5]) > 0 for row in table.rows)
    for name, recipe in zip(ways, [None, "int8-full"], strict=True):
        record = cells.record(f"{name}-0")
        assert (record["settings"]["weights"], record["settings"]["recipe"]) == ("int8", recipe)
        stored = record["found"]["weights"]
        assert stored["steps"] == 4  # 64 images, batch 16
        assert stored["bytes"] < 0.3 * stored["float_bytes"]


@pytest.mark.slow
def test_explosion(tmp_path):
    cells, (table,) = finished("explosion", tmp_path)
    assert cells.names == ["0-after-0", "0-after-1", "3-after-0", "3-after-1"]
    assert [row[:2] for row in table.rows] == [
        [case, start] for start in (0, 1) for case in ("dense", "layers that gain (the default)")
    ]
    found = cells.found("3-after-0")
    assert found["layers"] > 0
    assert found["growth"] >= 1
    assert found["steps"] == 2


def test_the_list_has_all_with_their_options():
    listed = json.loads(run("--json").stdout)
    assert [row["name"] for row in listed] == [*THEORY, *EXPERIMENTS]
    assert all(row["what"] for row in listed)
    found = next(row for row in listed if row["name"] == "encoding")
    assert found["options"] == {"data": None, "only": "", "steps": "300", "width": "16", "batch": "128"}
    assert (found["presets"], found["cpu core-hours"]) == (["smoke", "cpu"], 0.02)
    text = run().stdout
    assert all(name in text for name in (*THEORY, *EXPERIMENTS))


def test_the_command_goes_on_only_when_told_and_writes_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("encoding", "--preset", "smoke", "--runs", "runs")
    assert "has no finished cell" in str(run(*arguments, "--tabulate").exception)
    done = run(*arguments, "--results", "results", "-o", "page.html")
    assert done.exit_code == 0, done.output
    assert "gradients: at work" in done.stderr
    assert "| 90% | 2 |" in (tmp_path / "results" / "encoding.md").read_text()
    kept = json.loads((tmp_path / "results" / "encoding.json").read_text())
    assert [cell["name"] for cell in kept["cells"]] == ["gradients", "lognormal"]
    assert len(kept["tables"][0]["rows"]) == 6
    assert "<table" in (tmp_path / "page.html").read_text()

    again = run(*arguments)
    assert isinstance(again.exception, InvalidValue)
    assert "go on with them by --resume" in str(again.exception)
    resumed = run(*arguments, "--resume", "-o", "page.html")
    assert "gradients: finished before" in resumed.stderr
    other = run(*arguments, "--resume", "--set", "batch=9")
    assert "these differ: batch (it has 8, given is 9)" in str(other.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["noise"], "noise needs data"),
        (["learning", "--set", "model"], "--set takes OPTION=VALUE"),
        (["encoding", "--seeds", "2"], "no option 'seeds'"),
        (["encoding", "--preset", "paper"], "no preset 'paper'"),
        (["table2", "--seeds", "2"], "takes no options of experiments"),
        (["encodin"], "Did you mean 'encoding'?"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert isinstance(done.exception, InvalidValue)
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []
