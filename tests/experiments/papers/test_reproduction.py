"""Entries of the registry: each runs in seconds on embedded data, and its table has the numbers of its cells."""

from __future__ import annotations

import json
import re

import pytest
from everyday import daily
from typer.testing import CliRunner

from experiments import papers
from experiments.lab import Config
from experiments.papers import EXPERIMENTS, experiment_of
from experiments.papers.cells import CellFolder, Measured
from experiments.papers.comparison import WaysToTrain
from experiments.papers.experiment import carry_out
from experiments.papers.sources import embedded_data
from lograd.cli import app
from lograd.errors import InvalidValue

pytestmark = pytest.mark.filterwarnings("ignore:noise of this plan")
PAPERS = (
    "table1", "fig2", "table3", "table4", "fig5", "encoding", "stability", "int4wa", "statquant", "int4", "beyond",
    "lognormal",
)  # fmt: skip
COMPARISONS = ("table3", "table4", "fig5", "int4wa", "statquant", "int4", "beyond")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return embedded_data(tmp_path_factory.mktemp("embedded"))


def plant(folder, name, found):
    """Write the cell that a training or a measurement would have left."""
    folder.finish(Measured(name, {}, lambda: found))


def run_of(accuracy, status="finished", **final):
    return {"status": status, "final": {"accuracy": accuracy, **final}}


def drawn(name, folder, **options):
    return experiment_of(name).make(options).draw(folder)


def by_title(table):
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.parametrize("name", daily(PAPERS, ("fig2", "table3", "encoding")))
def test_smoke(name, data, tmp_path):
    kind = experiment_of(name)
    chosen = kind.make({"data": data} if kind.needs_data else {}, "smoke")
    folder = CellFolder(tmp_path)
    carry_out(chosen, folder)
    names = folder.names
    carry_out(chosen, folder, lambda cell, finished: pytest.fail(cell.name) if not finished else None)
    assert folder.names == names
    tables = chosen.draw(folder)
    assert tables
    for table in tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all("<svg" in chart.svg() for chart in table.charts)
    assert kind.claim
    assert "lograd reproduce" in tables[0].claim


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_both_presets_and_says_what_it_costs(name):
    kind = experiment_of(name)
    assert {"smoke", "cpu"} <= set(kind.presets)
    hours = kind.make({}, "cpu").hours
    if kind.claim:
        assert hours is not None
        assert 0 < hours < 10


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_way_is_a_config(name, data, tmp_path):
    kind = experiment_of(name)
    assert issubclass(kind, WaysToTrain)
    chosen = kind(data=data, network="digits")
    ways = chosen.ways()
    assert chosen.base in ways
    assert len({way.title for way in ways.values()}) == len(ways)
    folder = CellFolder(tmp_path)
    configs = {one: chosen.config(folder, one, 0) for one in ways}
    assert all(isinstance(config, Config) for config in configs.values())
    for one, way in ways.items():
        plan = configs[one].load_plan()
        assert (plan is None) == (way.recipe is None and way.plan is None)


def test_differences_are_those_of_the_same_seed_and_diverged_runs_are_told(tmp_path):
    folder = CellFolder(tmp_path)
    for seed, (base, other) in enumerate([(0.5, 0.48), (0.6, 0.59), (0.4, 0.3)]):
        plant(folder, f"fp32-{seed}", run_of(base))
        plant(folder, f"fp5-e4-{seed}", run_of(other, "diverged" if seed == 2 else "finished"))
    plant(folder, "fp5-e2-0", {"status": "diverged", "final": None})
    (table,) = drawn("table3", folder)
    rows = by_title(table)
    base, best = rows["float32"], rows["FP5, E*: 1-4-0"]
    assert (base["paper"], base["paper, to its base"], base["test accuracy, mean"]) == (64.9, None, "50.00 %")
    assert (best["paper"], best["paper, to its base"]) == (64.0, "-0.9")
    assert best["test accuracy, mean"] == "53.50 %; 1 run of 3 diverged"
    assert best["to the base, mean"] == "-1.50"  # of -2 and -1
    assert best["spread over seeds"] == "0.71"
    assert rows["FP5, E*-2: 1-2-2"]["test accuracy, mean"] == "1 run of 1 diverged"
    assert "normal law" not in rows["FP5, E*-2: 1-2-2"]["way to train"]


