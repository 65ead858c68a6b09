"""The work of a training step: each product has the right owner, and counting changes nothing."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
import zoo
from networks import conv_net, image_batches, mlp, vector_batches
from profiled import BATCH, STEPS, WIDTH, Mixed, Part, parts_of, token_batches
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import lograd
from lograd.attachment.selection import FUNCTION, PARAMETER
from lograd.measure.work import OUTSIDE, operations
from lograd.plan import Untreated

aten = torch.ops.aten


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(0)
    return Mixed()


@pytest.fixture(scope="module")
def profile(mixed):
    return lograd.profile(mixed, token_batches(2), F.cross_entropy)


def test_each_part_of_a_mixed_model_has_its_own_work_counted_by_hand(profile):
    rows = BATCH * STEPS
    lstm = 2 * rows * (4 * WIDTH * WIDTH + 4 * WIDTH * WIDTH)
    projections = 2 * rows * (3 * WIDTH * WIDTH + WIDTH * WIDTH)
    scores = 2 * BATCH * STEPS * STEPS * (WIDTH + WIDTH)
    mix = 2 * rows * WIDTH * WIDTH
    head = 2 * BATCH * WIDTH * 8
    parts = parts_of(profile.work)
    assert parts == {
        "embedding": Untreated("embedding", "Embedding", "an embedding looks up and multiplies nothing"),
        "lstm": Untreated("lstm", "LSTM", "recurrent layers are not treated", lstm, 2 * lstm),
        "attention": Untreated(
            "attention", "MultiheadAttention", "its projections and products are not layers",
            projections + scores, 2 * (projections + scores),
        ),
        "mix": Untreated("mix", "parameter", PARAMETER, mix, 2 * mix),
    }  # fmt: skip
    assert profile["head"].flops_forward == profile["head"].flops_input == profile["head"].flops_weight == head
    assert profile.work.forward == lstm + projections + scores + mix + head
    assert profile.work.backward == 2 * profile.work.forward
    assert profile.work.recomputed == 0


def test_the_small_layer_shows_its_true_share(profile):
    plan = profile.plan(sparsity=0.8, keep=())
    share = 2 * profile["head"].flops_weight / profile.work.total
    assert share < 0.001
    assert plan.skipped == pytest.approx(0.8, abs=1e-3)
    assert plan.skipped_of_step == pytest.approx(0.8 * share, rel=2e-3)
    for text in (str(plan), str(profile.table())):
        words = " ".join(text.split())
        assert "<0.1%" in words
        assert "lstm: not treated (LSTM; recurrent layers are not treated): 58.7% of the step" in words
        assert "mix: not treated (parameter; used without a layer, as in F.linear, matmul or einsum): 7.3%" in words
        assert "embedding: not treated (Embedding; an embedding looks up and multiplies nothing): no mul" in words
        assert "100.0% in what is not treated" in words


CALLS = {
    "a bare parameter in F.linear": (lambda w, x: F.linear(x, w), "parameter"),
    "a bare parameter in an einsum": (lambda w, x: torch.einsum("abi,oi->abo", x, w), "parameter"),
    "a bare parameter in matmul": (lambda w, x: x @ w, "parameter"),
    "a bare parameter under autocast": (lambda w, x: _autocast(lambda: F.linear(x, w)).float(), "parameter"),
    "activations with each other": (lambda w, x: x @ x.transpose(1, 2) @ x + w[0], "Part"),
    "attention": (lambda w, x: F.scaled_dot_product_attention(x, x, x) + w[0], "Part"),
}


def _autocast(run):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return run()


@pytest.mark.parametrize("name", CALLS)
def test_bare_parameters_and_functions_are_told_apart(name):
    call, kind = CALLS[name]
    model = nn.Sequential(nn.Linear(6, 6), Part(call), nn.Linear(6, 3))
    batch = (torch.randn(2, 5, 6), torch.randn(2, 5, 3))
    work = lograd.profile(model, [batch], F.mse_loss).work
    (part,) = work.untreated
    expected = ("1.weight", "parameter", PARAMETER) if kind == "parameter" else ("1", "Part", FUNCTION)
    assert (part.name, part.kind, part.reason) == expected
    assert part.forward > 0
    assert part.backward >= 2 * part.forward


def test_products_of_the_loss_count_as_outside_the_model():
    def contrastive(output, target):
        return F.cross_entropy(output @ output.t(), torch.arange(len(output)))

    work = lograd.profile(mlp(), vector_batches(1), contrastive).work
    (part,) = work.untreated
    products = 2 * 16 * 16 * 3
    assert part == Untreated(OUTSIDE.name, OUTSIDE.kind, OUTSIDE.reason, products, 2 * products)


def test_layers_that_the_profile_misses_are_listed_with_the_reason():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    profile = lograd.profile(model, vector_batches(1), F.cross_entropy, filter_fn=lambda _, name: name != "1")
    parts = parts_of(profile.work)
    assert parts["0"] == Untreated("0", "Linear", "its output needed no gradient", 2 * 16 * 36, 0)
    assert parts["1"] == Untreated("1", "Linear", "it was not chosen", 2 * 16 * 48, 2 * 16 * 48)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_count_once_and_what_they_compute_again_apart(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = conv_net()

        def forward(self, x):
            x = x.requires_grad_()
            x = checkpoint(self.parts[:3], x, use_reentrant=reentrant)
            return self.parts[6:](checkpoint(self.parts[3:6], x, use_reentrant=reentrant))

    (batch,) = image_batches(1)
    plain = lograd.profile(conv_net(), [(batch[0].clone().requires_grad_(), batch[1])], F.cross_entropy).work
    again = lograd.profile(Checkpointed(), [batch], F.cross_entropy).work
    assert (again.forward, again.backward) == (plain.forward, plain.backward)
    assert again.recomputed > 0
    assert plain.recomputed == 0
    assert again.untreated == ()
    assert "in what checkpoints compute again" in " ".join(again.lines({}))


def test_observing_leaves_the_count_to_profile_and_nothing_behind():
    torch.manual_seed(0)
    model = Mixed()
    with lograd.observe(model, every=1) as observed:
        for x, y in token_batches(3):
            with torch.no_grad():
                model(x)  # an evaluation is no part of the step
            F.cross_entropy(model(x), y).backward()
            torch.randn(8, 8) @ torch.randn(8, 8)  # nor is what comes after the backward
    assert observed.work is None
    assert "lograd.profile" in observed.uncounted
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called


def test_an_attached_model_has_the_work_of_the_plain_one():
    batches = image_batches(1)
    expected = lograd.profile(conv_net(), batches, F.cross_entropy).work
    for backend in ("dense", "sparse"):
        model = conv_net()
        with lograd.attach(model, lograd.Plan.uniform("prune85"), backend=backend) as handle:
            for x, y in image_batches(2):
                F.cross_entropy(model(x), y).backward()
                handle.step()
            assert lograd.profile(model, batches, F.cross_entropy).work == expected


def test_higher_order_operators_go_through():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            x = torch.vmap(lambda row: torch.outer(row, row) @ row)(x)
            return self.layer(torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)))

    work = lograd.profile(Model(), vector_batches(1), F.cross_entropy).work
    assert parts_of(work)["(model)"].forward == 2 * 16 * 6 * 6


def test_an_operator_that_cannot_be_counted_does_not_stop_the_step(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no shape")

    monkeypatch.setitem(lograd.measure.work._MULTIPLY_ADDS, aten.addmm, broken)
    profile = lograd.profile(mlp(), vector_batches(1), F.cross_entropy)
    assert profile.work is None
    assert profile.uncounted == "aten.addmm.default could not be counted (RuntimeError: no shape)"


def test_a_layer_that_first_runs_later_leaves_no_wrong_shares():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.calls = nn.Linear(6, 3), nn.Linear(6, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.first(x) if self.calls == 1 else self.second(x)

    profile = lograd.profile(Model(), vector_batches(2), F.cross_entropy)
    assert profile.work is None
    assert profile.uncounted == "layer 'second' did not run in the first step"


def test_shapes_that_change_keep_the_counts_of_the_counted_step():
    batches = [(x[:size], y[:size]) for size, (x, y) in zip((16, 4), vector_batches(2), strict=True)]
    profile = lograd.profile(mlp(), batches, F.cross_entropy)
    assert profile["2"].flops_weight == 2 * 16 * 8 * 3
    assert profile.work.forward == sum(layer.flops_forward for layer in profile.layers.values())


def test_a_step_that_fails_leaves_nothing_behind():
    model = mlp()

    def fails(output, target):
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        lograd.profile(model, vector_batches(1), fails)
    with pytest.raises(RuntimeError, match="the user's own"), lograd.observe(model, every=1):
        fails(model(vector_batches(1)[0][0]), None)
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_second_derivatives_count_as_backward():
    def penalty(model, batch):
        x = batch["x"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().sum()

    ((x, _),) = vector_batches(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    work = lograd.profile(model, [{"x": x}], penalty).work
    assert work.recomputed == 0
    assert parts_of(work)[OUTSIDE.name].backward > 0  # the products that only the second backward has


def test_counting_works_on_a_compiled_model():
    ((x, y),) = vector_batches(1)
    expected = lograd.profile(mlp(), [(x, y)], F.cross_entropy).work
    assert lograd.profile(torch.compile(mlp(), backend="eager"), [(x, y)], F.cross_entropy).work == expected


# -- files, explanations and pages --


def test_a_plan_and_a_profile_keep_the_work(profile, tmp_path):
    loaded = lograd.Profile.load(profile.save(tmp_path / "profile.npz"))
    assert loaded == profile
    plan = loaded.plan(sparsity=0.8, keep=())
    again = lograd.Plan.load(plan.save(tmp_path / "plan.json"))
    assert again == plan
    assert again.evidence.step == profile.work
    assert str(again) == str(plan)


def test_evidence_changes_no_hash(profile):
    plan = profile.plan(sparsity=0.8, keep=())
    data = json.loads(json.dumps(plan.to_dict()))
    del data["evidence"]["step"]
    bare = lograd.Plan.from_dict(data)
    assert bare.evidence.step is None
    assert bare.skipped_of_step is None
    assert bare.hash() == plan.hash()
    assert "the whole step was not counted" in " ".join(str(bare).split())
    assert "100.0%" in str(bare)


def test_an_explanation_lists_what_is_not_treated_with_its_share(profile):
    torch.manual_seed(0)
    model = Mixed()
    with lograd.attach(model, profile.plan(bits=6, keep=())) as handle:
        lines = handle.explain().layers
    assert list(lines) == ["mix", "embedding", "lstm", "attention", "attention.out_proj", "head"]
    assert lines["lstm"] == "not treated (LSTM; recurrent layers are not treated): 58.7% of the step"
    assert lines["embedding"].endswith("no multiply-adds")
    assert lines["mix"].endswith("7.3% of the step")


def test_without_a_profile_kinds_are_listed_and_no_shares():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, 6))
            self.scale = nn.Parameter(torch.ones(6))
            self.norm = nn.LayerNorm([2, 6])
            self.cell = nn.GRUCell(6, 6)
            self.bag = nn.EmbeddingBag(4, 6)
            self.pair = nn.Bilinear(6, 6, 2)
            self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
            self.frozen = Part(None).requires_grad_(False)

    with lograd.attach(Model(), lograd.Plan.uniform("fp6")) as handle:
        text = handle.explain()
    assert text.layers.pop("inner").startswith("1-4-1")
    assert text.layers == {
        "token": "not treated (parameter; it belongs to no layer)",
        "cell": "not treated (GRUCell; recurrent layers are not treated)",
        "bag": "not treated (EmbeddingBag; an embedding looks up and multiplies nothing)",
        "pair": "not treated (Bilinear; a product of three tensors)",
    }
    assert "cell" in str(text)


# -- single operators --


RECURRENT = {
    "LSTM, two layers, both directions": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "LSTM with a projection": lambda: nn.LSTM(6, 5, proj_size=3),
    "GRU": lambda: nn.GRU(6, 5, 2),
    "RNN": lambda: nn.RNN(6, 5),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = RECURRENT[kind]()
            self.head = nn.LazyLinear(3)

        def forward(self, x):
            return self.head(self.recurrent(x)[0])

    model = Model()
    batch = (torch.randn(7, 4, 6, requires_grad=True), torch.randn(7, 4, 3))
    model(batch[0])
    work = lograd.profile(model, [batch], F.mse_loss).work
    (part,) = work.untreated
    # At each step and sample, every weight meets one vector: that of the step before, too.
    weights = sum(weight.numel() for name, weight in model.recurrent.named_parameters() if "weight" in name)
    assert part.kind == type(model.recurrent).__name__
    assert part.forward == 2 * 7 * 4 * weights
    # Kernels may skip the gradient with respect to the initial state, at one of the steps.
    assert 2 * part.forward * 6 / 7 <= part.backward <= 2 * part.forward


def test_cells_and_bilinear_layers():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(6, 5)
            self.pair = nn.Bilinear(5, 5, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            h = self.cell(x)
            return self.head(self.pair(h, h))

    parts = parts_of(lograd.profile(Model(), vector_batches(1), F.cross_entropy).work)
    assert parts["cell"].forward == 2 * 16 * (15 * 6 + 15 * 5)
    assert parts["pair"].forward == 2 * 16 * 4 * 5 * 5
    assert parts["pair"].backward == 3 * parts["pair"].forward


CONVOLUTIONS = {
    "plain": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "stride and dilation": lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2),
    "grouped transposed": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_functional_convolutions_count_as_layers_do(kind):
    """The same convolution as a layer, by its own formula, and as a bare parameter, by that of the operators."""
    layer = CONVOLUTIONS[kind]()
    function = F.conv_transpose2d if isinstance(layer, nn.ConvTranspose2d) else F.conv2d
    options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = layer.weight
            self.first = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return function(self.first(x), self.weight, **options)

    x = torch.randn(2, 4, 9, 9)
    bare = lograd.profile(Bare(), [(x, 0.0)], lambda y, _: y.square().mean()).work
    seen = lograd.profile(nn.Sequential(nn.Conv2d(4, 4, 1), layer), [(x, 0.0)], lambda y, _: y.square().mean())
    (part,) = bare.untreated
    assert part.name == "weight"
    assert part.forward == seen["1"].flops_forward
    assert part.backward == seen["1"].flops_input + seen["1"].flops_weight
    assert (bare.forward, bare.backward) == (seen.work.forward, seen.work.backward)


def test_attention_by_hand():
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    scores = 2 * 2 * 3 * 5 * 7 * 8
    operator = aten._scaled_dot_product_flash_attention_for_cpu
    assert operations(operator.default, (query, key, value), {}, None) == 2 * scores
    # The scores again, and the gradients of values, weights, queries and keys: five products of the same size.
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    assert operations(backward.default, (query, query, key, value), {}, None) == 5 * scores


def test_matrix_products_by_hand():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    batched = (torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert operations(aten.mm.default, (a, b), {}, None) == 2 * 3 * 4 * 5
    assert operations(aten.addmm.default, (torch.zeros(5), a, b), {}, None) == 2 * 3 * 4 * 5
    assert operations(aten.bmm.default, batched, {}, None) == 2 * 2 * 3 * 4 * 5
    assert operations(aten.baddbmm.default, (torch.zeros(2, 3, 5), *batched), {}, None) == 2 * 2 * 3 * 4 * 5
    assert operations(aten.add.Tensor, (a, a), {}, None) == 0


@pytest.mark.parametrize("name", ["resnet18", "bert", "gpt2", "vit"])
def test_whole_models_as_torch_counts_them(name):
    """Without grouped convolutions and CPU attention kernels, torch's own counter knows every product."""
    model, inputs = zoo.build(name)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        work = lograd.profile(model, [inputs], zoo.loss_of).work
        with FlopCounterMode(display=False) as counter:
            loss = zoo.loss_of(model, inputs)
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            loss.backward()
    assert work.forward == forward
    assert work.backward == counter.get_total_flops()
