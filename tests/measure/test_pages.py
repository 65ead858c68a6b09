"""The page of a profile: complete, self-contained, and of a size that a browser opens."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.errors import InvalidValue
from lograd.files import CannotWrite
from lograd.measure.prediction import recommended_format


class Outline(HTMLParser):
    """Which tags there are, that they are balanced, and the text."""

    VOID = ("meta", "br")

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.words = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_the_page_shows_every_layer_with_its_fits_formats_and_reasons(tmp_path):
    model = conv_net()
    model.add_module("unused<b>", nn.Linear(5, 5))
    with lograd.observe(model, every=1) as profile:
        for x, y in image_batches(4):
            cross_entropy(model[:8](x), y).backward()
    html = profile.to_html(tmp_path / "page.html").read_text()
    outline = Outline(html)
    assert "its forward did not run" in outline.text
    assert "unused<b>" in outline.text
    assert "unused<b>" not in html
    for title in ("Spread over depth", "Distance from each law", "Spread over time", "recommended"):
        assert title in outline.text
    assert html.count("<svg") == 4 + len(profile.layers)
    for layer in profile.layers.values():
        assert outline.text.count(f" {layer.name} {layer.kind} ") == 1
        assert str(recommended_format(layer.law)) in outline.text
    assert not re.search(r'(src|href)="http', html), "the page must need no network"
    assert "nan" not in outline.text.lower().split()


def test_a_gradient_without_values_or_of_zeros_and_many_layers_have_a_page(tmp_path):
    still = lograd.profile(mlp(), [torch.zeros(4, 6)], lambda model, x: model(x).sum() * 0)
    single = lograd.profile(mlp(), vector_batches(1), lambda output, target: output.sum())  # all elements equal
    empty = lograd.Profile(missed={"fc": "its forward did not run"})
    deep = nn.Sequential(*(nn.Linear(6, 6) for _ in range(25)))
    many = lograd.profile(deep, vector_batches(2), cross_entropy, sample=64)
    for profile in (still, single, empty, many):
        html = profile.to_html(tmp_path / "page.html").read_text()
        assert "backward passes observed" in Outline(html).text
        assert len(html) < 3_000_000


def test_a_page_is_not_computed_for_a_folder_that_is_not_there(tmp_path):
    profile = lograd.profile(mlp(), vector_batches(1), cross_entropy)
    with pytest.raises(CannotWrite, match="does not exist"):
        profile.to_html(tmp_path / "none" / "page.html")
    profile.to_html(tmp_path / "page.html", title="Mine & <yours>")
    assert "<h1>Mine &amp; &lt;yours&gt;</h1>" in (tmp_path / "page.html").read_text()


def test_figures_can_be_put_into_a_paper(tmp_path):
    profile = lograd.profile(mlp(), vector_batches(1), cross_entropy)
    for figure in (profile.plot(), profile.plot("0")):
        figure.savefig(tmp_path / "figure.png")
        assert figure.axes[0].get_title(loc="left")
    with pytest.raises(InvalidValue, match="9"):
        profile.plot("9")
    still = lograd.profile(mlp(), [torch.zeros(4, 6)], lambda model, x: model(x).sum() * 0)
    with pytest.raises(InvalidValue, match="zero"):
        still.plot("0")
