"""The file of a variance: an exact inverse, and nothing in it is believed."""

import json
from functools import lru_cache

import pytest
import torch.nn.functional as F
from networks import conv_net, image_batches

import lograd
from lograd.errors import InvalidValue
from lograd.files.seals import checksum_of_json


@lru_cache(maxsize=4)
def measured(recipe, contributions=True):
    return lograd.variance(
        conv_net(), image_batches(3), lograd.Plan.uniform(recipe), F.cross_entropy, steps=3, treated=1, repeats=4,
        contributions=contributions,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["int5-bhq", "int6-full"])
def found(request):
    return measured(request.param)


def test_load_is_the_exact_inverse_of_save(found, tmp_path):
    path = found.save(tmp_path / "variance.json")
    again = lograd.Variance.load(path)
    assert again == found
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert again.to_json() == found.to_json()
    assert again.table() == found.table()


def test_without_contributions(tmp_path):
    found = measured("int8-ptq", contributions=False)
    assert lograd.Variance.load(found.save(tmp_path / "v.json")) == found
    assert found.contributions is None


def change(data, path, value):
    *parents, last = path
    for name in parents:
        data = data[name]
    if value is KeyError:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["lograd_variance"], 2, "it has version 2, and this lograd reads version 1"),
        (["total"], KeyError, "a variance needs its field 'total'"),
        (["more"], 1, "a variance has no field 'more'"),
        (["tensors"], {}, "tensors must be a list"),
        (["tensors", 0, "noise"], [-1.0, 0.0], "noise of '0.weight' must be a finite number from 0"),
        (["tensors", 0, "noise"], [1.0], "must be a list of 2"),
        (["tensors", 0, "bias", 1], "x", "the error of bias of '0.weight' must be a finite number"),
        (["tensors", 0, "elements"], 0, "elements of '0.weight' must be a whole number from 1"),
        (["tensors", 0, "forward"], [2.0, 1.0], "cosine of '0.weight' must be a finite number from -1 to 1"),
        (["sites", 0, "product"], "dY", "the product of a site of '0' must be dX, dW, or both"),
        (["sites", 0, "bound"], "x", "bound of a site of '0' must be a finite number"),
        (["contributions", "noise", 0], [1.0], "noise must be a list of"),
        (["contributions", "errors", 0, 0], -1.0, "errors must be a finite number from 0"),
        (["contributions", "layers", 0], 3, "a name in layers must be a text"),
        (["contributions", "predicted", 0], -1.0, "predicted must be a finite number from 0"),
        (["treated"], 9, "treated must be a whole number from 1 to 3"),
        (["repeats"], 2, "repeats must be a whole number from 4"),
    ],
)
def test_a_file_that_lies_is_refused_in_one_sentence(path, value, message, tmp_path):
    data = measured("int5-bhq").to_json()
    change(data, path, value)
    (tmp_path / "v.json").write_text(json.dumps(data | {"checksum": checksum_of_json(data)}))
    with pytest.raises(InvalidValue, match="Cannot read the variance") as caught:
        lograd.Variance.load(tmp_path / "v.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damage_and_other_files_are_told(found, tmp_path):
    path = found.save(tmp_path / "v.json")
    text = path.read_text()
    path.write_text(text.replace('"repeats": 4', '"repeats": 5'))
    with pytest.raises(InvalidValue, match="its checksum does not match"):
        lograd.Variance.load(path)
    for content in ("{}", "[]", text[:100], '{"lograd_plan": 2}'):
        path.write_text(content)
        with pytest.raises(InvalidValue, match="Cannot read the variance"):
            lograd.Variance.load(path)
