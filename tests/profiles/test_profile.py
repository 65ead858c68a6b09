"""Profiles: what is counted is the gradient itself, and the model does not notice."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from networks import conv_net, equal_states, image_batches, mlp, state_of, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lograd
from lograd.errors import InvalidType, InvalidValue, LogradWarning
from lograd.files.atomic import CannotRead
from lograd.laws import FAMILIES, Empirical, LogNormal, ks_distance
from lograd.laws.binned import fit_binned, ks_binned, rank_binned
from lograd.profiles.model_profile import MOST_STEPS


def references(model, x, y):
    """Gradients at the outputs of all modules, by autograd's own means, on a model without in-place modules."""
    outputs = {}
    for name, module in model.named_children():
        outputs[name] = x = module(x)
        x.retain_grad()
    cross_entropy(x, y).backward()
    return {name: output.grad for name, output in outputs.items()}


# -- what is counted --


def test_records_count_the_gradient_before_an_in_place_relu_and_the_weight_gradient():
    (batch,) = image_batches(1)
    expected = references(plain := conv_net(inplace=False), *batch)

    profile = lograd.profile(conv_net(inplace=True), [batch], cross_entropy)

    assert list(profile.layers) == ["0", "3", "7"]
    assert profile.missed == {}
    for name, layer in profile.layers.items():
        (record,) = layer.records
        assert record.law == Empirical.fit(expected[name])
        assert record.elements == expected[name].numel() == layer.elements
        (weight,) = layer.weight_records
        assert weight.law == Empirical.fit(plain.get_submodule(name).weight.grad)
        assert set(layer.sample) <= set(expected[name].flatten().tolist())
        assert layer.sample.size == min(8192, record.elements)


def test_masked_is_the_zero_share_behind_the_batch_norm():
    (batch,) = image_batches(1)
    expected = references(conv_net(inplace=False), *batch)
    profile = lograd.profile(conv_net(), [batch], cross_entropy)
    assert profile["0"].masked == float((expected["1"] == 0).double().mean())
    assert profile["3"].masked == float((expected["4"] == 0).double().mean())
    assert 0.2 < profile["0"].masked < 0.8
    assert profile["7"].masked is None