def test_the_choice_of_a_normal_law_is_named():
    titles = [way.title for way in experiment_of("table3")().ways().values()]
    assert [title for title in titles if "normal law" in title] == [
        "FP5, E*-1: 1-3-1, the choice of a normal law", "FP6, E*-1: 1-3-2, the choice of a normal law",
        "FP7, E*-1: 1-3-3, the choice of a normal law",
    ]  # fmt: skip


def test_table_4_has_the_static_scales_that_are_asked_for(tmp_path):
    ways = experiment_of("table4")(powers="13, 18").ways()
    assert [name for name in ways if name.startswith("static")] == ["static13", "static18"]
    assert (ways["static18"].paper, ways["max"].paper, ways["dynamic"].paper) == (54.9, 64.8, 3.0)
    with pytest.raises(InvalidValue, match=r"powers must be whole numbers .*; got '13,x'"):
        experiment_of("table4")(powers="13,x").ways()


def test_figure_5_is_over_the_zeros_that_runs_had(tmp_path):
    folder = CellFolder(tmp_path)
    plant(folder, "fp32-0", run_of(0.5))
    for name, zeros in (("lognormal-90", 0.88), ("topk-90", 0.9), ("normal-90", 0.96), ("lognormal-80", 0.79)):
        plant(folder, f"{name}-0", run_of(0.49, sparsity=zeros))
    accuracy, asked = drawn("fig5", folder, seeds=1, targets="80,85,90")
    rows = by_title(accuracy)
    assert rows["top-k, 90 %"]["zeros got"] == "90.0%"
    assert rows["top-k, 90 %"]["to the base, mean"] == "-1.00"
    got = by_title(asked)["stochastic, the same in all layers, by a lognormal law"]
    assert (got["80 % asked"], got["85 % asked"], got["90 % asked"]) == ("79.0%", None, "88.0%")
    assert by_title(asked)["stochastic, the same in all layers, by a normal law"]["90 % asked"] == "96.0%"


def test_bits_over_sparsity_reproduce_the_paper(tmp_path):
    from experiments.papers.encoding import four_symbol_bits, huffman_lengths

    assert huffman_lengths((0.25, 0.25, 0.25, 0.25)) == [2, 2, 2, 2]
    assert four_symbol_bits((1.0, 0.0, 0.0, 0.0), 32) == 1.0
    folder = CellFolder(tmp_path)
    chosen = experiment_of("encoding")()
    folder.finish(next(iter(chosen.cells(folder))))
    (table,) = chosen.draw(folder)
    rows = by_title(table)
    for zeros, printed in (("80%", 4.0), ("90%", 2.0)):
        assert rows[zeros]["paper"] == printed
        assert float(rows[zeros]["sigma 2, 32-bit values"]) == pytest.approx(printed, abs=0.2)
    assert rows["80%"]["ResNet-8, packets"] is None  # not measured yet


def test_stability_takes_all_looks_until_the_next_statistics(tmp_path):
    folder = CellFolder(tmp_path)
    # Two layers and three looks: one step later they miss 1 and 2 points, then 3 and 4; two steps later 8 and 10.
    misses = [[[0.01, -0.02], [0.03, 0.04]], [[0.08, -0.1]]]
    layers = {name: {"mu": [0.0, 1.0, 2.0], "sigma": [1.0, 1.0, 1.0]} for name in ("a", "b")}
    found = {"steps": [0, 7, 14], "every": 7, "layers": layers, "misses": {"empirical": misses, "lognormal": misses}}
    plant(folder, "looks", found)
    (table,) = drawn("stability", folder, looks=1)
    assert [list(row) for row in table.rows[:2]] == [
        ["empirical", "7 steps, one epoch", "2.50", "4.0", "3.50", "4.0"],
        ["empirical", "14 steps", "4.67", "10.0", "3.50", "4.0"],
    ]


