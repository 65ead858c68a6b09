"""Sparsity on the page and in the table of a profile, and in the options of lograd plan."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from networks import conv_net, image_batches
from profiled import wide_net
from rich.console import Console
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import lograd
from lograd.cli import app
from lograd.formats import FloatFormat
from lograd.measure.charts import MOST_BARS
from lograd.measure.page import _formats
from lograd.measure.precision import FormatTrial
from lograd.measure.sparsity import pruning_outlook
from lograd.measure.sparsity_page import sparsity_charts
from lograd.plan import Plan
from lograd.report import Page
from lograd.treatments import Prediction
from lograd.treatments.verdicts import verdict


class Text(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.parts = []
        self.feed(html)
        self.text = " ".join(" ".join(self.parts).split())

    def handle_data(self, data):
        self.parts.append(data)


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(wide_net(), image_batches(2), cross_entropy, noise=2)


def page(profile, tmp_path):
    return profile.to_html(tmp_path / "page.html").read_text()


def test_the_page_begins_with_zeros(profile, tmp_path):
    text = Text(page(profile, tmp_path)).text
    assert text.index("Sparsity: zeros that save time") < text.index("Laws over depth") < text.index("Formats")
    for words in (
        "Cosine over sparsity", "How many zeros each layer takes", "Noise over sparsity", "zeros with a good cosine",
        "good from a cosine of 0.98", "risky below 0.71", "counts every element alike", "not worth it", "may gain",
        "input channel in a group",
    ):  # fmt: skip
        assert words in text
    found = pruning_outlook(profile["2"], profile.noise)
    for cosine in map(float, found.cosines):
        assert f"{cosine:.3f} {verdict(cosine)}" in text
    assert f"good up to {found.good:.0%} and fair up to {found.fair:.0%}" in text
    assert f'"{"recommended"}"' in text


def test_a_page_without_noise_or_without_gain_says_so(tmp_path):
    profile = lograd.profile(conv_net(), image_batches(1), cross_entropy)
    text = Text(page(profile, tmp_path)).text
    assert "was not measured; lograd.profile(..., noise=2)" in text.replace(" ;", ";")
    assert "Noise over sparsity" not in text
    assert "none layers gain time from zeros" in text
    assert "may gain" not in text


def test_cosines_of_formats_have_verdicts(profile, tmp_path):
    text = Text(page(profile, tmp_path)).text
    assert re.search(r"FP4 1-\d-\d [\d.]+ [\d.]+ 0\.\d{4} (good|fair|risky) 0\.\d{4} (good|fair|risky)", text)


def test_the_table_shows_how_many_zeros_are_good(profile):
    text = str(profile.table())
    found = pruning_outlook(profile["2"])
    assert f"{found.good:.0%}" in text
    assert f"{found.fair:.0%}" in text
    assert "good from a cosine of 0.98" in " ".join(text.split())


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_a_narrow_table_keeps_the_zeros_and_explains_what_it_shows(profile):
    lines = printed(profile.table(), 80).splitlines()
    header = next(line for line in lines if line.split()[:1] == ["layer"])
    assert "good zeros" in header
    assert "fair zeros" in header
    assert "KS" not in header
    assert all(len(line) <= 80 for line in lines)
    assert "Good and fair zeros: " in printed(profile.table(), 80)
    assert "Good and fair zeros: " not in printed(profile.table(), 30)


def test_charts_of_many_layers_name_them(profile):
    found = pruning_outlook(profile["2"])
    for count in (MOST_BARS, MOST_BARS + 1):
        layers = [replace(found, name=f"blocks.{number}") for number in range(count)]
        (chart,) = (one for one in sparsity_charts(layers, None) if one.title == "How many zeros each layer takes")
        assert ">blocks.0<" in chart.svg()


def test_large_relative_errors_are_explained_only_beside_cosines_that_they_seem_to_contradict():
    def text(error, cosine):
        trial = FormatTrial("FP4", FloatFormat(3, 0), Prediction(0.0, cosine, error), None)
        shown = Page("")
        _formats(shown, {"fc": [trial]})
        return Text(shown.html()).text

    assert "does not contradict" in text(1.5, 0.9)
    assert "does not contradict" not in text(1.5, 0.5)
    assert "does not contradict" not in text(0.5, 0.9)


@pytest.fixture(scope="module")
def folder(profile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    profile.save(folder / "profile.npz")
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_recommended_bits_from_the_shell(profile, folder):
    result = run("plan", folder, "--bits", "recommended", "--json")
    assert result.exit_code == 0, result.output
    assert Plan.from_dict(json.loads(result.stdout)["plan"]) == profile.plan(bits="recommended")
    assert run("plan", folder, "--bits", "6", "--json", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--bits", "many"), "--bits must be a number of bits, such as 6, or recommended; got 'many'"),
        (("--bits", "6.5"), "--bits must be a number"),
        (("--bits", "6", "--everywhere"), "--everywhere says where to prune, so it needs --sparsity"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(folder, arguments, words):
    with pytest.raises(lograd.InvalidValue, match=re.escape(words)):
        CliRunner().invoke(app, ["plan", str(folder), *arguments], catch_exceptions=False)


def test_everywhere_from_the_shell(profile, folder):
    left_out = run("plan", folder, "--sparsity", "0.5", "--json", "--overwrite")
    all_pruned = run("plan", folder, "--sparsity", "0.5", "--everywhere", "--json", "--overwrite")
    assert list(json.loads(left_out.stdout)["plan"]["layers"]) == ["2"]
    assert list(json.loads(all_pruned.stdout)["plan"]["layers"]) == ["0", "2"]