LAYERS = {
    "Linear, three dimensions": (nn.Linear(5, 4), (2, 3, 5)),
    "Conv1d": (nn.Conv1d(4, 6, 3, padding="same", groups=2), (2, 4, 9)),
    "Conv2d": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    "Conv3d": (nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 5, 5, 5)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 2, 3, stride=2), (2, 3, 5)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "ConvTranspose3d": (nn.ConvTranspose3d(2, 2, 2), (2, 2, 3, 3, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_and_its_products(kind):
    module, shape = LAYERS[kind]
    x = torch.randn(shape, requires_grad=True)
    model = nn.Sequential(module)
    with lograd.observe(model, every=1) as profile:
        output = model(x)
        output.retain_grad()
        (output**3).sum().backward()
    layer = profile["0"]
    assert layer.last.law == Empirical.fit(output.grad)
    # The cost of a product, counted by torch itself on the forward pass.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x)
    assert layer.flops_input == layer.flops_weight == counter.get_total_flops()


def test_products_that_are_not_needed_cost_nothing():
    model = mlp()
    model[2].weight.requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert profile["0"].flops_input == 0
    assert profile["0"].flops_weight == 2 * 16 * 8 * 6
    assert profile["2"].flops_input == 2 * 16 * 8 * 3
    assert profile["2"].flops_weight == 0
    assert profile["2"].weight_records == []


def test_numbers_of_a_record_agree_with_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=generator).mul(2).exp() * torch.randn(200_000, generator=generator).sign()
    model = nn.Sequential(nn.Identity())
    with lograd.observe(model, every=1, filter_fn=lambda module, name: name == "0") as profile:
        leaf = torch.zeros_like(x, requires_grad=True)
        (model(leaf * 1.0) * x).sum().backward()
    record = profile["0"].last
    assert record.mu == pytest.approx(float(x.abs().log().mean()), abs=1e-3)
    assert record.sigma == pytest.approx(float(x.abs().log().std()), abs=1e-3)
    largest, smallest = float(x.abs().max()), float(x.abs().min())
    assert largest <= record.largest <= largest * 17 / 16
    assert smallest * 15 / 16 <= record.smallest <= smallest
    assert record.ks(LogNormal) == pytest.approx(ks_distance(LogNormal.fit(x), x), abs=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_fits_from_a_histogram_equal_fits_from_the_data(family):
    x = LogNormal(-7.0, 1.2).sample(100_000)
    data = Empirical.fit(x)
    exact, binned = family.fit(x), fit_binned(family, data)
    for name in family.parameters:
        value = float(getattr(exact, name))
        # Uniform's ends are the edges of the outer bins.
        assert getattr(binned, name) == pytest.approx(
            value, rel=1 / 16 if family.__name__ == "Uniform" else 3e-3, abs=1e-3
        )
    assert ks_binned(binned, data) == pytest.approx(ks_distance(exact, x), abs=5e-3)
    assert rank_binned(data)[0].family == "LogNormal"


def test_fits_need_a_width():
    fits = rank_binned(Empirical.fit(np.ones(10)))
    assert all(fit.law is None for fit in fits)
    assert "one bin" in fits[0].reason


def test_zero_nan_and_infinite_gradients_are_counted_apart():
    model = mlp()
    factors = [0.0, float("nan"), float("inf"), 1.0]
    batches = [(*batch, factor) for batch, factor in zip(vector_batches(4), factors, strict=True)]
    with pytest.warns(LogradWarning, match="NaN or infinite gradients in 2 of 2 layers"):
        profile = lograd.profile(model, batches, lambda model, b: (model(b[0])[:, 0] * b[2]).sum())
    zero, nan, infinite, plain = profile["2"].records
    assert zero.law is None
    assert zero.zero_share == 1
    assert np.isnan([zero.mu, zero.sigma, zero.largest]).all()
    assert nan.nan == 16
    assert infinite.infinities == 16
    assert plain.zeros == 32
    assert profile["2"].last is plain
    assert profile["2"].sigma == plain.sigma == 0.0
    assert "2^" in str(profile)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    profile = lograd.profile(mlp().to(dtype), [(x.to(dtype), y) for x, y in vector_batches(1)], cross_entropy)
    assert profile["0"].elements == 16 * 8
    assert profile["0"].sample.dtype == np.float32


def test_autocast():
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model(batch["x"]), batch["y"])

    x, y = vector_batches(1)[0]
    profile = lograd.profile(mlp(), [{"x": x, "y": y}], loss)
    assert profile["2"].elements == 48


# -- steps --


def train(model, batches, run=None):
    for x, y in batches:
        cross_entropy((run or model)(x), y).backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_each_gradient_once(reentrant):
    batches = image_batches(3)
    model = conv_net()
    with lograd.observe(model, every=1) as expected:
        train(model, batches)
    model = conv_net()

    def run(x):
        x = x.requires_grad_()
        x = checkpoint(model[:3], x, use_reentrant=reentrant)
        return model[6:](checkpoint(model[3:6], x, use_reentrant=reentrant))

    with lograd.observe(model, every=1) as profile:
        train(model, batches, run)
    assert profile.steps == 3
    assert list(profile.layers) == ["0", "3", "7"]
    for name, layer in profile.layers.items():
        assert layer.flops_weight == expected[name].flops_weight
        assert layer.masked == expected[name].masked
        assert [record.law for record in layer.records] == [record.law for record in expected[name].records]
        assert [record.law for record in layer.weight_records] == [
            record.law for record in expected[name].weight_records
        ]


def test_every_second_step_with_evaluation_in_between():
    model = mlp()
    with lograd.observe(model, every=2) as profile:
        for x, y in vector_batches(5):
            cross_entropy(model(x), y).backward()
            with torch.no_grad():
                model(x)
            model(x)  # a forward without a backward is no step
    assert profile.steps == 5
    assert [record.step for record in profile["0"].records] == [0, 2, 4]
    assert [record.step for record in profile["0"].weight_records] == [0, 2, 4]
    assert profile["0"].last.elements == 16 * 8


def test_a_shared_module_counts_both_uses():
    linear = nn.Linear(6, 6)
    model = nn.Sequential(linear, nn.ReLU(), linear, nn.Linear(6, 3))
    profile = lograd.profile(model, vector_batches(2), cross_entropy)
    assert list(profile.layers) == ["0", "3"]
    assert profile["0"].elements == 2 * 16 * 6
    assert profile["0"].flops_weight == 2 * (2 * 16 * 36)
    assert profile["0"].flops_input == 2 * 16 * 36


def test_a_long_run_is_thinned_evenly():
    model = nn.Sequential(nn.Linear(2, 1))
    x = torch.ones(1, 2)
    with lograd.observe(model, every=1, sample=0) as profile:
        for _ in range(MOST_STEPS + 10):
            model(x).sum().backward()
    steps = [record.step for record in profile["0"].records]
    assert profile.every == 2
    assert steps == list(range(0, MOST_STEPS + 10, 2))
    assert steps == [record.step for record in profile["0"].weight_records]
    assert profile["0"].sample.size == 0


def test_a_gradient_after_the_observer_is_not_counted():
    model = mlp()
    ((x, y),) = vector_batches(1)
    with lograd.observe(model, every=1) as profile:
        loss = cross_entropy(model(x), y)
    loss.backward()
    assert profile.layers == {}
    assert profile.missed == {"0": "no gradient reached it", "2": "no gradient reached it"}


# -- the model does not notice --


def test_the_model_is_restored_bit_for_bit():
    model = conv_net()
    model[1].eval()
    model[3].weight.requires_grad_(False)
    model[0].weight.grad = kept = torch.full_like(model[0].weight, 3.0)
    before, text, random = state_of(model), pickle.dumps(model), torch.get_rng_state()

    lograd.profile(model, image_batches(3), lambda output, target: cross_entropy(nn.functional.dropout(output), target))

    assert pickle.dumps(model) == text
    assert equal_states(state_of(model), before)
    assert model[0].weight.grad is kept
    assert bool((kept == 3).all())
    assert model[7].weight.grad is None
    assert [module.training for module in model] == [True, False] + 6 * [True]
    assert torch.equal(torch.get_rng_state(), random)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_with_kwargs


def test_the_model_is_restored_when_the_loss_raises():
    model = conv_net()
    before, random = state_of(model), torch.get_rng_state()

    def loss(output, target):
        with torch.no_grad():
            model[0].weight.mul_(2)
        model[1].running_mean = torch.ones(8)
        model.eval()
        model[7].weight.requires_grad_(False)
        torch.rand(1)
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        lograd.profile(model, image_batches(1), loss)
    assert equal_states(state_of(model), before)
    assert model.training
    assert model[1].training
    assert model[7].weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not model[0]._forward_hooks
    assert not model[0].weight._backward_hooks


def test_training_under_observation_gives_the_same_bits():
    def trained(observed):
        model = conv_net()
        nn.utils.parametrizations.spectral_norm(model[7])  # to look at its weight is to change a buffer
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lograd.observe(model, every=2) if observed else torch.enable_grad():
            for x, y in image_batches(4):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
        return state_of(model)

    torch.manual_seed(0)
    expected = trained(False)
    torch.manual_seed(0)
    assert equal_states(trained(True), expected)


def test_an_observer_can_be_used_again():
    model, batches = mlp(), vector_batches(2)
    observer = lograd.observe(model, every=1)
    with observer as first:
        train(model, batches)
    with observer as second:
        train(model, batches)
    assert first == second
    assert first is not second


def test_a_computed_weight_is_not_looked_at():
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert profile["0"].weight_shape is None
    assert profile["0"].weight_records == []
    assert profile["0"].flops_weight == 2 * 16 * 8 * 6


def test_compiled_models_are_observed_eagerly_under_their_plain_names():
    batches = vector_batches(3)
    expected = lograd.profile(mlp(), batches, cross_entropy)

    whole = torch.compile(mlp(), backend="eager")
    part = mlp()
    part[0] = torch.compile(part[0], backend="eager")
    in_place = mlp()
    in_place.compile(backend="eager")
    for model in (whole, part, in_place):
        cross_entropy(model(batches[0][0]), batches[0][1]).backward()  # compiled before it is observed
        model.zero_grad()
        assert lograd.profile(model, batches, cross_entropy) == expected
        with lograd.observe(model, every=1) as profile:
            train(model, batches)
        assert profile.layers["0"].records == expected["0"].records
    calls = []
    torch._dynamo.reset()
    function = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: (calls.append(1), graph.forward)[1])
    function(torch.ones(1))
    assert calls == [1], "compilation must work again afterwards"


