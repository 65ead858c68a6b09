"""Every method by its recipe, in one table: what each claims is measured, on odd gradients and in training.

A family of recipes joins by standing in `RECIPES`; its example is tested here without a further word.
"""

import copy
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from networks import conv_net, image_batches, mlp, vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd import Plan
from lograd.commands.cite import citations
from lograd.errors import InvalidValue
from lograd.laws import Empirical
from lograd.ops.layouts import dense
from lograd.plan import LayerPlan
from lograd.theory import per_sample_variance_bound
from lograd.treatments import (
    RECIPES,
    Hadamard,
    Interval,
    ProductPlan,
    Prune,
    Quantize,
    Statistics,
    Treated,
    apply,
    gradients,
    numbers_of,
    predict,
    recipe,
)

EXAMPLES = [entry.example for entry in RECIPES]
VARIANTS = [
    "mxfp4-nearest", "mxfp6", "mxfp8", "mxfp4-rht", "nvfp4-ht", "int4-ptq-rht", "int8-psq-nearest", "int5-ptq-nearest",
    "fp6-mean", "fp8-luq", "fp4-luq-nearest", "dithered2.5", "prune85+fp6", "int5-bhq/int5-bhq", "topk85/identity",
    "fp6-nearest",
]  # fmt: skip
NAMES = EXAMPLES + VARIANTS


def gradient(rows=64, columns=256, sigma=1.5, zeros=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp(sigma * torch.randn(rows, columns, generator=generator) - 9)
    signs = torch.randn(rows, columns, generator=generator).sign()
    return size * signs * (torch.rand(rows, columns, generator=generator) >= zeros)


def sides(name):
    """The distinct sentences of a recipe with what their product sums over; those that change nothing are left out."""
    found = recipe(name)
    named = [
        (found.input_gradient.gradient, (1,)), (found.weight_gradient.gradient, (0,)),
        (found.input_gradient.weights, (0,)), (found.weight_gradient.activations, (0,)),
    ]  # fmt: skip
    return [side for place, side in enumerate(named) if side[0] and side not in named[:place]]


# -- bias --

UNBIASED = [name for name in NAMES if sides(name) and all(one.unbiased for part, _ in sides(name) for one in part)]
BIASED = [
    "topk85", "topk85-sample", "topk85-batch", "fp6-lognormal", "s2fp8", "int4-interval", "hfp8", "saw80",
    "mxfp4-nearest", "fp6-nearest", "int8-psq-nearest", "fp4-luq-nearest",
]  # fmt: skip


def projections(sentence, contracted, draws, g):
    """The error of each draw, against what it would be if it grew with the gradient, its sign, or nothing."""
    directions = torch.stack([g.flatten(), g.sign().flatten(), torch.ones(g.numel())]).double()
    numbers = numbers_of(sentence, Statistics(Empirical.fit(g)))
    results = [apply(sentence, g, seed, numbers=numbers, contracted=contracted).result for seed in range(draws)]
    errors = torch.stack([(result - g).double().flatten() for result in results])
    return (errors @ directions.T).numpy()


@pytest.mark.parametrize("name", UNBIASED)
def test_a_claim_of_no_bias_holds_within_the_band_over_seeds(name):
    for sentence, contracted in sides(name):
        found = projections(sentence, contracted, 400, gradient(16, 64))
        band = 4 * found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert np.all(np.abs(found.mean(axis=0)) <= band + 1e-12), (found.mean(axis=0), band)
        assert np.all(band > 0), "nothing was random"


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_is_admitted_is_there(name):
    assert name not in UNBIASED
    for sentence, contracted in sides(name):
        found = projections(sentence, contracted, 50, gradient())
        band = 4 * found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert np.any(np.abs(found.mean(axis=0)) > band)


# -- prediction and measurement --


@pytest.mark.parametrize("name", NAMES)
def test_predicted_is_measured(name):
    half = gradient(128, 512)
    g = torch.cat([half, -half])  # ranges are symmetric, which quantizers per tensor are predicted for
    x, statistics = g.double().flatten(), Statistics(Empirical.fit(g))
    for sentence, contracted in sides(name):
        predicted = predict(sentence, statistics)
        draws = [apply(sentence, g, seed, contracted=contracted).result.double().flatten() for seed in range(4)]
        if predicted is None:
            # Not foreseen from magnitudes alone; then it must be good, or a pruning to a known share.
            if name != "fp4-dynamic":  # its scale is that of the loss
                assert np.mean([float(x @ y / (x.norm() * y.norm())) for y in draws]) > 0.75
            continue
        zeros = np.mean([float((y == 0).double().mean()) for y in draws])
        cosine = np.mean([float(x @ y / (x.norm() * y.norm())) for y in draws])
        error = np.mean([float((y[x != 0] / x[x != 0] - 1).abs().mean()) for y in draws])
        # Ranges come from the histogram: up to 1/16 of the largest magnitude too wide.
        assert predicted.sparsity == pytest.approx(zeros, abs=0.01)
        assert predicted.cosine == pytest.approx(cosine, rel=0.02)
        assert predicted.relative_error == pytest.approx(error, rel=0.08, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "share"), [("topk85", 0.85), ("topk85-sample", 0.85), ("topk85-batch", 0.85), ("prune85", 0.85)]
)
def test_zeros_asked_are_zeros_got(name, share):
    result, counts = apply(recipe(name).input_gradient.gradient, gradient(zeros=0.0))
    assert int(counts[0]) == int((result == 0).sum())
    band = 0.004 if "topk" in name else 4 * math.sqrt(share * (1 - share) / result.numel())
    assert abs(float((result == 0).double().mean()) - share) < band


