"""Tables of ways to train: cells, options and numbers that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from experiments.lab import metric_of
from experiments.papers import experiment_of
from experiments.papers.cells import CellFolder, Measured, Trained
from experiments.papers.comparison import Outcome, Way, WaysToTrain, outcomes, whole_numbers
from experiments.papers.sources import embedded_data
from lograd import LayerPlan, Plan
from lograd.errors import InvalidValue
from lograd.treatments import Prune

NAMES = ("table3", "table4", "fig5", "int4wa", "statquant", "int4", "beyond")


@dataclass(frozen=True)
class Three(WaysToTrain):
    """A dense way, a recipe and a plan."""

    words: ClassVar[str] = "three ways"
    title: ClassVar[str] = "Three ways"
    claim: ClassVar[str] = "A paper claims something."
    base: ClassVar[str] = "dense"

    def ways(self) -> dict[str, Way]:
        pruned = Plan(every=LayerPlan.of((Prune(0.5),)))
        return {
            "dense": Way("dense", paper=70.0),
            "fp6": Way("six bits", "fp6", paper=69.5),
            "half": Way("half of it", plan=pruned, lost=-0.25),
        }


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return embedded_data(tmp_path_factory.mktemp("embedded"))


def plant(folder: CellFolder, results: Mapping[str, float], metric: str = "accuracy") -> None:
    for name, value in results.items():
        found = {"status": "finished", "final": {metric: value}}
        folder.finish(Measured(name, {}, lambda found=found: found))


@pytest.mark.parametrize("name", NAMES)
def test_each_way_has_a_row_with_its_own_numbers(name, tmp_path):
    chosen = experiment_of(name)(seeds=2)
    ways, folder = chosen.ways(), CellFolder(tmp_path)
    accuracy = {way: 0.3 + 0.01 * place for place, way in enumerate(ways)}
    plant(folder, {f"{way}-{seed}": accuracy[way] + 0.001 * seed for way in ways for seed in range(2)})
    table = chosen.draw(folder)[0]
    assert [row[0] for row in table.rows] == [way.title for way in ways.values()]
    for way, row in zip(ways, table.rows, strict=True):
        found = dict(zip(table.columns, row, strict=True))
        assert found["paper"] == ways[way].paper
        assert found["seeds"] == 2
        assert found["test accuracy, mean"] == f"{100 * accuracy[way] + 0.05:.2f} %"
        difference = 100 * (accuracy[way] - accuracy[chosen.base])
        assert found["to the base, mean"] == (None if way == chosen.base else f"{difference:+.2f}")
        assert found["spread over seeds"] == (None if way == chosen.base else "0.00")
    assert table.title
    assert chosen.claim in table.claim


def test_seeds_come_one_after_the_other_so_that_first_tables_are_whole(data, tmp_path):
    cells = list(Three(data=data, network="digits", seeds=2).cells(CellFolder(tmp_path)))
    assert [cell.name for cell in cells] == ["dense-0", "fp6-0", "half-0", "dense-1", "fp6-1", "half-1"]
    assert all(isinstance(cell, Trained) for cell in cells)
    assert [cell.paper for cell in cells[:3]] == [70.0, 69.5, None]
    assert [cell.config.seed for cell in cells] == [0, 0, 0, 1, 1, 1]


def test_a_plan_is_written_once_and_is_that_of_the_runs(data, tmp_path):
    chosen, folder = Three(data=data, network="digits", seeds=1), CellFolder(tmp_path)
    config = chosen.config(folder, "half", 0)
    written = (tmp_path / "half.json").stat().st_mtime_ns
    assert config.load_plan() == chosen.ways()["half"].plan
    assert chosen.config(folder, "half", 1).plan == config.plan
    assert (tmp_path / "half.json").stat().st_mtime_ns == written
    for cell in chosen.cells(folder):
        folder.finish(cell)
    (table,) = chosen.draw(folder)
    assert [row[:3] for row in table.rows] == [
        ["dense", 70.0, None],
        ["six bits", 69.5, "-0.5"],
        ["half of it", None, "-0.25"],
    ]


def test_another_plan_of_the_same_name_is_neither_trained_nor_taken_for_the_first(data, tmp_path):
    kind, folder = experiment_of("table3"), CellFolder(tmp_path)
    options = {"data": data, "network": "digits", "seeds": 1, "only": "fp5-e4"}
    (cell,) = kind(**options).cells(folder)
    assert cell.settings["plan_hash"] == cell.config.load_plan().hash()
    other = kind(**options, rounding="stochastic")
    with pytest.raises(InvalidValue, match=r"fp5-e4\.json is another plan .* give another folder by --runs"):
        list(other.cells(folder))
    record = {**cell.settings}
    folder.finish(Measured("fp5-e4-0", record, lambda: {"status": "finished"}))
    (tmp_path / "fp5-e4.json").unlink()  # as where cells were taken from a file of results
    (changed,) = other.cells(folder)
    with pytest.raises(InvalidValue, match="these differ: plan_hash"):
        folder.finish(changed)
    del record["plan_hash"]  # as cells were before
    folder.file("fp5-e4-0").unlink()
    folder.finish(Measured("fp5-e4-0", record, lambda: {"status": "finished"}))
    assert folder.finish(changed) == {"status": "finished"}


def test_layers_that_an_experiment_keeps_are_left_alone_by_its_recipes(data, tmp_path):
    chosen, folder = experiment_of("table4")(data=data, network="digits"), CellFolder(tmp_path)
    config = chosen.config(folder, "max", 0)
    assert config.recipe is None
    assert config.load_plan() == Plan.uniform("fp4-max-nearest", ("last",))
    assert chosen.config(folder, "fp32", 0).plan is None
    usual = experiment_of("int4wa")(data=data, network="digits").config(folder, "both", 0)
    assert (usual.recipe, usual.plan) == ("int4wa+fp6", None)


def test_options_change_the_runs_and_are_told(data, tmp_path):
    chosen = Three(data=data, network="digits", steps=3, batch=16, width=4, lr=0.2, only="fp6")
    config = chosen.config(CellFolder(tmp_path), "fp6", 2)
    assert (config.steps, config.batch, config.width, config.lr, config.seed) == (3, 16, 4, 0.2, 2)
    assert list(chosen.chosen()) == ["fp6"]
    (table,) = chosen.draw(CellFolder(tmp_path))
    assert "but 3 steps" in table.claim
    assert "--set only=fp6" in table.claim
    assert "--set steps=3" in table.claim
    assert table.notes[-1].startswith("Trained on ")
    assert chosen.hours == pytest.approx(3 * 0.02 / 2 / 60)  # 3 of 6 steps


def test_cost_follows_the_number_of_epochs():
    chosen = experiment_of("table4")
    assert chosen(epochs=5).hours == pytest.approx(chosen().hours / 4)


def test_ways_without_zeros_and_integers_have_dense_products(data, tmp_path):
    chosen, folder = experiment_of("beyond")(data=data, network="digits"), CellFolder(tmp_path)
    backends = {name: chosen.config(folder, name, 0).backend for name in ("fp32", "luq", "luq4", "cosine90")}
    assert backends == {"fp32": "dense", "luq": "dense", "luq4": "auto", "cosine90": "auto"}


def test_a_column_of_its_own_is_left_out_where_it_has_no_number(tmp_path):
    folder, chosen = CellFolder(tmp_path), experiment_of("beyond")(seeds=1)
    plant(folder, {"fp32-0": 0.5, "luq-0": 0.4})
    assert chosen.draw(folder)[0].columns[-1] == "spread over seeds"
    times = {"fp32": [1.0], "cosine90": [0.5]}
    folder.finish(Measured("times", {}, lambda: times))
    plant(folder, {"cosine90-0": 0.4})
    (table,) = chosen.draw(folder)
    assert table.columns[-1] == "steps in the time of a float32 one"
    assert [row[-1] for row in table.rows] == ["1.00", None, "2.00"]


def test_gradients_of_a_text_network_are_looked_at_in_images_beside_it(data, tmp_path):
    chosen, folder = experiment_of("int4"), CellFolder(tmp_path)
    (looks, *_) = chosen(data=data, network="play", before=4).cells(folder)
    assert (looks.name, looks.settings["data"], looks.settings["width"]) == ("looks", "digits.npz", 16)
    (looks, *_) = chosen(data=data / "play.txt", network="play", before=4).cells(folder)
    assert looks.settings["data"] is None
    (looks, *_) = chosen(data=data, network="digits", before=4).cells(folder)
    assert looks.settings["width"] == 8


def test_labels_differ_by_network_so_that_presets_do_not_meet_in_a_folder():
    kind = experiment_of("table4")
    labels = {kind.make({}, preset).label for preset in kind.presets}
    assert labels == {"table4-charlm", "table4-digits"}


def test_a_text_is_judged_by_bits_of_its_characters_and_not_in_percent(tmp_path):
    metric, folder = metric_of("text"), CellFolder(tmp_path)
    plant(folder, {"dense-0": 2.0, "fp6-0": 2.125}, metric.name)
    (table,) = Three(network="charlm", seeds=1).draw(folder)
    assert f"test {metric.words}, mean" in table.columns
    assert table.rows[1][4:6] == ["2.125", "+0.125"]


def test_outcomes_leave_out_ways_without_a_run(tmp_path):
    folder = CellFolder(tmp_path)
    plant(folder, {"fp6-1": 0.5})
    found = outcomes(folder, Three().ways(), 3, "images")
    assert found == {"fp6": Outcome({1: 50.0}, (), None)}
    assert found["fp6"].differences(None) == []
    assert found["fp6"].differences(Outcome({0: 40.0, 1: 49.0}, (), None)) == [1.0]


@pytest.mark.parametrize("text", ["", "1,,2", "a", "-1", "3.5", "100"])
def test_whole_numbers_are_refused_by_name(text):
    assert whole_numbers("powers", "0, 7,99", 0, 99) == [0, 7, 99]
    with pytest.raises(InvalidValue, match=r"powers must be whole numbers from 0 to 99 with commas between"):
        whole_numbers("powers", text, 0, 99)