def test_distributed_data_parallel():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        with lograd.observe(model, every=1) as profile:
            train(model, vector_batches(2))
    finally:
        torch.distributed.destroy_process_group()
    assert profile == lograd.profile(mlp(), vector_batches(2), cross_entropy)


def test_layers_without_a_gradient_are_named_with_the_reason():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(6, 6)
            self.attention = nn.MultiheadAttention(6, 1)
            self.dangling = nn.Linear(6, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = self.frozen(x)
            self.dangling(x)
            return self.head(self.attention(x, x, x)[0])

    model = Model()
    model.frozen.requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), cross_entropy)
    assert list(profile.layers) == ["head"]
    assert profile.missed == {
        "frozen": "its output needed no gradient",
        "attention.out_proj": "its forward did not run at an observed step",
        "dangling": "no gradient reached it",
    }
    assert "attention.out_proj: not observed, its forward did not run" in str(profile)
    with pytest.raises(InvalidValue, match="It was missed: its forward did not run"):
        profile["attention.out_proj"]


def test_filter_chooses_any_module():
    profile = lograd.profile(
        conv_net(), image_batches(1), cross_entropy, filter_fn=lambda module, name: isinstance(module, nn.BatchNorm2d)
    )
    assert list(profile.layers) == ["1", "4"]
    assert profile["1"].flops_weight is None
    assert profile["1"].weight_records


