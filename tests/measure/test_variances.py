"""`lograd.variance` where everything is known in closed form; its file, its page, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn

import lograd
from lograd import ops
from lograd.errors import InvalidType, InvalidValue
from lograd.measure.values import TOTAL, VECTORS
from lograd.treatments import Integers, StatQuant, apply, both
from lograd.treatments.products import ProductPlan, Treated

PTQ = StatQuant(3, "ptq")
FEW = {"steps": 3, "treated": 1, "repeats": 4}


def weighted(output, target):
    """A loss whose gradient is the target, whatever the output is."""
    return (output * target).sum()


def chain(layers=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(layers)))


def pairs(count=3, size=40):
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(2, size, 6, generator=generator)) for _ in range(count)]


def rounding_variance(g, bits=3):
    """The variance of each element under stochastic rounding to the codes of PTQ: step^2 f (1 - f)."""
    coded = ops.pack_per_tensor(g, bits)
    steps = g.double() * float(coded.scale)
    share = steps - steps.floor()
    return share * (1 - share) / float(coded.scale) ** 2


# -- closed forms --


def test_noise_of_one_linear_layer():
    """dW = G^T X, so W is the sum over elements of G of their variance times |x|^2 of the sample."""
    batches = pairs()
    plan = lograd.Plan(every=lograd.LayerPlan.of(both(PTQ)))
    found = lograd.variance(chain(1), batches, plan, weighted, steps=3, treated=3, repeats=24)
    expected = np.mean([float((rounding_variance(g) * x.double().square().sum(1)[:, None]).sum()) for x, g in batches])
    assert found["0.weight"].noise.agrees(expected)
    assert found["0.weight"].noise.error < 0.1 * expected
    assert found.contributions.noise[0].tolist() == pytest.approx([expected] * 2, rel=0.3)
    assert found["0.weight"].inside_band
    _, g = batches[0]
    site = found.sites[0]
    assert site.noise.agrees(float(rounding_variance(g).sum()))
    assert site.energy == pytest.approx(float(g.square().sum()), rel=1e-6)


def test_noise_that_is_passed_on():
    """Noise in dX of the second layer reaches the first: its variance is multiplied by |w|^2 of the output."""
    batches, model = pairs(), chain()
    plan = lograd.Plan({"1": lograd.LayerPlan.of(both(PTQ))})
    found = lograd.variance(model, batches, plan, weighted, steps=3, treated=1, repeats=40)
    x, g = batches[0]
    lengths = model[1].weight.detach().double().square().sum(1)
    noise = rounding_variance(g)
    first = float((noise @ lengths * x.double().square().sum(1)).sum())
    hidden = model[0](x).detach().double()
    last = float((noise * hidden.square().sum(1)[:, None]).sum())
    assert found["0.weight"].noise.agrees(first)
    assert found["1.weight"].noise.agrees(last)
    assert found.total.noise.agrees(first + last)
    assert found.contributions.layers == ("1",)


def test_a_bias_in_closed_form():
    batches = pairs()
    plan = lograd.Plan(every=lograd.LayerPlan.of(both(StatQuant(3, "ptq", "nearest"))))
    found = lograd.variance(chain(1), batches, plan, weighted, **FEW)
    x, g = batches[0]
    error = (ops.quantize_per_tensor(g, 3, "nearest") - g).double().T @ x.double()
    one = found["0.weight"]
    assert one.bias.mean == pytest.approx(float(error.square().sum()), rel=1e-4)
    assert one.noise.mean == pytest.approx(one.bias.mean, rel=1e-6)
    assert not one.inside_band
    assert found.biased == ("0.weight",)


@pytest.mark.parametrize("layer", ["0", "3", "7"])
def test_the_only_layer_of_a_deterministic_plan_adds_what_the_plan_adds(layer):
    """Both are the same number without any error, from sums in another order."""
    plan = lograd.Plan({layer: lograd.LayerPlan.of(both(StatQuant(3, "ptq", "nearest")))})
    found = lograd.variance(conv_net(), image_batches(3), plan, F.cross_entropy, steps=3, treated=2, repeats=7)
    assert found.total.noise.mean > 0
    assert "Alone the layers add 1 of the noise that they add together, equal within 4 sigma." in found.layers_table()
    for one in (*found.tensors, found.total):
        assert found.contributions.sum(one.name).mean == pytest.approx(one.noise.mean, rel=1e-14)


def test_minibatch_variance_and_signal_against_numpy():
    batches, model = vector_batches(6), mlp()
    found = lograd.variance(
        model, batches, lograd.Plan.uniform("int8-ptq"), F.cross_entropy, steps=6, treated=1, repeats=4
    )
    gradients = {}
    for x, y in batches:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            gradients.setdefault(name, []).append(parameter.grad.flatten().numpy().astype(np.float64))
    samples = {name: np.array(rows) for name, rows in gradients.items()}
    samples[VECTORS] = np.concatenate([samples.pop(name) for name in ("0.bias", "2.bias")], axis=1)
    samples[TOTAL] = np.concatenate([samples[name] for name in samples], axis=1)
    for one in (*found.tensors, found.total):
        rows = samples[one.name]
        variance = rows.var(axis=0, ddof=1).sum()
        assert one.minibatch.mean == pytest.approx(variance, rel=1e-5)
        assert one.signal == pytest.approx((rows.mean(0) ** 2).sum() - variance / 6, rel=1e-4)
        assert one.elements == rows.shape[1]
        assert one.energy == pytest.approx((rows[0] ** 2).sum(), rel=1e-5)
        assert one.rho.mean == pytest.approx(one.noise.mean / variance, rel=1e-5)


def test_the_exact_gradient_is_that_of_the_quantized_forward():
    weights = (Integers(3, "channel", symmetric=True),)
    treated = Treated(ProductPlan(weights=weights), ProductPlan(both(PTQ).input_gradient.gradient, weights=weights))
    plan = lograd.Plan(every=lograd.LayerPlan.of(treated))
    batches, model = pairs(), chain(1)
    found = lograd.variance(model, batches, plan, F.mse_loss, **FEW)
    x, y = batches[0]
    rounded = nn.Parameter(apply(weights, model[0].weight.detach()).result)
    quantized, plain = (torch.autograd.grad(F.mse_loss(x @ one.T, y), one)[0] for one in (rounded, model[0].weight))
    change = found["0.weight"].forward
    assert found["0.weight"].energy == pytest.approx(float(quantized.square().sum()), rel=1e-5)
    assert change.cosine == pytest.approx(float(F.cosine_similarity(quantized.flatten(), plain.flatten(), 0)), rel=1e-5)
    assert change.norm == pytest.approx(float(quantized.norm() / plain.norm()), rel=1e-5)
    assert found.total.noise.mean == 0, "dX of the only layer is not needed, and dW is exact"


# -- what is left behind --


def snapshot(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = {name: (one.grad, None if one.grad is None else one.grad.clone()) for name, one in model.named_parameters()}
    modes = [(type(one), one.training, set(vars(one)), len(one._forward_hooks)) for one in model.modules()]
    return state, grads, modes, torch.get_rng_state()


def assert_same(before, model):
    state, grads, modes, random = before
    after = snapshot(model)
    assert all(torch.equal(state[name], after[0][name]) for name in state)
    for name, (tensor, copy) in grads.items():
        assert after[1][name][0] is tensor
        assert copy is None or torch.equal(tensor, copy)
    assert modes == after[2]
    assert torch.equal(random, after[3])


def noisy_net():
    model = nn.Sequential(*conv_net()[:6], nn.Dropout(0.5), *conv_net()[6:])
    model[8] = nn.utils.parametrizations.spectral_norm(model[8])
    model[1].eval()
    x, y = image_batches(1)[0]
    F.cross_entropy(model(x), y).backward()
    model[3].weight.grad = None
    return model


@pytest.mark.parametrize("recipe", ["int5-bhq", "prune70+fp6", "int4-full"])
def test_the_model_is_untouched_byte_for_byte(recipe):
    model = noisy_net()
    before = snapshot(model)
    lograd.variance(model, image_batches(3), lograd.Plan.uniform(recipe), F.cross_entropy, **FEW)
    assert_same(before, model)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 7, 12])
def test_the_model_is_untouched_when_something_goes_wrong(error, call):
    model, calls = noisy_net(), []

    def loss(output, target):
        calls.append(1)
        if len(calls) == call:
            raise error("stop")
        return F.cross_entropy(output, target)

    before = snapshot(model)
    with pytest.raises(error, match="stop"):
        lograd.variance(model, image_batches(3), lograd.Plan.uniform("int5-bhq"), loss, **FEW)
    assert_same(before, model)


def test_a_forward_is_repeated_bit_for_bit_with_dropout_and_power_iterations():
    """Where only the first layer is treated, the gradients of all others are exact: the difference is no rounding."""
    model = noisy_net()
    plan = lograd.Plan({"0": lograd.LayerPlan.of(both(StatQuant(4)))})
    found = lograd.variance(model, image_batches(3), plan, F.cross_entropy, **FEW)
    assert found["0.weight"].noise.mean > 0
    assert [one.name for one in found.tensors if one.noise.mean > 0] == ["0.weight"]


class Follows(nn.Module):
    """Subtracts a mean of all that has passed, in a buffer that each forward binds anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x - self.mean


