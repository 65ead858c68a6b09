"""The file and the page of a variance."""

import json
from functools import lru_cache

import pytest
import torch.nn.functional as F
from networks import conv_net, image_batches

import lograd
from lograd.errors import InvalidValue
from lograd.files import checksum_of_json


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
    assert again.to_dict() == found.to_dict()
    assert again.table() == found.table()


def test_without_contributions(tmp_path):
    found = measured("int8-ptq", contributions=False)
    assert lograd.Variance.load(found.save(tmp_path / "v.json")) == found
    assert found.contributions is None


@pytest.mark.parametrize("name", ["total", "tensors", "sites", "repeats"])
def test_a_file_without_a_field_is_refused(name, tmp_path):
    data = measured("int5-bhq").to_dict()
    del data[name]
    (tmp_path / "v.json").write_text(json.dumps(data | {"checksum": checksum_of_json(data)}))
    with pytest.raises(InvalidValue, match="Cannot read the variance"):
        lograd.Variance.load(tmp_path / "v.json")


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


def test_the_page_and_the_figure(found, tmp_path):
    html = found.to_html(tmp_path / "v.html", "Mine & <yours>").read_text()
    assert "Mine &amp; &lt;yours&gt;" in html
    assert html.count("<svg") >= 4
    for one in found.tensors:
        assert one.name in html
    assert found.plot().axes[0].patches
    assert {row["name"] for row in found.rows()} == {one.name for one in (*found.tensors, found.total)}