def test_top_k_of_the_batch_is_one_set_of_positions():
    result = apply(recipe("topk85-batch").input_gradient.gradient, gradient(zeros=0.0)).result
    assert torch.equal(result == 0, (result[:1] == 0).expand_as(result))


@pytest.mark.parametrize("name", ["topk85", "topk85-sample", "topk85-batch", "topk85-stochastic"])
def test_the_largest_stays(name):
    g = torch.tensor([[1.0, -3.0, 2.0]])
    assert apply(recipe(name).input_gradient.gradient, g).result[0, 1] == -3.0
    same = torch.ones(4, 4)
    assert torch.equal(apply(recipe(name).input_gradient.gradient, same).result, same)


@pytest.mark.parametrize("name", NAMES)
def test_an_infinite_gradient_is_seen_by_whoever_looks_for_it(name):
    g = gradient(16, 64)
    numbers_from = Statistics(Empirical.fit(g))
    g[7, 9] = -math.inf
    for sentence, contracted in sides(name):
        numbers = [one.numbers(numbers_from) for one in sentence]
        result = apply(sentence, g, numbers=numbers, contracted=contracted).result
        assert not bool(result[7, 9].isfinite())


def test_two_backwards_of_a_step_draw_independent_noise():
    """Rows of ten are padded to 64: each of the padded elements has its number."""
    layer = nn.Linear(40, 10, bias=False)
    g, x = torch.randn(1, 10).expand(64, 10).contiguous(), torch.randn(64, 40, requires_grad=True)
    with lograd.attach(layer, Plan.uniform("int4-ptq-rht"), seed=1):
        errors = []
        for _ in range(2):
            x.grad = None
            layer(x).backward(g)
            errors.append(x.grad - g @ layer.weight.detach())
    for shift in range(12):
        pair = torch.stack([errors[0][shift:].flatten(), errors[1][: 64 - shift].flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.5


def test_atp_gives_what_its_law_gives_and_not_its_share():
    normal = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    found = apply(recipe("atp90").input_gradient.gradient, normal).counts[0] / normal.numel()
    assert float(found) == pytest.approx(0.54, abs=0.01)  # for p = 0.9 and a normal law


def test_the_variance_per_sample_is_within_its_bound():
    g = gradient(zeros=0.0)
    draws = torch.stack(
        [apply(recipe("int5-psq").input_gradient.gradient, g, seed).result for seed in range(100)]
    ).double()
    ranges = (g.amax(1) - g.amin(1)).numpy()
    assert float(draws.var(0).sum()) < float(per_sample_variance_bound(ranges, g.shape[1], 5))


def test_hadamard_spreads_an_outlier():
    g = gradient(32, 256, sigma=0.5, zeros=0.0)
    g[:, 7] *= 300
    error = {
        name: float((apply(recipe(name).input_gradient.gradient, g, contracted=(1,)).result - g).norm())
        for name in ("int4-ptq", "int4-ptq-rht")
    }
    assert error["int4-ptq-rht"] < 0.7 * error["int4-ptq"]


IDEMPOTENT = [
    "prune85", "prune85-lognormal", "topk85", "topk85-sample", "topk85-batch", "fp6-lognormal", "fp6-nearest",
    "fp4-static16", "fp4-dynamic", "mxfp4-nearest",
]  # fmt: skip


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_twice_is_once(name):
    g = gradient()
    sentence = recipe(name).input_gradient.gradient
    numbers = [one.numbers(Statistics(Empirical.fit(g))) for one in sentence]
    once = apply(sentence, g, 1, numbers=numbers).result
    assert not torch.equal(once, g)
    assert torch.equal(apply(sentence, once, 2, numbers=numbers).result, once)


# -- odd gradients --

ODD = {
    "zero": lambda: torch.zeros(4, 6),
    "tiny": lambda: torch.full((4, 6), 1e-42),
    "huge": lambda: torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).sign() * 3.3e38,
    "one row": lambda: gradient(1, 40),
    "one element": lambda: torch.tensor([[3e-4]]),
    "one large element": lambda: torch.tensor([[1e20]]),
    "constant": lambda: torch.full((4, 6), 1000.0),
    "empty": lambda: torch.zeros(0, 6),
    "bfloat16": lambda: gradient(8, 40).bfloat16(),
    "float16": lambda: gradient(8, 40).mul(100).half(),
    "transposed": lambda: gradient(8, 40).T,
    "with gaps": lambda: gradient(8, 80)[:, ::2],
    "images": lambda: gradient(8, 108).reshape(8, 3, 6, 6),
    "channels last": lambda: gradient(8, 108).reshape(8, 3, 6, 6).to(memory_format=torch.channels_last),
    "sequence": lambda: gradient(8, 33).reshape(8, 3, 11),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", NAMES)
def test_odd_gradients(name, odd):
    g = ODD[odd]()
    if odd == "huge" and ("ht" in name or "bhq" in name):
        g = g * 1e-3  # sums of rows or neighbours overflow beyond
    for sentence, _ in sides(name):
        numbers = None
        if not bool(g.any()):  # there are no statistics of zeros; those of an earlier step are in force
            numbers = [one.numbers(Statistics(Empirical.fit(gradient()))) for one in sentence]
        for contracted in ((1,), (0, *range(2, g.dim()))):
            result, counts = apply(sentence, g, numbers=numbers, contracted=contracted)
            assert result.shape == g.shape
            assert result.dtype == g.dtype
            assert result.stride() == torch.empty_like(dense(g)).stride() or g.numel() <= 1
            assert int(counts[0]) == int((result == 0).sum())
            if name != "fp4-dynamic":
                assert bool(result.isfinite().all())
            if odd == "zero":
                assert float(result.abs().max()) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_and_is_counted(name):
    g = gradient(16, 64)
    numbers_from = Statistics(Empirical.fit(g))
    g[3, 5] = float("nan")
    g[7, 9] = float("inf")
    for sentence, contracted in sides(name):
        numbers = [one.numbers(numbers_from) for one in sentence]
        result, counts = apply(sentence, g, numbers=numbers, contracted=contracted)
        assert bool(result[3, 5].isnan())
        assert int(counts[1]) == int(result.isnan().sum()) >= 1
        if not any(one.per_product or "bhq" in str(one) for one in sentence):  # these mix rows or blocks
            assert int(counts[1]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_equal_bits_for_any_number_of_threads(name):
    g = gradient(307, 1009)  # vectors have tails, in every thread's part
    threads = torch.get_num_threads()
    try:
        for sentence, contracted in sides(name):
            found = []
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                found.append(apply(sentence, g, 3, contracted=contracted).result)
            assert all(torch.equal(one, found[0]) for one in found)
    finally:
        torch.set_num_threads(threads)


# -- in training --

MODELS = {"conv": (conv_net, image_batches), "linear": (mlp, vector_batches)}


def train(model, handle, batches, optimizer, wrap=lambda model: model):
    run = wrap(model)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(run(x), y).backward()
        optimizer.step()
        handle.step()


def start(kind, name):
    build, make_batches = MODELS[kind]
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scale = 1.0 if name == "fp4-dynamic" else None
    return model, optimizer, lograd.attach(model, Plan.uniform(name), seed=5, loss_scale=scale), make_batches(6)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_training_acts_is_counted_and_resumes_to_the_same_bits(name, kind, tmp_path):
    model, optimizer, handle, batches = start(kind, name)
    train(model, handle, batches[:3], optimizer)
    torch.save([model.state_dict(), optimizer.state_dict(), handle.state_dict()], tmp_path / "run.pt")
    train(model, handle, batches[3:], optimizer)
    assert all(bool(weight.isfinite().all()) for weight in weights(model)) or name == "fp4-dynamic"
    count, sites = handle.counters().total, handle.counters().sites
    plan = LayerPlan.of(recipe(name))
    if plan.input_gradient.gradient or plan.weight_gradient.gradient:
        assert count.treated > 0
        assert count.elements > 0
    last = list(sites.values())[-1]  # the first layer needs no dX, and so no weights
    assert [name for name in last if "gradient" not in name.partition(".")[2] and "." in name] == (
        ["input_gradient.weights", "weight_gradient.activations"] if plan.input_gradient.weights else []
    )
    assert all(one.treated > 0 for one in last.values())
    assert str(handle.explain())
    handle.remove()

    again, again_optimizer, other, _ = start(kind, name)
    states = torch.load(tmp_path / "run.pt")
    for target, state in zip((again, again_optimizer, other), states, strict=True):
        target.load_state_dict(state)
    train(again, other, batches[3:], again_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(again), strict=True))

    plain, plain_optimizer, untreated, _ = start(kind, "identity")
    train(plain, untreated, batches, plain_optimizer)
    same = all(torch.equal(a, b) for a, b in zip(weights(model), weights(plain), strict=True))
    assert same == (name == "identity")


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be instantiated")
@pytest.mark.parametrize("name", NAMES)
def test_compiled_gives_the_bits_of_eager(name):
    found = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        model, optimizer, handle, batches = start("linear", name)
        train(model, handle, batches[:3], optimizer, wrap)
        handle.remove()
        found.append(weights(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# -- single methods --


def test_the_interval_starts_and_moves_as_the_paper_says():
    g = gradient(zeros=0.0).flatten()
    treatment = Interval(4, alpha=0.05)
    largest, target = float(g.abs().max()), 0.05 / 15

    def share(gamma):
        return float((g.abs() > gamma * largest).double().mean())

    gamma = treatment._search(g)
    assert share(gamma) > target >= share(gamma + 1e-3)
    model, optimizer, handle, batches = start("linear", "int4-interval")
    state = handle.layers["0"].gradient.sites["gradient"].memory
    before = []
    for batch in batches:
        train(model, handle, [batch], optimizer)
        before.append(float(state[0]))
    assert all(abs(abs(b - a) - 1e-3) < 1e-9 or a == b for a, b in pairwise(before))
    assert "gamma" in str(handle.explain())
    for broken in (0.0, math.nan):
        handle.model.zero_grad()
        (model(batches[0][0]).sum() * broken).backward()
        assert float(state[0]) == before[-1], "nothing to follow"
    handle.remove()


def test_atp_prunes_with_the_mean_of_the_last_thresholds():
    model, optimizer, handle, batches = start("linear", "atp80")
    product = handle.layers["0"].gradient.sites["gradient"]
    train(model, handle, batches, optimizer)
    state = product.memory.tolist()
    assert state[0] == 6
    assert all(threshold > 0 for threshold in state[1:])
    words = str(handle.explain())
    assert f"threshold {np.mean(state[1:]):.3g}" in words
    (model(batches[0][0]).sum() * math.nan).backward()
    assert product.memory.tolist() == state, "a broken gradient is not queued"
    product.rescale(4.0)
    assert product.memory.tolist() == [6, *(4 * one for one in state[1:])]
    handle.remove()


def test_dynamic_loss_scaling_sees_the_overflow_of_the_format():
    torch.manual_seed(0)
    model = mlp()
    with pytest.warns(lograd.errors.LogradWarning, match="is for a loss that a GradScaler scales"):
        lograd.attach(model, Plan.uniform("fp4-dynamic")).remove()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    handle = lograd.attach(model, Plan.uniform("fp4-dynamic"), loss_scale=scaler.get_scale())
    scales, before = [], weights(model)
    for x, y in vector_batches(14):
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        handle.step(loss_scale=scaler.get_scale())
        scales.append(scaler.get_scale())
        if len(scales) == 1:
            assert scales == [2.0**15], "1-3-0 ends at 16: a scale of 2^16 overflows"
            assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True)), "the step is skipped"
    assert scales[-1] < 2.0**9
    assert scales[-1] == scales[-2], "and a scale is found"
    assert handle.counters().total.clipped > 0
    handle.remove()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_overflow_begins_where_the_format_ends(rounding):
    treatment = Quantize("1-3-0", "2^0", rounding, "infinity")
    values = torch.tensor([16.0, 23.9, 24.0, 24.1, 32.0, -40.0, 3.0])
    found = apply((treatment,), values).result
    limit = 24.0 if rounding == "nearest" else 16.001
    assert torch.equal(found.isinf(), values.abs() >= limit)
    assert float(found[5]) == -math.inf


def test_static_loss_scaling_is_one_scale_for_all():
    g = gradient()
    scaled = lograd.ops.quantize(g * 2.0**13, lograd.FloatFormat(3, 0)) / 2.0**13
    assert torch.equal(apply(recipe("fp4-static13").input_gradient.gradient, g).result, scaled)


def test_common_cosine_is_solved_over_the_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    handle = lograd.attach(model, Plan.uniform("prune80-cosine"), refresh=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(512, 32, generator=generator), torch.randint(0, 10, (512,), generator=generator)) for _ in range(8)
    ]
    train(model, handle, batches, optimizer)
    predicted = [one.predictions(1.0)["gradient"] for one in handle._gradients.values()]
    assert np.ptp([one.cosine for one in predicted]) < 0.02
    work = [512 * layer.weight.numel() for layer in model if isinstance(layer, nn.Linear)]
    assert np.average([one.sparsity for one in predicted], weights=work) == pytest.approx(0.8, abs=2e-3)
    assert np.ptp([one.sparsity for one in predicted]) > 0.01, "layers differ, and so do their shares"
    again = lograd.attach(copy_of(model, handle), Plan.uniform("prune80-cosine"), refresh=1)
    again.load_state_dict(handle.state_dict())
    assert [one.allotted for one in again._gradients.values()] == [one.allotted for one in handle._gradients.values()]
    handle.remove()
    again.remove()


def copy_of(model, handle):
    with pytest.warns(lograd.errors.LogradWarning):
        return copy.deepcopy(model)


def test_operands_are_treated_in_the_backward_alone():
    torch.manual_seed(0)
    layer, x = nn.Linear(40, 30), torch.randn(50, 40, requires_grad=True)
    with lograd.attach(layer, Plan.uniform("saw80")):
        y = layer(x)
        g = torch.randn_like(y)
        y.backward(g)
    assert torch.equal(y, nn.functional.linear(x, layer.weight, layer.bias))
    (top,) = recipe("saw80").input_gradient.weights
    assert torch.equal(x.grad, g @ apply((top,), layer.weight.detach()).result)
    assert torch.equal(layer.weight.grad, g.T @ apply((top,), x.detach()).result)


# -- names --


def test_every_recipe_has_a_name_a_line_and_a_reference():
    known = {entry.key for entry in citations()} | {"lograd"}
    for entry in RECIPES:
        assert entry.reference in known, entry
        assert re.fullmatch(entry.pattern, entry.example), entry
        assert len(entry.words) <= 90
        assert entry.words[0].islower() or entry.words[:6] == "meProp" or entry.words[:2] == "NN", entry.words


@pytest.mark.parametrize("name", NAMES)
def test_plans_of_recipes_survive_their_files(name, tmp_path):
    plan = Plan.uniform(name)
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    assert str(plan)
    assert isinstance(recipe(name), Treated)


def test_parts_endings_and_sides():
    assert recipe("int5-bhq").weight_gradient.gradient == recipe("int8-ptq").input_gradient.gradient
    assert recipe("identity/prune85") == gradients((), (Prune(0.85),))
    assert recipe("mxfp4-rht").input_gradient.gradient == (Hadamard(recipe("mxfp4").input_gradient.gradient[0]),)
    assert recipe("mxfp4-nearest-rht") == recipe("mxfp4-rht-nearest")
    assert recipe("prune97.5").input_gradient.gradient == (Prune(0.975),)
    assert recipe("mxfp8-e4m3") == recipe("mxfp8")
    assert recipe("mxfp4/int5-bhq").weight_gradient.gradient == recipe("int5-bhq").input_gradient.gradient
    assert (
        Plan.uniform("topk85").override("fc", sparsity=0.5).layers["fc"].input_gradient.gradient
        == recipe("topk50").input_gradient.gradient
    )
    assert not Plan.uniform("mxfp4").every.shares("gradient")
    assert Plan.uniform("int8-ptq").every.shares("gradient")
    changed = Plan.uniform("saw80").override("fc", sparsity=0.5)
    assert changed.layers["fc"].input_gradient.weights == recipe("saw80").input_gradient.weights


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: recipe("fp6-rht"), "cannot hold 1-4-1 scale max.*such as mxfp4"),
        (lambda: recipe("dithered-nearest"), "has one way of rounding"),
        (lambda: recipe("a/b/c"), "not a recipe"),
        (lambda: recipe("prune100"), "not a recipe"),
        (lambda: recipe("prune８５"), "not a recipe"),  # noqa: RUF001
        (lambda: recipe("dithered85"), "not a recipe"),
        (lambda: recipe("dithered."), "not a recipe"),
        (lambda: recipe("mxfp6-e4m3"), "not a recipe"),
        (lambda: recipe("identity-rht"), "treats nothing"),
        (lambda: recipe("mxfp4-rht-ht"), "endings -rht and -ht"),
        (lambda: recipe("fp6-nearest-stochastic"), "endings -nearest and -stochastic"),
        (lambda: LayerPlan.of(recipe("topk50+prune80-cosine")), "nothing may stand before it"),
        (lambda: Plan.uniform("atp85").override("fc", sparsity=0.5), "threshold of its own"),
        (lambda: recipe("fp6/fp5/fp4"), "once"),
        (lambda: recipe("topk85-samples"), "Did you mean 'topk85-sample'"),
        (lambda: LayerPlan(output=recipe("fp6").input_gradient), "gradient cannot be treated there"),
        (lambda: LayerPlan(output=ProductPlan(weights=(Prune(0.5, allocation="cosine"),))), "cannot treat weights"),
        (lambda: Quantize("1-4-1", "2^200"), "between 2"),
        (lambda: Quantize("1-4-1", overflow="wrap"), "overflow must be one of 'saturate', 'infinity'"),
        (lambda: Hadamard(recipe("mxfp4").input_gradient.gradient[0], block=48), "one of 16, 32, 64, 128"),
        (lambda: Prune(0.5, allocation="cosin"), "Did you mean 'cosine'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(build, message):
    with pytest.raises(InvalidValue, match=message):
        build()