def test_a_buffer_that_a_forward_binds_anew_is_put_back_before_each_pass():
    """Where the forward is the same in all passes, the last layer's gradient is exact."""
    model = nn.Sequential(nn.Linear(6, 8), Follows(), nn.Linear(8, 3))
    buffer = model[1].mean
    plan = lograd.Plan({"0": lograd.LayerPlan.of(both(StatQuant(4)))})
    found = lograd.variance(model, vector_batches(3), plan, F.cross_entropy, **FEW)
    assert found["0.weight"].noise.mean > 0
    assert found["2.weight"].noise.mean == 0
    assert model[1].mean is buffer


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    first, again, other = (
        lograd.variance(
            conv_net(), image_batches(3), lograd.Plan.uniform("int5-psq"), F.cross_entropy, seed=seed, **FEW
        )
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first.total.minibatch == other.total.minibatch
    assert first.total.noise != other.total.noise


def test_activations_kept_as_codes_have_a_row_of_their_own():
    model = nn.Sequential(nn.Linear(6, 512), nn.GELU(), nn.Linear(512, 3))
    plan = replace(lograd.Plan.uniform("int8-ptq"), saved=4)
    found = lograd.variance(model, vector_batches(3, size=256), plan, F.cross_entropy, **FEW)
    matrix = found.contributions
    assert matrix.layers == ("0", "2", "(saved activations)")
    assert matrix.noise[2, matrix.tensors.index("0.weight")] > 0
    assert "(saved activations)" in found.layers_table()
    assert matrix.sum().agrees(found.total.noise.mean, found.total.noise.error)
    assert found.plan == "int8 ptq, saved activations in 4-bit codes"
    alone = lograd.variance(model, vector_batches(3, size=256), lograd.Plan(saved=4), F.cross_entropy, **FEW)
    assert alone.plan == "saved activations in 4-bit codes"
    assert alone.contributions.layers == ("(saved activations)",)


# -- arguments --


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": "int8"}, "plan must be a Plan; make one with Plan.load(path) or Plan.uniform('int8-ptq')"),
        ({"model": 3}, "model must be a torch.nn.Module"),
        ({"batches": 3}, "batches must be an iterable of batches"),
        ({"repeats": 3}, "repeats"),
        ({"steps": 2}, "steps"),
        ({"treated": 0}, "treated"),
        ({"treated": 4}, "treated"),
        ({"contributions": 3}, "contributions must be True or False"),
        ({"batches": vector_batches(2)}, "batches must hold at least 3 batches for their variance; got 2"),
        ({"batches": []}, "got 0"),
        ({"plan": lograd.Plan.uniform("identity")}, "the plan treats no layer of this model"),
    ],
)
def test_refusals(change, message):
    arguments = {"model": mlp(), "batches": vector_batches(3), "plan": lograd.Plan.uniform("int8-ptq")} | FEW | change
    with pytest.raises((InvalidValue, InvalidType), match=message.replace("(", r"\(").replace(")", r"\)")):
        lograd.variance(**arguments, loss_fn=F.cross_entropy)