def test_statquant_has_variance_beside_accuracy(tmp_path):
    folder = CellFolder(tmp_path)
    plant(folder, "qat8-0", run_of(0.5))
    plant(folder, "fqt5-bhq-0", run_of(0.47))
    plant(folder, "variance-fqt5-bhq", {"noise": 1.0, "minibatch": 50.0, "rho": 0.02, "error": 0.003})
    (table,) = drawn("statquant", folder, seeds=1)
    row = by_title(table)["StatQuant, gradients of 5 bits, block Householder"]
    assert (row["paper, to its base"], row["to the base, mean"], row["rho"]) == ("-0.5", "-3.00", "0.02 ± 0.003")


def test_int4_has_errors_relative_to_those_of_min_max(tmp_path):
    folder = CellFolder(tmp_path)

    def errors(scale):
        return {"gamma": scale, "clipped": 0.01, "all": 3 * scale, "large": 2 * scale, "cosine": 0.9}

    layer = {"choices": {"minmax": errors(1.0), "interval": errors(0.75)}}
    plant(folder, "looks", {"looks": {"0": {}, "200": {"first": {}, "middle": layer, "last": {}}}})
    plant(folder, "minmax-0", run_of(0.40))
    plant(folder, "interval-0", run_of(0.42))
    (table,) = drawn("int4", folder, seeds=1)
    row = by_title(table)["INT4, learned clips, gradients in the interval"]
    assert (row["paper, to its base"], row["to the base, mean"]) == ("+3.9", "+2.00")
    assert (row["gamma"], row["error on all"], row["error on large"]) == ("0.750", "0.75", "0.75")


def test_beyond_has_the_time_of_a_step(tmp_path):
    folder = CellFolder(tmp_path)
    plant(folder, "fp32-0", run_of(0.5))
    plant(folder, "empirical90-0", run_of(0.5, sparsity=0.9))
    plant(folder, "times", {"fp32": [0.2, 0.2], "empirical90": [0.1, 0.1]})
    (table,) = drawn("beyond", folder, seeds=1)
    row = by_title(table)["90 % zeros: empirical law, the same in all layers"]
    assert (row["zeros got"], row["steps in the time of a float32 one"]) == ("90.0%", "2.00")


def test_processes_that_share_a_folder_share_the_times_of_beyond(data, tmp_path):
    folder = CellFolder(tmp_path)
    for only in ("fp32", "luq"):
        carry_out(experiment_of("beyond").make({"data": data, "only": only}, "smoke"), folder)
    assert folder.names == ["fp32-0", "luq-0", "times"]
    assert set(folder.found("times")) == {"fp32", "lognormal90", "empirical90", "cosine90"}


def layer_of(lognormal, normal, before="BatchNorm2d", miss=0.01):
    ks = {"LogNormal": lognormal, "HalfNormal": normal}
    others = dict.fromkeys(("LogLaplace", "Exponential", "HalfCauchy", "Uniform"), 0.5)
    return {
        "sigma": 2.0,
        "ks": ks | others,
        "before": before,
        "miss": dict.fromkeys(("empirical", *("lognormal", "normal")), miss),
    }


def test_table_1_has_means_over_layers_and_moments(tmp_path):
    folder = CellFolder(tmp_path)
    looks = {"0": [layer_of(0.1, 0.3)], "200": [layer_of(0.2, 0.1)]}
    plant(folder, "mobilenetv2-batchnorm-relu6", {"looks": looks, "loss": 1.0})
    (table,) = drawn("table1", folder)
    assert list(table.rows[0]) == [
        "MobileNetV2", 0.07, 0.22, "0.150", "0.500", "0.200", "0.500", "0.500", "0.500", "1 of 2",
    ]  # fmt: skip


