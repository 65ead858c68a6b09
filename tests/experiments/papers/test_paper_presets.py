"""The presets of the papers' own size, to their first steps on a few fake images."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from experiments.lab import train
from experiments.lab.image_folders import CIFAR_ROW
from experiments.papers import EXPERIMENTS, experiment_of
from experiments.papers.architectures import prepared
from experiments.papers.cells import CellFolder
from experiments.papers.comparison import WaysToTrain
from experiments.papers.table1 import FULL
from experiments.papers.trainings import TRAININGS

PAPER = [name for name in EXPERIMENTS if "paper" in experiment_of(name).presets]
LARGE = [name for name in TRAININGS if name.startswith(("cifar-", "imagenet-"))]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder of several sets: ImageNet's layout, CIFAR-100's binary files, and sentences."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("sets")
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            (root / "imagenet" / part / name).mkdir(parents=True)
            for number in range(2):
                pixels = random.integers(0, 256, (60, 50, 3), dtype=np.uint8)
                image.fromarray(pixels).save(root / "imagenet" / part / name / f"{number}.JPEG")
    (root / "cifar").mkdir()
    for part in ("train", "test"):
        rows = random.integers(0, 100, (4, CIFAR_ROW)).astype(np.uint8)
        (root / "cifar" / f"{part}.bin").write_bytes(rows.tobytes())
    for name, columns in (("cola", "sentence\tlabel"), ("mrpc", "sentence1\tsentence2\tlabel")):
        (root / name).mkdir()
        words = "a b c a b" + "\ta c b c" * (columns.count("\t") - 1)
        (root / name / "train.tsv").write_text("\n".join([columns, *(f"{words}\t{number % 2}" for number in range(6))]))
    return root


def test_all_trainings_that_presets_name_are_there():
    for name in PAPER:
        chosen = experiment_of(name).make({}, "paper")
        if isinstance(chosen, WaysToTrain):
            assert chosen.network in LARGE
            assert chosen.label == f"{name}-{chosen.network}"
            assert len(chosen.chosen()) > 3


def test_the_paper_s_numbers_follow_the_network():
    kind = experiment_of("table3")
    assert kind(network="imagenet-resnet18").ways()["fp7-e5"].paper == 70.4
    assert kind(network="imagenet-squeezenet").ways()["fp5-e4"].paper == 55.2
    assert kind(network="cifar-resnet101").ways()["fp32"].paper == 71.3
    assert experiment_of("int4")(network="imagenet-resnet18").ways()["interval"].paper == 67.1


@pytest.mark.slow
@pytest.mark.parametrize("network", LARGE)
@pytest.mark.filterwarnings("ignore:.*the training part has no example of class")
def test_a_network_of_full_size_takes_its_first_steps(network, sets, tmp_path):
    data = sets if network.startswith("imagenet") else sets / "cifar"
    chosen = experiment_of("table3")(data=data, network=network, batch=2, steps=1)
    folder = CellFolder(tmp_path / "cells")
    for way in ("fp32", "fp6-e4"):
        run = train(replace(chosen.config(folder, way, 0), threads=1), tmp_path / way)
        assert run.status == "finished"
        assert run.summary["steps"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("row", FULL, ids=lambda row: row.case.cell)
def test_a_network_of_table_1_has_a_loss(row, sets):
    model, batches, loss = prepared(row.case, sets, 2)
    ((inputs, targets),) = islice(batches, 1)
    found = loss(model(inputs), targets)
    found.backward()
    assert found.isfinite()
