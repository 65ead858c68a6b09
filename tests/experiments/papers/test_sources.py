"""Data of the experiments: where it is found, the sets inside the package as files, and batches without end."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import training_files as files

from experiments import data as embedded
from experiments.papers.experiment import Experiment
from experiments.papers.sources import DIGITS, embedded_data, find
from experiments.papers.streams import augmented_images, images, noisy, sentences, text, training_images
from experiments.papers.trainings import TRAININGS, training_of
from lograd.errors import InvalidValue


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return embedded_data(tmp_path_factory.mktemp("embedded"))


def write_sentences(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder


# -------------------------------------------------------------------------------------------------- where data lies


def test_data_is_found_in_a_folder_of_several_sets(sets):
    assert find(sets, "images") == sets / "digits.npz"
    assert find(sets, "text") == sets / "play.txt"
    assert find(sets, "sentences") == sets / "sst2"


def test_a_path_that_is_one_set_is_taken_as_it_is(sets, tmp_path):
    assert find(sets / "digits.npz", "images") == sets / "digits.npz"
    assert find(sets / "sst2", "sentences", "cola") == sets / "sst2"
    assert find(tmp_path / "nothing", "images") == tmp_path / "nothing"  # the reader tells what is wrong with it
    (tmp_path / "train").mkdir()
    assert find(tmp_path, "images") == tmp_path
    (tmp_path / "train").rmdir()
    (tmp_path / "train.bin").touch()
    assert find(tmp_path, "images") == tmp_path


def test_a_named_folder_is_found_among_several(tmp_path):
    write_sentences(tmp_path / "cola", "sentence\tlabel")
    write_sentences(tmp_path / "mrpc", "sentence1\tsentence2\tlabel")
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    assert find(tmp_path, "sentences", "mrpc") == tmp_path / "mrpc"
    assert find(tmp_path, "images", "imagenet") == tmp_path / "imagenet"


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("sentences", "", r"a folder sst2 with a train.tsv; it has none"),
        ("sentences", "cola", r"a folder cola with a train.tsv; it has none"),
        ("images", "imagenet", r"a folder imagenet with a folder train; it has none"),
        ("images", "", r"one file with images, \*.npz; it has a.npz, b.npz"),
        ("text", "", r"one file with text, \*.txt; it has none"),
    ],
)
def test_what_is_not_found_or_not_alone_is_told(kind, name, words, tmp_path):
    for file in ("a.npz", "b.npz"):
        (tmp_path / file).touch()
    with pytest.raises(InvalidValue, match=words):
        find(tmp_path, kind, name)


def test_an_experiment_takes_the_set_that_it_needs(sets):
    from experiments.papers import experiment_of

    def data(name: str, **options: str) -> Path | None:
        made: Experiment = experiment_of(name).make({"data": sets, **options})
        return made.data

    assert data("encoding") == sets / "digits.npz"
    assert data("bits", model="charlm") == sets / "play.txt"
    assert data("speed", model="bert-mini") == sets / "sst2"
    assert data("table1") == sets  # images and sentences
    assert data("table3") == sets  # its network finds its own


# -------------------------------------------------------------------------------------------------- embedded sets


def test_embedded_digits_are_those_of_the_package(sets):
    with np.load(sets / "digits.npz", allow_pickle=False) as file:
        arrays = dict(file)
    whole = embedded.digits()
    assert arrays["train_images"].shape == (DIGITS["train"], 8, 8, 3)
    assert arrays["test_images"].shape == (DIGITS["test"], 8, 8, 3)
    assert arrays["train_labels"].tolist() == whole.train_labels[: DIGITS["train"]].tolist()
    first = whole.train_images[0, 0].mul(255).byte().numpy()
    for channel in range(3):
        assert np.array_equal(arrays["train_images"][0, :, :, channel], first)
    assert set(arrays["train_labels"]) == set(range(10))


def test_embedded_sentences_are_lines_of_two_speakers(sets):
    parts = {}
    for part in ("train", "dev"):
        header, *lines = (sets / "sst2" / f"{part}.tsv").read_text().splitlines()
        assert header == "sentence\tlabel"
        parts[part] = lines
        assert {line.rpartition("\t")[2] for line in lines} == {"0", "1"}
    assert 3 < len(parts["train"]) / len(parts["dev"]) < 5
    play = embedded.shakespeare()
    assert all(line.rpartition("\t")[0] in play for line in parts["dev"])
    assert (sets / "play.txt").read_text() == play


def test_embedded_data_is_written_once(sets):
    before = {path: path.stat().st_mtime_ns for path in sets.rglob("*") if path.is_file()}
    assert embedded_data(sets) == sets
    assert before == {path: path.stat().st_mtime_ns for path in sets.rglob("*") if path.is_file()}
    assert len(before) == 4


# -------------------------------------------------------------------------------------------------- batches


def test_sentences_are_numbered_by_words_that_occur_twice(tmp_path):
    folder = write_sentences(tmp_path / "cola", "sentence\tlabel", "the cat Sat\t1", "the cat ran\t0")
    batches, tokens = sentences(folder, 8, 5)
    assert tokens == 2 + 2  # padding, words that occur once, "cat" and "the"
    inputs, labels = next(batches)
    assert inputs.shape == (8, 3)  # padded to the longest of the batch
    assert inputs.tolist() == [[3, 2, 1]] * 8
    assert set(labels.tolist()) <= {0, 1}


def test_a_pair_of_sentences_is_joined_by_a_token_of_its_own(tmp_path):
    lines = ["sentence1\tsentence2\tlabel", "a b\tb a\t1", "a a\tb\t0"]
    batches, tokens = sentences(write_sentences(tmp_path / "mrpc", *lines), 16, 8)
    assert tokens == 2 + 3  # "[pair]", "a", "b"
    inputs, labels = next(batches)
    expected = {1: [3, 4, 2, 4, 3], 0: [3, 3, 2, 4, 0]}
    assert all(row == expected[label] for row, label in zip(inputs.tolist(), labels.tolist(), strict=True))


def test_long_sentences_are_cut(tmp_path):
    folder = write_sentences(tmp_path / "cola", "sentence\tlabel", "a " * 20 + "\t0")
    inputs, _ = next(sentences(folder, 2, 6)[0])
    assert inputs.shape == (2, 6)


@pytest.mark.parametrize("line", ["no tab", "a sentence\tgood", "a sentence\t"])
def test_lines_without_a_class_are_refused(line, tmp_path):
    folder = write_sentences(tmp_path / "cola", "sentence\tlabel", "a b\t1", line)
    with pytest.raises(InvalidValue, match=r"train.tsv: sentences and a class number with tabs between are needed"):
        sentences(folder, 2, 8)


def test_images_of_a_file_and_of_the_package_have_the_same_form(tmp_path):
    path = files.images(tmp_path / "images.npz", side=32)
    for source in (path, None):
        pixels, labels = next(images(source, 5))
        assert pixels.shape == (5, 3, 32, 32)
        assert labels.shape == (5,)
        assert pixels.is_contiguous()
    assert len(training_images(path)[1]) == 64


def test_batches_repeat_and_epochs_see_each_image_once(tmp_path):
    path = files.images(tmp_path / "images.npz", side=32, train=12)
    one, other = (list(islice(augmented_images(path, 4, seed=3), 6)) for _ in range(2))
    for (a, b), (c, d) in zip(one, other, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    for epoch in (one[:3], one[3:]):
        assert sorted(torch.cat([labels for _, labels in epoch]).tolist()) == sorted(i % 4 for i in range(12))


def test_a_network_that_removes_noise_is_given_noise_of_half_a_unit(tmp_path):
    path = files.images(tmp_path / "images.npz", side=32)
    inputs, clean = next(noisy(images(path, 16)))
    count = inputs.numel()
    spread = float((inputs - clean).std())
    assert abs(spread - 0.5) < 4 * 0.5 / (2 * count) ** 0.5


def test_text_is_windows_with_the_next_character_at_each_place():
    windows, characters = text(4, 10)
    inputs, targets = next(windows)
    assert inputs.shape == targets.shape == (4, 10)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert characters == len(set(embedded.shakespeare()))


# -------------------------------------------------------------------------------------------------- trainings


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_a_config_of_its_model(name, sets, tmp_path):
    training = training_of(name)
    place = {"images": sets / "digits.npz", "text": sets / "play.txt", "sentences": sets / "sst2"}[training.kind]
    config = training.config(place)
    assert config.model == training.model
    assert config.task.kind == training.kind
    assert config.evaluate_every == 10**6  # once, at the end
    assert training.words


def test_what_is_given_goes_before_what_the_training_has(sets):
    training = training_of("resnet8")
    assert training.config(sets).epochs == 20
    shorter = training.config(sets, steps=7, batch=None, lr=0.3)
    assert (shorter.steps, shorter.epochs, shorter.batch, shorter.lr) == (7, None, 128, 0.3)
    assert training.config(sets, epochs=2).epochs == 2


def test_a_training_that_nobody_knows_is_refused_with_the_nearest():
    with pytest.raises(InvalidValue, match=r"network must be one of digits, .*Did you mean 'resnet8'"):
        training_of("resnet")
