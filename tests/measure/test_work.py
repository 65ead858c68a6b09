"""The work of a training step: each product has the right owner, and counting changes nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from networks import conv_net, image_batches, mlp, vector_batches
from profiled import BATCH, STEPS, WIDTH, Mixed, Part, parts_of, token_batches
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import lograd
from lograd.attachment.untreated import FUNCTION, PARAMETER
from lograd.measure.work import OUTSIDE
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


def test_counting_changes_no_bit(mixed):
    def trained(observed):
        torch.manual_seed(1)
        model = Mixed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lograd.observe(model, every=2) if observed else torch.enable_grad():
            for x, y in token_batches(3):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model.state_dict()

    expected, found = trained(False), trained(True)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_observing_counts_the_same_step_and_leaves_nothing_behind(profile):
    torch.manual_seed(0)
    model = Mixed()
    with lograd.observe(model, every=1) as observed:
        for x, y in token_batches(3):
            with torch.no_grad():
                model(x)  # an evaluation is no part of the step
            F.cross_entropy(model(x), y).backward()
            torch.randn(8, 8) @ torch.randn(8, 8)  # nor is what comes after the backward
    assert observed.work == profile.work
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called


def test_another_mode_is_not_disturbed(tmp_path):
    model = mlp()
    ((x, y),) = vector_batches(1)
    with lograd.observe(model, every=1) as observed, FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(x), y).backward()
    assert observed.work is None
    assert observed.uncounted == "another dispatch mode was at work"
    assert counter.get_total_flops() == 3 * 2 * 16 * 8 * 3 + 2 * 2 * 16 * 8 * 6
    assert "not counted: another dispatch mode was at work" in " ".join(str(observed).split())
    assert lograd.Profile.load(observed.save(tmp_path / "profile.npz")) == observed


def test_compiled_code_is_counted_by_profile_and_left_alone_by_observe():
    ((x, y),) = vector_batches(1)
    expected = lograd.profile(mlp(), [(x, y)], F.cross_entropy).work
    model = torch.compile(mlp(), backend="eager")
    assert lograd.profile(model, [(x, y)], F.cross_entropy).work == expected
    with lograd.observe(model, every=1) as observed:
        F.cross_entropy(model(x), y).backward()
    assert observed.work is None
    assert "compiled code" in observed.uncounted
    assert observed["0"].flops_weight == 2 * 16 * 8 * 6


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

    monkeypatch.setitem(lograd.measure.work._FORMULAS, aten.addmm, broken)
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


def test_a_compiled_function_around_the_model_is_left_alone():
    model = mlp()
    run = torch.compile(lambda x: model(x), backend="eager")
    with lograd.observe(model, every=1) as observed:
        for x, y in vector_batches(2):
            F.cross_entropy(run(x), y).backward()
    assert observed.steps == 2
    assert "compiled code" in observed.uncounted
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


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
