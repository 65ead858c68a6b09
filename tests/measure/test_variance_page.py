"""Table and page of a variance: they say what was measured, for any outcome."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
import torch.nn.functional as F
from networks import conv_net, image_batches

import lograd
from lograd.errors import InvalidValue
from lograd.measure import Measured


def measured(recipe, **options):
    settings = {"steps": 3, "treated": 1, "repeats": 4} | options
    return lograd.variance(conv_net(), image_batches(3), lograd.Plan.uniform(recipe), F.cross_entropy, **settings)


@pytest.fixture(scope="module")
def found():
    return measured("int5-psq")


def test_the_table_has_a_row_for_each_tensor_and_the_whole(found):
    text = found.table()
    for name in ("0.weight", "3.weight", "7.weight", "(vectors)", "(all)"):
        assert re.search(rf"^  {re.escape(name)} .* ± ", text, re.MULTILINE)
    assert "V from 3 minibatches; W from 4 draws of random numbers on 1 of them." in text
    assert "in the unit of the squared gradient" in text
    assert "for these minibatches" in text
    assert "Bias: every tensor is inside the band" in text
    assert f"{1 / (1 + found.total.rho.mean):.1%} of the samples" in text
    assert "float32:" not in text


def test_the_table_of_layers(found):
    text = found.layers_table()
    assert re.search(r"^  3 +dX +int5 psq .*\n +dW +int8 ptq", text, re.MULTILINE)
    assert "Alone the layers add" in text
    assert "propagation, growth over depth included, predicts" in text
    assert str(found) == f"{found.table()}\n\n{text}"


def test_words_on_bias_forward_and_layers_that_differ():
    biased = measured("topk70")
    assert "tensors outside the band of chance (4 sigma): 0.weight" in biased.table()
    assert "outside" in biased.table()
    assert "W contains a bias, which no number of samples averages out" in biased.table()
    assert "of the samples" not in biased.table()
    assert repr(biased).endswith("bias in 4 tensors)")
    full = measured("int6-full", contributions=False)
    assert "To float32: the change of the exact gradient by the quantized forward" in full.table()
    assert "Alone the layers add" not in full.layers_table()
    unknown = replace(biased.contributions, predicted_together=np.nan)
    assert "Propagation does not tell" in replace(biased, contributions=unknown).layers_table()


def test_layers_whose_gradient_is_not_treated_have_a_row_for_what_they_add():
    """Weights and activations are treated in the backward, and the gradient is not."""
    text = measured("saw80").layers_table()
    assert re.search(r"^  3 +– .* ± 0 ", text, re.MULTILINE)


def test_one_line_and_a_lookup(found):
    assert repr(found).startswith("Variance(4 tensors, 3 batches, rho 0.0")
    assert repr(found).endswith(", no bias seen)")
    assert found["3.weight"].name == "3.weight"
    with pytest.raises(InvalidValue, match=r"no weight tensor '3.weigth' was measured. Did you mean '3.weight'?"):
        found["3.weigth"]


@pytest.mark.parametrize("recipe", ["int5-psq", "int6-full", "topk70", "saw80"])
def test_the_page_is_whole_and_has_all_parts(recipe, tmp_path):
    found = measured(recipe)
    text = found.to_html(tmp_path / "page.html", "Mine & yours").read_text()
    assert "<h1>Mine &amp; yours</h1>" in text
    drawings = re.findall(r"<svg xmlns.*?</svg>(?=</div>)", text, re.DOTALL)
    assert len(drawings) == (10 if found.sites else 8)
    for drawing in drawings:
        ET.fromstring(drawing)
    for part in ("Noise of the plan in each weight gradient", "Bias of each weight gradient", "Contributions"):
        assert f"<title>{part}</title>" in text
    assert ("The plan also quantizes the forward" in text) == (recipe == "int6-full")
    biased = recipe in ("topk70", "saw80")
    assert ("what a step is worth" in text) == (not biased)
    assert ("no number of samples averages a bias out" in text) == biased
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", text)


def test_a_page_of_many_tensors_and_of_nothing(found, tmp_path):
    many = tuple(replace(found.tensors[0], name=f"layer{place}.weight") for place in range(40))
    still = Measured(0.0, 0.0)
    none = tuple(replace(one, noise=still, bias=still, band=0.0, minibatch=still) for one in found.tensors)
    for tensors in (many, none):
        page = replace(found, tensors=tensors, contributions=None, sites=()).to_html(tmp_path / "page.html").read_text()
        assert "Where the noise comes from" not in page
        assert tensors[-1].name in page
    assert "no noise" in replace(found, tensors=none, contributions=None).table()
