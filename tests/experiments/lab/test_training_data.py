"""Data of the built-in models: batches are functions of (seed, epoch, index), and wrong files are refused in words."""

import numpy as np
import pytest
import torch
import training_files as files

import lograd
from experiments.lab import Config, load_data
from experiments.lab.data import Dataset
from experiments.lab.images import SHIFT, augmented
from experiments.lab.text import CONTEXT
from lograd.errors import LogradWarning


@pytest.fixture
def made(tmp_path):
    return {
        "resnet8": files.images(tmp_path / "images.npz"),
        "charlm": files.text(tmp_path / "text.txt"),
        "bert-mini": files.sentences(tmp_path / "sentences"),
    }


def equal(one, other):
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("model", ["resnet8", "charlm", "bert-mini"])
def test_a_batch_depends_on_seed_epoch_and_index_alone(model, made):
    def load(seed=0) -> Dataset:
        return load_data(Config(model, made[model], seed=seed, batch=8))

    data = load()
    places = [(epoch, index) for epoch in range(2) for index in range(data.steps_per_epoch)]
    in_order = {place: data.batch(*place) for place in places}
    again = load()
    for place in reversed(places):  # as a resumed run: from anywhere, in another process
        assert equal(again.batch(*place), in_order[place])
    assert not equal(in_order[0, 0], in_order[1, 0])
    assert not equal(in_order[0, 0], load(seed=1).batch(0, 0))
    for one, other in zip(data.test_batches(), load(seed=1).test_batches(), strict=True):
        assert equal(one, other)


def test_an_epoch_shows_each_example_once(made):
    data = load_data(Config("resnet8", made["resnet8"], batch=10))
    for epoch in range(3):
        seen = np.concatenate([data.chosen(epoch, index) for index in range(data.steps_per_epoch)])
        assert data.steps_per_epoch == 6  # of 64 examples; the four that are over are others each time
        assert len(set(seen)) == 60


@pytest.mark.parametrize("augment", [False, True])
def test_images_are_averaged_down_after_augmentation(augment, tmp_path):
    path = files.images(tmp_path / "images.npz", side=16)
    whole, small = (load_data(Config("resnet8", path, batch=8, augment=augment, pixels=pixels)) for pixels in (None, 8))
    for one, other in (
        (whole.batch(1, 2), small.batch(1, 2)),
        (next(whole.test_batches()), next(small.test_batches())),
    ):
        means = one[0].unflatten(2, (8, 2)).unflatten(4, (8, 2)).mean((3, 5))
        assert other[0].shape[2:] == (8, 8)
        assert torch.allclose(other[0], means, atol=1e-6)
        assert torch.equal(one[1], other[1])


def test_sides_that_pixels_do_not_divide_are_refused(tmp_path):
    path = files.images(tmp_path / "images.npz", side=16)
    with pytest.raises(
        lograd.InvalidValue, match="pixels must divide the sides of square images; got 12 for images of 16 x 16"
    ):
        load_data(Config("resnet8", path, pixels=12))


