"""Menus as values: their file, forged ones, predictions and the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from networks import mlp, vector_batches
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Profile
from lograd.measure.timing import Candidate, Menus

MENUS = Menus(
    {
        "0": {"dense": Candidate("dense", 0.001, 0.002), "int8": Candidate("int8", 0.0005, 0.001, 0.0, 0.01, 0.25)},
        "2": {"dense": Candidate("dense", 0.001, 0.001), "int8": Candidate("int8", 0.002, 0.001, 0.02, 0.02, 0.5)},
    },
    0.0075,
    {"int8": 0.007},
    {"normalization": 0.0001},
    2,
    {"int8": -0.001},
    {"int8": 0.6},
)


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mlp(), vector_batches(1), cross_entropy)


def test_seconds_of_a_choice_are_those_of_its_layers_and_the_rest():
    assert MENUS.rest == pytest.approx(0.0025)
    assert MENUS.seconds({}) == pytest.approx(MENUS.step)
    assert MENUS.seconds({"0": "int8"}) == pytest.approx(0.006)
    assert MENUS.seconds({"0": "int8", "2": "int8"}) == pytest.approx(0.007)
    for choice in ({"5": "int8"}, {"0": "prune90"}):
        with pytest.raises(InvalidValue, match="was not timed for"):
            MENUS.seconds(choice)


def test_a_profile_keeps_menus_in_its_file(profile, tmp_path):
    assert Profile.load(profile.save(tmp_path / "old.npz")).menus is None
    profile = replace(profile, menus=MENUS)
    assert Profile.load(profile.save(tmp_path / "new.npz")).menus == MENUS
    assert Profile.merge([profile, profile]).menus == MENUS


def test_the_table_marks_the_fastest_method_of_each_layer():
    text = str(MENUS.table())
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()[:1] in (["0"], ["2"])}
    assert rows == {"0": ["3.00", "*1.50"], "2": ["*2.00", "3.00"]}
    assert "Times of 2 layers with 2 threads" in text
    assert "Normalization saves 0.1 ms." in text
    assert "int8 -0.001" in text


def forged(*path, value):
    def change():
        data = json.loads(json.dumps(MENUS.to_json()))
        place = data
        for step in path[:-1]:
            place = place[step]
        if value is KeyError:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return data

    return change


FORGED = {
    "no object": (list, "menus must be an object"),
    "another field": (forged("more", value=1), "menus has no field 'more'"),
    "no step": (forged("step", value=KeyError), "menus needs its field 'step'"),
    "negative step": (forged("step", value=-1), "the seconds of a step must be a finite number from 0"),
    "no threads": (forged("threads", value=0), "threads must be a whole number from 1"),
    "absurd threads": (forged("threads", value=10**9), "threads must be a whole number from 1"),
    "layers as a list": (forged("layers", value=[]), "its menus must be those of layers which it has"),
    "another layer": (forged("layers", "7", value=[]), "its menus must be those of layers which it has"),
    "a menu of text": (forged("layers", "0", value="x"), "the menu of layer '0' must be a short list"),
    "without dense": (forged("layers", "0", value=[]), "must have 'dense', and each method once"),
    "dense twice": (forged("layers", "0", 1, "method", value="dense"), "must have 'dense', and each method once"),
    "a candidate of text": (forged("layers", "0", 0, value="x"), "a candidate of layer '0' must be an object"),
    "another method": (forged("layers", "0", 1, "method", value="int99"), "'int99' is not a method"),
    "a number for a method": (forged("layers", "0", 1, "method", value=8), "a method of layer '0' must be a text"),
    "negative time": (forged("layers", "0", 0, "forward", value=-1.0), "forward of layer '0' must be a finite number"),
    "infinite noise": (forged("layers", "0", 0, "input_noise", value=1e999), "input_noise of layer '0' must be"),
    "a penalty of text": (forged("layers", "0", 0, "penalty", value="1"), "penalty of layer '0' must be"),
    "uniform as a list": (forged("uniform", value=[]), "uniform of menus must be an object"),
    "uniform of no method": (forged("uniform", value={"fast": 1.0}), "'fast' is not a method"),
    "negative extra": (forged("extras", value={"normalization": -1}), "extras of 'normalization' must be"),
    "a loss that is true": (forged("loss", value={"int8": True}), "loss of 'int8' must be a finite number"),
    "negative penalty": (forged("penalty", value={"int8": -1.0}), "penalty of 'int8' must be a finite number from 0"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_menus_are_refused_in_one_sentence(name):
    forge, words = FORGED[name]
    with pytest.raises(InvalidValue, match=words) as caught:
        Menus.from_json(forge(), ["0", "2"])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_profile_with_forged_menus_is_refused(profile, tmp_path):
    broken = replace(MENUS, layers={"7": MENUS.layers["0"]})
    path = replace(profile, menus=broken).save(tmp_path / "forged.npz")
    with pytest.raises(InvalidValue, match="its menus must be those of layers which it has"):
        Profile.load(path)
