"""Images as they are published: a folder for each class, and the binary files of CIFAR-100."""

import numpy as np
import pytest
import torch

from experiments.lab import Config, load_data, train
from experiments.lab.image_folders import CIFAR_ROW, MEAN, SPREAD, ImageFolder
from lograd.errors import InvalidValue
from lograd.files.atomic import CannotRead

Image = pytest.importorskip("PIL.Image")


def folder_of_images(path, classes=("cat", "dog"), count=3, size=(12, 8)):
    """Images of one colour for each class."""
    for part in ("train", "val"):
        for number, name in enumerate(classes):
            (path / part / name).mkdir(parents=True)
            for image in range(count):
                Image.new("RGB", size, (200 * number, 40, 10 * image)).save(path / part / name / f"{image}.png")
    return path


def cifar(path, train=64, test=16):
    path.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("train", train), ("test", test)):
        rows = random.integers(0, 256, (count, CIFAR_ROW)).astype(np.uint8)
        rows[:, 0], rows[:, 1] = 99, np.arange(count) % 4
        rows[:, 2] = 7  # the first pixel of the red channel
        (path / f"{name}.bin").write_bytes(rows.tobytes())
    return path


def test_classes_are_numbered_by_their_names_and_pixels_are_those_of_the_files(tmp_path):
    data = ImageFolder(folder_of_images(tmp_path), 2, 0, False, 4)
    assert (data.train_size, data.test_size, data.sizes, data.steps_per_epoch) == (6, 6, {"classes": 2}, 3)
    images, labels = zip(*(data.batch(0, index) for index in range(3)), strict=True)
    assert sorted(torch.cat(labels).tolist()) == [0, 0, 0, 1, 1, 1]
    red = torch.cat(images)[:, 0] * SPREAD[0] + MEAN[0]
    expected = torch.cat(labels).float().mul(200 / 255).view(-1, 1, 1).expand(-1, 4, 4)
    assert torch.allclose(red, expected, atol=1e-6)
    assert torch.cat([labels for _, labels in data.test_batches()]).tolist() == [0, 0, 0, 1, 1, 1]


def test_a_batch_follows_from_seed_epoch_and_index_alone(tmp_path):
    folder_of_images(tmp_path)
    path = tmp_path / "train" / "cat" / "0.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    one, other = (ImageFolder(tmp_path, 6, 0, True, 8) for _ in range(2))
    other.batch(5, 0)
    assert torch.equal(one.batch(1, 0)[0], other.batch(1, 0)[0])
    assert not torch.equal(one.batch(1, 0)[0], one.batch(2, 0)[0])
    before = one.fingerprint
    path.write_bytes(path.read_bytes() + b" ")
    assert ImageFolder(tmp_path, 6, 0, True, 8).fingerprint != before


def test_a_run_takes_a_folder_of_images(tmp_path):
    data = folder_of_images(tmp_path / "images", count=4, size=(40, 36))
    run = train(Config("resnet8", str(data), width=4, batch=4, steps=2, threads=1), tmp_path / "run")
    assert run.status == "finished"
    assert load_data(run.config).sizes == {"classes": 2}


def test_binary_files_of_cifar_100_have_the_fine_classes(tmp_path):
    config = Config("resnet8", str(cifar(tmp_path / "cifar")), width=4, batch=8, steps=1, augment=False)
    data = load_data(config)
    assert (data.train_size, data.test_size, data.sizes) == (64, 16, {"classes": 4})
    images, _ = next(iter(data.test_batches()))
    assert images.shape == (16, 3, 32, 32)
    red = images[:, 0, 0, 0] * data.spread[0, 0, 0, 0] + data.mean[0, 0, 0, 0]
    assert torch.allclose(red, torch.full((16,), 7.0), atol=1e-3)
    first = data.fingerprint
    (tmp_path / "cifar" / "test.bin").write_bytes(bytes(CIFAR_ROW))
    assert load_data(config).fingerprint != first


def test_what_cannot_be_read_is_told_with_its_name(tmp_path):
    with pytest.raises(CannotRead, match=r"train: a folder with a folder for each class is needed"):
        ImageFolder(tmp_path, 2, 0, False, 4)
    folder_of_images(tmp_path)
    (tmp_path / "val" / "horse").mkdir()
    with pytest.raises(InvalidValue, match=r"horse: there is no class of this name"):
        ImageFolder(tmp_path, 2, 0, False, 4)
    (tmp_path / "val" / "horse").rmdir()
    for file in (tmp_path / "train" / "cat").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(CannotRead, match=r"Cannot read the image .*\.png"):
        ImageFolder(tmp_path, 6, 0, False, 4).batch(0, 0)
    broken = cifar(tmp_path / "cifar")
    (broken / "train.bin").write_bytes(b"123")
    with pytest.raises(CannotRead, match=r"train.bin: its size must be a multiple of 3074 bytes"):
        load_data(Config("resnet8", str(broken)))