# -- the file, and merging --


@pytest.fixture(scope="module")
def small_profile():
    return lograd.profile(conv_net(), image_batches(3), cross_entropy)


def test_the_file_is_an_exact_inverse(small_profile, tmp_path):
    path = small_profile.save(tmp_path / "profile.npz")
    loaded = lograd.Profile.load(path)
    assert loaded == small_profile
    assert str(loaded) == str(small_profile)
    assert loaded["0"].records != loaded["3"].records
    with np.load(path, allow_pickle=False) as file:
        assert set(file) == {"header", "records", "masked", "counts", "samples"}


def test_an_empty_profile_has_a_file_and_a_table(tmp_path):
    empty = lograd.Profile(missed={"fc": "its forward did not run"})
    assert lograd.Profile.load(empty.save(tmp_path / "empty.npz")) == empty
    assert "fc" in str(empty)


def test_a_bad_file_is_refused_in_one_sentence(small_profile, tmp_path):
    path = tmp_path / "profile.npz"
    content = small_profile.save(path).read_bytes()
    for broken in (content[: len(content) // 2], b"", b"PK", b"\x80\x04N.", json.dumps({}).encode()):
        path.write_bytes(broken)
        with pytest.raises(InvalidValue, match=r"Cannot read the profile .*profile.npz: it is not a profile"):
            lograd.Profile.load(path)
    with pytest.raises(CannotRead, match="No such file"):
        lograd.Profile.load(tmp_path / "none.npz")


def rewritten(content, **changes):
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    for name, change in changes.items():
        if name == "version":
            header["lograd_profile"] = change
        else:
            arrays[name] = change(arrays[name])
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def test_another_version_or_a_changed_file_is_refused(small_profile, tmp_path):
    path = tmp_path / "profile.npz"
    content = small_profile.save(path).read_bytes()
    path.write_bytes(rewritten(content, version=99))
    with pytest.raises(InvalidValue, match="it has version 99, and this lograd reads version 1"):
        lograd.Profile.load(path)
    for changes in (
        {"counts": lambda counts: counts[:-1]},
        {"counts": lambda counts: -counts},
        {"records": lambda records: records[:, :3]},
        {"samples": lambda samples: samples.astype(np.float64)},
        {"records": lambda records: records + np.eye(1, 8, dtype=np.int64) * 50},
    ):
        path.write_bytes(rewritten(content, **changes))
        with pytest.raises(InvalidValue, match="it was changed after lograd saved it"):
            lograd.Profile.load(path)


def exact_model():
    """Whole numbers everywhere, so that no sum depends on how a batch is cut."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) % (3 + index) - 1.0)
    return model


def test_merged_ranks_equal_one_run_over_both_halves():
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(-4, 5, (8, 4), generator=generator).float() for _ in range(3)]

    def run(batches):
        return lograd.profile(exact_model(), batches, lambda model, x: (model(x) ** 2).sum())

    halves = [run([x[:4] for x in batches]), run([x[4:] for x in batches])]
    merged, whole = lograd.Profile.merge(halves), run(batches)
    assert merged.steps == whole.steps == 3
    for name, layer in whole.layers.items():
        assert merged[name].records == layer.records
        assert merged[name].flops_weight == layer.flops_weight
        assert merged[name].sample.size == layer.sample.size / 2
        assert merged[name].weight_records[0].elements == 2 * layer.weight_records[0].elements
    assert lograd.Profile.merge([whole]) == whole


def test_masked_shares_merge_by_elements():
    halves = [lograd.profile(conv_net(), [batch], cross_entropy) for batch in image_batches(2)]
    merged = lograd.Profile.merge(halves)
    assert merged["0"].masked == pytest.approx(np.mean([half["0"].masked for half in halves]))


def test_profiles_that_do_not_match_are_not_merged():
    one = lograd.profile(mlp(), vector_batches(2), cross_entropy)
    with pytest.raises(InvalidType, match="at least one Profile"):
        lograd.Profile.merge([])
    with pytest.raises(InvalidValue, match=r"layer '0' it has 1 observed step, and profile 1 has 2"):
        lograd.Profile.merge([one, lograd.profile(mlp(), vector_batches(1), cross_entropy)])
    fewer = lograd.profile(mlp(), vector_batches(2), cross_entropy, filter_fn=lambda module, name: name == "0")
    with pytest.raises(InvalidValue, match="layer '2' is only in profile 1"):
        lograd.Profile.merge([one, fewer])
    narrow = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 3))
    other = lograd.profile(narrow, vector_batches(2), cross_entropy)
    with pytest.raises(InvalidValue, match=r"layer '0' is a Linear with a weight of shape \(3, 6\) there"):
        lograd.Profile.merge([one, other])


# -- what is refused --


def test_refusals():
    model, batches = mlp(), vector_batches(1)
    with pytest.raises(InvalidType, match=r"model must be a torch.nn.Module; got an object of type function"):
        lograd.profile(lambda x: x, batches, cross_entropy)
    with pytest.raises(InvalidType, match="loss_fn must be a function"):
        lograd.profile(model, batches, 3)
    with pytest.raises(InvalidType, match="batches must be an iterable of batches; got an object of type Tensor"):
        lograd.profile(model, batches[0][0], cross_entropy)
    with pytest.raises(InvalidValue, match="steps must be a whole number from 1"):
        lograd.profile(model, batches, cross_entropy, steps=0)
    with pytest.raises(InvalidValue, match="every must be a whole number from 1"):
        lograd.observe(model, every=0)
    with pytest.raises(InvalidValue, match="at least one batch; it was empty"):
        lograd.profile(model, [], cross_entropy)
    with pytest.raises(InvalidType, match=r"a tensor with one element, the loss; got a tensor of shape \(16, 3\)"):
        lograd.profile(model, batches, lambda output, target: output)
    with pytest.raises(InvalidType, match="the loss; got a float"):
        lograd.profile(model, batches, lambda output, target: 1.0)
    with pytest.raises(InvalidValue, match="the loss must depend on a parameter"):
        lograd.profile(model, batches, lambda output, target: torch.zeros(()))
    with pytest.raises(InvalidValue, match=r"none did \(layer '0': no gradient reached it\)"):
        lograd.profile(model, batches, lambda output, target: torch.zeros((), requires_grad=True))
    with pytest.raises(InvalidValue, match="must have a Linear or convolution; none of the 2 modules is one"):
        lograd.profile(nn.Sequential(nn.ReLU()), batches, cross_entropy)
    with pytest.raises(InvalidValue, match="a module that filter_fn accepts"):
        lograd.profile(model, batches, cross_entropy, filter_fn=lambda module, name: False)
    with pytest.raises(InvalidValue, match="layer '0' is lazy"):
        lograd.profile(nn.Sequential(nn.LazyLinear(3)), batches, cross_entropy)
    observer = lograd.observe(model)
    with observer, pytest.raises(InvalidValue, match="at work already"):
        observer.__enter__()
    profile = lograd.profile(model, batches, cross_entropy)
    with pytest.raises(InvalidValue, match=r"no layer 'O'; it has 0, 2"):
        profile["O"]


def test_fewer_batches_than_steps_are_enough_and_no_more_are_taken():
    source = iter(vector_batches(5))
    assert lograd.profile(mlp(), source, cross_entropy, steps=3, every=2).steps == 3
    assert lograd.profile(mlp(), source, cross_entropy, steps=30).steps == 2


def test_public_names_come_without_torch_until_they_are_used():
    code = (
        "import sys, lograd; assert 'torch' not in sys.modules;"
        "assert callable(lograd.profile) and callable(lograd.observe) and lograd.Profile.__name__ == 'Profile';"
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