def test_lognormal_groups_layers_by_what_follows_them(tmp_path):
    folder = CellFolder(tmp_path)
    plant(folder, "mlp-none-relu", {"looks": {"0": [layer_of(0.1, 0.05, "ReLU"), layer_of(0.1, 0.3, "the loss")]}})
    plant(folder, "mlp-batchnorm-relu", {"looks": {"0": [layer_of(0.1, 0.4, "BatchNorm1d")]}})
    sides = {"sigma": 1.25, "lognormal": 0.11, "normal": 0.06}
    plant(folder, "random-4-16", {"networks": 3, "alone": sides, "together": sides})
    networks, kinds, neighbours, random = drawn("lognormal", folder)
    assert [row[7] for row in networks.rows] == ["1 of 2", "1 of 1"]
    assert [(row[0], row[5]) for row in kinds.rows] == [("BatchNorm, ReLU", "1 of 1"), ("none, ReLU", "1 of 2")]
    assert [(row[0], row[5]) for row in neighbours.rows] == [
        ("BatchNorm1d", "1 of 1"), ("ReLU", "0 of 1"), ("the loss", "1 of 1"),
    ]  # fmt: skip
    # pi^2 / 8 + 5 * 4 / (4 * 16) is 1.546, whose root is 1.243
    assert list(random.rows[0]) == ["none", 16, 4, "1.24", "1.25", "1.25", "0.110", "0.060", "0.110", "0.060"]


def test_figure_2_counts_in_how_many_layers_a_law_is_nearer(tmp_path):
    folder = CellFolder(tmp_path)

    def one(lognormal, normal):
        line = [-3.0, -2.0, -1.0]
        return {"ks": {"lognormal": lognormal, "normal": normal}, "sigma": 2.0, "edges": line, "heights": [0.5, 0.5],
                "data": line, "quantiles": {"lognormal": line, "normal": line}}  # fmt: skip

    plant(
        folder,
        "looks",
        {"neural": {"a": one(0.1, 0.4), "b": one(0.2, 0.3)}, "weight": {"a": one(0.2, 0.1), "b": one(0.2, 0.1)}},
    )
    (table,) = drawn("fig2", folder)
    assert list(table.rows[0]) == ["a", "0.100", "0.400", "0.200", "0.100", "2.00", "2.00"]
    assert table.notes[0].startswith("Neural gradients are nearer to the lognormal law in 2 of 2 layers")
    assert "weight gradients are nearer to the lognormal law in 0 of 2 layers" in table.notes[0]


def reproduce(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.mark.slow
def test_all_runs_every_experiment_that_has_the_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(papers, "EXPERIMENTS", {name: EXPERIMENTS[name] for name in ("encoding", "table3")})
    done = reproduce("all", "--preset", "smoke", "--seeds", "1", "--json", "--results", "results")
    assert done.exit_code == 0, done.output
    names = [table["name"] for table in json.loads(done.stdout)]
    assert names == [*papers.THEORY, "encoding", "table3-digits"]
    assert sorted(path.name for path in (tmp_path / "lograd-runs").iterdir()) == [
        "embedded",
        "encoding",
        "table3-digits",
    ]
    assert (tmp_path / "results" / "table3-digits.json").exists()
    again = reproduce("all", "--preset", "smoke", "--resume", "-o", "page.html")
    assert again.exit_code == 0, again.output
    assert "at work" not in again.stderr
    drawn_only = reproduce("all", "--preset", "smoke", "--tabulate", "--json", "--runs", "nothing")
    assert [table["name"] for table in json.loads(drawn_only.stdout)] == list(papers.THEORY)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all", "--preset", "smoke", "--only", "fp32"], "only belongs to one experiment"),
        (["all", "--preset", "tiny"], "no preset 'tiny'"),
        (["all", "--seeds", "2"], "all without --preset is computed from theory"),
        (["table3"], "table3 needs data"),
        (["table3", "--set", "network=resnet9"], "network must be one of .* Did you mean 'resnet8'"),
        (["table3", "--preset", "smoke", "--only", "fp9"], "'fp9' is not one of fp32"),
        (["fig5", "--data", "x", "--set", "targets=80;90"], "targets must be whole numbers from 1 to 99"),
        (["stability", "--set", "looks=0"], "looks must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = reproduce(*arguments)
    assert isinstance(done.exception, InvalidValue)
    assert re.search(words, str(done.exception))