def test_images_are_normalised_by_the_training_part(made):
    data = load_data(Config("resnet8", made["resnet8"], batch=64, augment=False))
    pixels, _ = data.batch(0, 0)
    assert pixels.shape == (64, 3, 8, 8)
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(pixels.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    assert data.sizes == {"classes": 4}


def test_augmentation_moves_and_mirrors():
    image = np.random.default_rng(0).integers(1, 256, (9, 10, 3), dtype=np.uint8)
    padded = np.pad(image, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
    possible = {}
    for top in range(2 * SHIFT + 1):
        for left in range(2 * SHIFT + 1):
            crop = padded[top : top + 9, left : left + 10]
            possible |= {crop.tobytes(): (top, left, 0), crop[:, ::-1].tobytes(): (top, left, 1)}
    draws = augmented(np.repeat(image[None], 4000, axis=0), np.random.default_rng(1))
    found = [possible[draw.tobytes()] for draw in draws]  # a KeyError here is something else than a move or a mirror
    assert set(found) == set(possible.values())
    assert sum(mirrored for *_, mirrored in found) == pytest.approx(2000, abs=4 * np.sqrt(1000))


def test_text_windows_are_shifted_and_followed_by_the_next_character(made):
    text = made["charlm"].read_text(encoding="utf-8")
    data = load_data(Config("charlm", made["charlm"], batch=4))
    alphabet = sorted(set(text))
    assert data.sizes == {"tokens": len(alphabet)}
    for epoch in range(3):
        inputs, targets = data.batch(epoch, 0)
        assert inputs.shape == targets.shape == (4, CONTEXT)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        for row in inputs:
            assert "".join(alphabet[token] for token in row) in text[: len(text) * 9 // 10 + 1]
    tested = torch.cat([targets.flatten() for _, targets in data.test_batches()])
    assert "".join(alphabet[token] for token in tested) in text[len(text) * 9 // 10 - 1 :]


def test_words_are_numbered_by_the_training_part(tmp_path):
    folder = files.sentences(tmp_path / "s", train=4, test=2)
    (folder / "dev.tsv").write_text("sentence\tlabel\nA fine unheard word\t2\r\n" + "film " * 100 + "\t0\n")
    with pytest.warns(LogradWarning, match="no example of class 2, so 50.0% of the test part"):
        data = load_data(Config("bert-mini", folder, batch=2))
    # indeed, a, film, dull, fine: by frequency and then by name, after padding and unknown
    assert data.sizes == {"tokens": 7, "classes": 3}
    (words, labels), *_ = data.test_batches()
    assert words[0].tolist() == [3, 6, 1, 1] + [0] * 60
    assert words.shape == (2, 64)
    assert labels.tolist() == [2, 0]


def write(path, content):
    path.write_bytes(content)
    return path


NOT_THERE = "no-such-place"
WRONG = {
    "no images": ("resnet8", lambda p: p / NOT_THERE, "no-such-place: there is no such file"),
    "folder of images": ("resnet8", lambda p: p, "it is a folder"),
    "not an npz": ("resnet8", lambda p: write(p / "x", b"hello"), "not a whole .npz file .* with train_images, .* is"),
    "cut npz": ("resnet8", lambda p: write(p / "x", files.images(p / "y.npz").read_bytes()[:900]), "not a whole .npz"),
    "no key": ("resnet8", lambda p: files.images(p / "x.npz", test_labels=None), "test_labels is missing"),
    "grey": ("resnet8", lambda p: files.images(p / "x.npz", train_images=np.zeros((64, 8, 8), np.uint8)),
             r"uint8 of shape N x H x W x 3 .* got uint8 of shape \(64, 8, 8\)"),
    "floats": ("resnet8", lambda p: files.images(p / "x.npz", test_images=np.zeros((32, 8, 8, 3))), "got float64"),
    "too small": ("vgg", lambda p: files.images(p / "x.npz", side=16), "sides of 32 pixels or more"),
    "two sizes": ("resnet8", lambda p: files.images(p / "x.npz", test_images=np.zeros((32, 9, 9, 3), np.uint8)),
                  "must have the same size"),
    "labels": ("resnet8", lambda p: files.images(p / "x.npz", train_labels=np.zeros(3, int)), "one for each of 64"),
    "negative": ("resnet8", lambda p: files.images(p / "x.npz", test_labels=np.arange(32) - 1), "got -1 to 30"),
    "pickle": ("resnet8", lambda p: files.images(p / "x.npz", test_labels=np.array([{}])), "holds object, and plain"),
    "no text": ("charlm", lambda p: p / NOT_THERE, "Cannot read .*no-such-place"),
    "folder of text": ("charlm", lambda p: p, "it is a folder, and a text file is needed"),
    "not a text": ("charlm", lambda p: write(p / "x", b"\xff\xfe" * 999), "not UTF-8"),
    "short text": ("charlm", lambda p: files.text(p / "x", 1000), "a text of 1290 characters or more .* got 1000"),
    "no sentences": ("bert-mini", lambda p: p, "a folder with train.tsv and dev.tsv is needed"),
    "no header": ("bert-mini", lambda p: tsv(p, b"a film\t1\n"), "first line must be 'sentence', a tab and 'label'"),
    "no label": ("bert-mini", lambda p: tsv(p, b"sentence\tlabel\na film\n"), "line 2: a sentence, a tab and a class"),
    "odd label": ("bert-mini", lambda p: tsv(p, b"sentence\tlabel\na\t1\nb\tgood\n"), "line 3.*got 'b.tgood'"),
    "only a header": ("bert-mini", lambda p: tsv(p, b"sentence\tlabel\n"), "at least one sentence"),
    "bytes": ("bert-mini", lambda p: tsv(p, b"\xff\xfe"), "not UTF-8"),
    "small": ("resnet8", lambda p: files.images(p / "x.npz", train=5), "at most the number of training examples, 5;"),
}  # fmt: skip


def tsv(folder, content):
    made = files.sentences(folder / "s")
    (made / "train.tsv").write_bytes(content)
    return made


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_in_one_sentence(name, tmp_path):
    model, make, words = WRONG[name]
    with pytest.raises(lograd.LogradError, match=words) as caught:
        load_data(Config(model, make(tmp_path), batch=8))
    assert "\n" not in str(caught.value)
