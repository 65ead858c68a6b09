"""What a profile says of zeros: cosine and noise over sparsity, verdicts, which layers gain; page, table, commands."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import lograd
from lograd.cli import app
from lograd.ops import stochastic_prune
from lograd.plan import Plan
from lograd.profiles.sparsity import SPARSITIES, USUAL, together, zeros_of, zeros_of_all
from lograd.theory import threshold
from lograd.treatments.verdicts import FAIR_COSINE, GOOD_COSINE, noise_of, verdict


class Text(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.parts = []
        self.feed(html)
        self.text = " ".join(" ".join(self.parts).split())

    def handle_data(self, data):
        self.parts.append(data)


def wide_net():
    """Layer "2" is large enough to gain from zeros at a batch of 16; "0" and the last are not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 5),
    )  # fmt: skip


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(wide_net(), image_batches(2), cross_entropy, noise=2)


def page(profile, tmp_path):
    return profile.to_html(tmp_path / "page.html").read_text()


def test_cosines_are_those_of_pruned_samples(profile):
    layer = profile["2"]
    found = zeros_of(layer)
    x = torch.from_numpy(layer.sample).double()
    for place, sparsity in enumerate(SPARSITIES):
        pruned = stochastic_prune(x.float(), float(threshold(layer.law, sparsity)), seed=place).double()
        cosine = float(x @ pruned / (x.norm() * pruned.norm()))
        assert found.cosines[place] == pytest.approx(cosine, rel=0.05)
    assert np.all(np.diff(found.cosines) <= 0)


def test_good_and_fair_sparsities_have_such_cosines(profile):
    for sparsity, cosine in (("good", GOOD_COSINE), ("fair", FAIR_COSINE)):
        found = zeros_of(profile["2"])
        plan = profile.plan(sparsity=getattr(found, sparsity), allocation="uniform", keep=(), everywhere=True)
        assert plan.layers["2"].predicted_input.cosine == pytest.approx(cosine, abs=2e-3)


def test_zeros_that_are_there_cost_nothing():
    profile = lograd.profile(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), _vectors(), cross_entropy)
    layer = profile["0"]
    assert layer.zero_share > 0.3
    found = zeros_of(layer)
    assert found.good > layer.zero_share
    assert zeros_of(profile["2"]).cosine(0.5) < found.cosine(0.5)


def _vectors():
    torch.manual_seed(0)
    return [(torch.randn(64, 6), torch.randint(0, 3, (64,)))]


def test_noise_of_a_layer_is_what_it_was_measured_to_bring(profile):
    found = zeros_of(profile["2"], profile.noise)
    place = profile.noise.layers.index("2")
    factors = profile.noise.factors
    ratios = np.zeros(len(profile.noise.layers))
    ratios[place] = noise_of(found.cosine(USUAL))
    assert found.noise(USUAL) == pytest.approx(factors.total(ratios, ratios), rel=1e-9)
    assert zeros_of(profile["2"]).noise(USUAL) is None


def test_layers_together_are_what_a_uniform_plan_predicts(profile):
    found = zeros_of_all(profile.layers, profile.noise)
    sums = together(found, profile.noise)
    plan = profile.plan(sparsity=USUAL, allocation="uniform")
    assert list(plan.layers) == ["2"]
    assert sums.growth[SPARSITIES.index(USUAL)] == pytest.approx(plan.growth.factor, rel=0.01)
    assert sums.noise == sorted(sums.noise)
    assert together(found, None) is None


def test_the_page_begins_with_zeros(profile, tmp_path):
    text = Text(page(profile, tmp_path)).text
    assert text.index("Sparsity: zeros that save time") < text.index("Laws over depth") < text.index("Formats")
    for words in (
        "Cosine over sparsity", "How many zeros each layer takes", "Noise over sparsity", "zeros with a good cosine",
        "good from a cosine of 0.98", "risky below 0.71", "counts every element alike", "not worth it", "may gain",
        "input channel in a group",
    ):  # fmt: skip
        assert words in text
    found = zeros_of(profile["2"], profile.noise)
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
    found = zeros_of(profile["2"])
    assert f"{found.good:.0%}" in text
    assert f"{found.fair:.0%}" in text
    assert "good from a cosine of 0.98" in " ".join(text.split())


# -- commands --


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
    assert Plan.from_json(json.loads(result.stdout)["plan"]) == profile.plan(bits="recommended")
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
