"""Forged files of profiles: refused in one sentence, before memory is allocated."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlp, vector_batches
from refusals import JSON, REFUSED, attempt
from torch.nn.functional import cross_entropy

import lograd
from lograd import InvalidValue, Profile
from lograd.errors import LogradWarning
from lograd.files.atomic import CannotRead


@pytest.fixture(scope="module")
def profile():
    return lograd.profile(mlp(), vector_batches(4), cross_entropy, steps=3, noise=1)


@pytest.fixture(scope="module")
def arrays(profile, tmp_path_factory):
    path = profile.save(tmp_path_factory.mktemp("profile") / "p.npz")
    with np.load(path) as file:
        return dict(file)


def header_of(arrays):
    return json.loads(arrays["header"].tobytes())


def with_header(arrays, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return arrays | {"header": np.frombuffer(text, dtype=np.uint8)}


def load(arrays, path, **options):
    """As an unsealed file, which anybody can write."""
    np.savez(path, **arrays)
    return Profile.load(path, **options)


def cell(row, column, value):
    def change(arrays):
        records = arrays["records"].copy()
        records[row, column] = value
        return arrays | {"records": records}

    return change


def in_header(*path, value):
    def change(arrays):
        header = header_of(arrays)
        place = header
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return with_header(arrays, header)

    return change


def element(name, value):
    def change(arrays):
        array = arrays[name].copy()
        array.flat[0] = value
        return arrays | {name: array}

    return change


def minibatch(column, value):
    return in_header("minibatch", "tensors", "0.weight", column, value=value)


FORGED = {
    "layer -1": (cell(0, 0, -1), "the layer of a record must be from 0 to 1; got -1"),
    "layer too large": (cell(0, 0, 2), "the layer of a record must be from 0 to 1; got 2"),
    "side": (cell(0, 1, 2), "the side of a record must be from 0 to 1; got 2"),
    "negative step": (cell(0, 2, -1), "the step of a record"),
    "absurd step": (cell(2, 2, 2**62), "the step of a record"),
    "a step after the last": (cell(2, 2, 3), "the step of a record must be from 0 to 2; got 3"),
    "steps not in order": (cell(1, 2, 0), "steps of layer '0' are not in order"),
    "first bin": (cell(0, 3, 10**9), "the first bin of a record"),
    "last bin": (cell(0, 3, 2047), "the last bin of a record"),
    "beyond float32": (cell(7, 3, 8106), "the first bin of a record"),
    "negative bins": (cell(0, 4, -1), "the number of bins of a record"),
    "many bins": (cell(0, 4, 2**62), "the number of bins of a record"),
    "negative zeros": (cell(0, 5, -1), "the zeros of a record must be from 0 to"),
    "negative NaN": (cell(0, 6, -5), "the NaN of a record"),
    "negative infinities": (cell(0, 7, -5), "the infinities of a record"),
    "masked": (element("masked", 1.5), "a masked share must be from 0 to 1; got 1.5"),
    "negative masked": (element("masked", -0.1), "a masked share"),
    "infinite masked": (element("masked", np.inf), "a masked share"),
    "negative count": (element("counts", -1), "a count must be from 0"),
    "counts that wrap around": (lambda a: a | {"counts": np.full_like(a["counts"], 2**53)}, "add up to more than any"),
    "empty histogram": (lambda a: a | {"counts": np.zeros_like(a["counts"])}, "one of its histograms is empty"),
    "NaN sample": (element("samples", np.nan), "the sample of layer '0' has NaN, and none was counted"),
    "infinite sample": (element("samples", np.inf), "has infinities, and none was counted"),
    "samples left": (lambda a: a | {"samples": a["samples"][:-1]}, "the file has"),
    "samples of doubles": (lambda a: a | {"samples": a["samples"].astype(float)}, "samples holds float64"),
    "a row of counts": (lambda a: a | {"counts": a["counts"][None]}, "counts holds int64 of shape"),
    "no masked": (lambda a: {name: array for name, array in a.items() if name != "masked"}, "no array 'masked'"),
    "no records of a layer": (lambda a: a | {"records": a["records"][:0], "masked": a["masked"][:0],
                              "counts": a["counts"][:0]}, "layer '0' has no record"),
    "pickled objects": (lambda a: a | {"counts": np.array([{}])}, "holds object, and plain numbers are needed"),
    "two names": (in_header("layers", 1, "name", value="0"), "two of its layers have the same name"),
    "a name that is none": (in_header("layers", 1, "name", value=5), "the name of a layer must be a text"),
    "kind": (in_header("layers", 0, "kind", value=[]), "the kind of layer '0' must be a text"),
    "negative sample": (in_header("layers", 0, "sample", value=-4), "the sample of layer '0' must be a whole number"),
    "shape": (in_header("layers", 0, "weight_shape", value=[-1]), "weight_shape of layer '0'"),
    "deep shape": (in_header("layers", 0, "weight_shape", value=[1] * 99), "a short list of sizes, or null"),
    "flops": (in_header("layers", 0, "flops_input", value=-1), "flops_input of layer '0'"),
    "true flops": (in_header("layers", 0, "flops_input", value=True), "flops_input of layer '0'"),
    "steps": (in_header("steps", value=-1), "steps must be a whole number"),
    "absurd steps": (in_header("steps", value=2**60), "steps must be a whole number"),
    "every": (in_header("every", value=0), "every must be a whole number from 1"),
    "missed": (in_header("missed", value=[]), '"missed" must be an object'),
    "reason": (in_header("missed", value={"a": 1}), "the reason why 'a' was missed must be a text"),
    "layers": (in_header("layers", value={}), '"layers" a list'),
    "noise of others": (in_header("noise", value=["0", "5"]), "its noise must be that of layers which it has"),
    "noise twice": (in_header("noise", value=["0", "0"]), "its noise must be that of layers which it has"),
    "noise of one": (in_header("noise", value=["0"]), "the factors of its noise do not fit"),
    "noise of none": (in_header("noise", value=[]), "the factors of its noise do not fit"),
    "negative noise": (element("noise", -1.0), "own of a Propagation must be finite"),
    "negative energies": (in_header("energies", "own", 0, value=-1.0), "an energy of its noise must be a finite"),
    "energies as text": (in_header("energies", "own", 0, value="1"), "an energy of its noise must be a finite"),
    "energies of one": (in_header("energies", "passed", value=[1.0]), "the energies of its noise do not fit"),
    "energies of none": (in_header("energies", "passed", value={}), "the energies of its noise do not fit"),
    "energies of others": (in_header("energies", "other", value=[]), "the energies of its noise has no field 'other'"),
    "energies in a list": (in_header("energies", value=[]), "the energies of its noise must be an object"),
    "no elements": (minibatch(0, 0), "elements of '0.weight' must be a whole number from 1"),
    "half an element": (minibatch(0, 1.5), "elements of '0.weight' must be a whole number"),
    "other elements": (minibatch(0, 5), "must add up to that of the whole gradient"),
    "negative V": (minibatch(1, -1.0), "V of '0.weight' must be a finite number"),
    "true V": (minibatch(1, True), "V of '0.weight' must be a finite number"),
    "another V": (minibatch(1, 1e3), "must add up to that of the whole gradient"),
    "negative error of V": (minibatch(2, -1.0), "the error of V of '0.weight' must be a finite number"),
    "no signal": (minibatch(3, None), "the signal of '0.weight' must be a finite number"),
    "negative signal": (minibatch(3, -1e3), "the signal of '0.weight' must be not below"),
    "a row of V": (in_header("minibatch", "tensors", "0.weight", value=[1]), "variance of .0.weight. must be a list"),
    "V of no tensors": (in_header("minibatch", "tensors", value={}), "tensors of a minibatch's variance must be"),
    "V of a list": (in_header("minibatch", "tensors", value=[]), "tensors of its minibatch must be an object"),
    "no total of V": (in_header("minibatch", "total", value=None), r"the variance of '\(all\)' must be a list"),
    "V of two batches": (in_header("minibatch", "batches", value=2), "batches of its minibatch must be a whole number"),
    "V of nothing": (in_header("minibatch", value=[]), "its minibatch must be an object"),
    "no version": (lambda a: with_header(a, []), "it has version None"),
    "version as text": (in_header("lograd_profile", value="1" * 500), "it has version 1+, and this lograd reads"),
    "NaN in the header": (in_header("steps", value=float("nan")), "its header is not JSON: NaN"),
    "brackets": (lambda a: with_header(a, b"[" * 200_000), "its header is not JSON: nested more than 64 levels deep"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_profile_is_refused_in_one_sentence(name, arrays, tmp_path):
    forge, words = FORGED[name]
    with pytest.raises(InvalidValue, match=words) as caught:
        load(forge(arrays), tmp_path / "forged.npz")
    message = str(caught.value)
    assert message.startswith("Cannot read the profile")
    assert "\n" not in message
    assert len(message) < 400


def test_an_unsealed_profile_is_read(profile, arrays, tmp_path):
    """So each of the above is refused for what was changed in it."""
    assert load(arrays, tmp_path / "p.npz") == profile


@given(st.data())
@settings(max_examples=50)
def test_any_number_in_any_place_is_refused_or_makes_a_profile(arrays, tmp_path_factory, data):
    name = data.draw(st.sampled_from(["records", "counts", "masked", "noise"]))
    array = arrays[name].copy()
    numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) if array.dtype == np.int64 else st.floats()
    array.flat[data.draw(st.integers(0, array.size - 1))] = data.draw(numbers)
    path = tmp_path_factory.getbasetemp() / "any.npz"
    check_usable(attempt(lambda: load(arrays | {name: array}, path)), path)


def check_usable(loaded, path):
    """What is accepted has a table, and a file with an exact inverse."""
    if loaded is not REFUSED:
        str(loaded)
        assert Profile.load(loaded.save(path)) == loaded


@given(st.data())
@settings(max_examples=50)
def test_any_json_in_any_place_of_the_header_is_refused_or_makes_a_profile(arrays, tmp_path_factory, data):
    header = header_of(arrays)
    places = [(header, name) for name in header] + [(layer, name) for layer in header["layers"] for name in layer]
    place, name = data.draw(st.sampled_from(places))
    place[name] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "header.npz"
    check_usable(attempt(lambda: load(with_header(arrays, header), path)), path)


def test_not_finite_samples_of_a_gradient_that_was_are_kept(tmp_path):
    batches = vector_batches(2)
    batches[1][0][0, 0] = np.nan
    with pytest.warns(LogradWarning, match="NaN or infinite gradients in 2 of 2 layers"):
        found = lograd.profile(mlp(), batches, cross_entropy)
    assert np.isnan(found["0"].sample).any()
    assert Profile.load(found.save(tmp_path / "p.npz")) == found
    found.thin(1)  # drops the step that had them
    assert [record.nan for record in found["0"].records] == [0]
    assert Profile.load(found.save(tmp_path / "p.npz")) == found


def test_thinning_leaves_each_layer_a_record(profile, tmp_path):
    for layer in (thin := Profile.load(profile.save(tmp_path / "p.npz"))).layers.values():
        layer.records = [record for record in layer.records if record.step == 1]
        layer.weight_records = []
    thin["2"].records *= 3
    thin.thin(1)
    assert [len(layer.records) for layer in thin.layers.values()] == [1, 1]


@pytest.mark.slow  # a process of its own
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory")
def test_a_bomb_gets_no_memory(tmp_path):
    """Two hundred kilobytes that inflate to 200 MB, in a process that may not have as much."""
    np.savez_compressed(tmp_path / "bomb.npz", counts=np.zeros(25 * 10**6))
    assert (tmp_path / "bomb.npz").stat().st_size < 300_000
    code = """
import resource, sys
import lograd.measure.model_profile as profiles
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20, used + 100 * 2**20))
try:
    profiles.Profile.load(sys.argv[1], limit=10**6)
except profiles.InvalidValue as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "bomb.npz")], capture_output=True, text=True)
    assert "its arrays take 200,000,128 bytes, and the limit is 1,000,000." in done.stdout, done.stderr


def test_the_limit_is_the_callers(profile, tmp_path):
    path = profile.save(tmp_path / "p.npz")
    with pytest.raises(CannotRead, match="it has more than 1,000 bytes, which is the limit"):
        Profile.load(path, limit=1000)
    with pytest.raises(InvalidValue, match=r"limit .*Profile\.load\(path, limit=\.\.\.\) allows more"):
        Profile.load(path, limit=8000)
    assert Profile.load(path, limit=10**6) == profile