def test_an_attached_plan_is_refused_and_stays():
    model = mlp()
    with lograd.attach(model, lograd.Plan.uniform("fp6")) as handle:
        with pytest.raises(InvalidValue, match="has a plan attached"):
            lograd.variance(model, vector_batches(3), lograd.Plan.uniform("int8-ptq"), F.cross_entropy, **FEW)
        assert handle.counters().total.passes == 0


def test_a_gradient_that_is_not_finite_is_told_with_its_batch():
    batches = vector_batches(3)
    batches[1][0][0, 0] = torch.nan
    with pytest.raises(
        InvalidValue, match=r"^batch 1 has NaN or infinite gradients in 0.weight, 2.weight, \(vectors\), so"
    ):
        lograd.variance(mlp(), batches, lograd.Plan.uniform("int8-ptq"), F.cross_entropy, **FEW)


def test_a_gradient_that_the_plan_makes_infinite_is_told_with_its_batch_and_tensor():
    """The gradient of the loss is finite, but the Hadamard transform adds up more of it than float32 holds."""
    batches = [(1e-3 * x, 3e38 * y.clamp(-1, 1)) if place == 1 else (x, y) for place, (x, y) in enumerate(pairs())]
    plan = lograd.Plan.uniform("mxfp4-rht")
    with pytest.raises(InvalidValue, match=r"^batch 1 has NaN or infinite gradients in 0.weight under the plan, so"):
        lograd.variance(chain(1), batches, plan, weighted, steps=3, treated=2, repeats=4)


# -- variance file --


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


def test_other_files_are_refused(found, tmp_path):
    path = found.save(tmp_path / "v.json")
    text = path.read_text()
    for content in ("{}", "[]", text[:100], '{"lograd_plan": 2}', text.replace('"repeats"', '"repeat"')):
        path.write_text(content)
        with pytest.raises(InvalidValue, match="Cannot read the variance"):
            lograd.Variance.load(path)


def test_the_page_and_the_figure(found, tmp_path):
    html = found.to_html(tmp_path / "v.html", "Mine & <yours>").read_text()
    assert "Mine &amp; &lt;yours&gt;" in html
    assert html.count("<svg") == 2
    for one in found.tensors:
        assert one.name in html
    assert found.plot().axes[0].patches
    assert {row["name"] for row in found.rows()} == {one.name for one in (*found.tensors, found.total)}
