"""NaN and infinite gradients: a profile says where they were, and no plan is made from them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from called import called
from networks import vector_batches
from torch import nn
from torch.nn.functional import cross_entropy

import lograd
from lograd.errors import InvalidValue, LogradWarning


def two_layers():
    """Layers "0" and "1", with nothing between them that would mask a NaN."""
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))


NAN, INFINITE = float("nan"), float("inf")


def scaled(factors):
    """Batches whose loss is multiplied by a factor each."""
    return [(*batch, factor) for batch, factor in zip(vector_batches(len(factors)), factors, strict=True)]


def loss(model, batch):
    x, y, factor = batch
    return cross_entropy(model(x), y) * factor


def profiled(factors, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = lograd.profile(two_layers(), scaled(factors), loss, **options)
    return result, [str(one.message) for one in caught if one.category is LogradWarning]


EVERYWHERE = (
    "NaN or infinite gradients in 2 of 2 layers: '0' (128 NaN of 128 elements at step 1), "
    "'1' (48 NaN of 48 elements at step 1); the loss was NaN at step 1 and at 1 more."
)


def test_a_profile_says_which_layers_were_broken_and_when(tmp_path):
    profile, said = profiled([1.0, NAN, NAN])
    assert said == [EVERYWHERE]
    assert profile.broken == EVERYWHERE
    assert EVERYWHERE in " ".join(str(profile).split())
    page = profile.to_html(tmp_path / "page.html").read_text()
    assert "the loss was NaN at step 1" in page
    assert "No plan follows from such gradients" in page
    again = lograd.Profile.load(profile.save(tmp_path / "profile.npz"))
    assert again == profile
    assert again.broken == EVERYWHERE


def test_infinite_gradients_and_losses():
    profile, (said,) = profiled([INFINITE])
    assert "infinite of 48 elements at step 0)" in said
    assert said.endswith("the loss was infinite at step 0.")
    assert profile.loss.kind == "infinite"


def test_finite_gradients_say_nothing():
    profile, said = profiled([1.0, 0.0])
    assert said == []
    assert profile.broken is None
    assert profile.loss is None


def test_a_broken_loss_with_finite_gradients_is_said_and_planned_from():
    with pytest.warns(LogradWarning, match="The loss was NaN at step 0, though all gradients were finite"):
        profile = lograd.profile(two_layers(), vector_batches(1), lambda y, t: cross_entropy(y, t) + NAN)
    assert profile.plan(bits=6).layers.keys() == {"0"}


def test_observing_warns_at_its_end():
    model = two_layers()
    observer = lograd.observe(model, every=1)
    observer.__enter__()
    for batch in scaled([1.0, NAN]):
        loss(model, batch).backward()
    with pytest.warns(LogradWarning, match=r"in 2 of 2 layers: '0' \(128 NaN of 128 elements at step 1\)") as caught:
        observer.__exit__(None, None, None)
    assert caught[0].filename == __file__


def test_the_warning_of_profile_points_at_the_caller():
    with pytest.warns(LogradWarning) as caught:
        lograd.profile(two_layers(), scaled([NAN]), loss)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("choice", [{"bits": 6}, {"sparsity": 0.85}, {"bits": 6, "sparsity": 0.5, "keep": ()}])
@pytest.mark.parametrize("factors", [[NAN], [1.0, NAN], [NAN, 1.0]])
def test_no_plan_follows_from_a_broken_profile(choice, factors):
    profile, _ = profiled(factors)
    step = factors.index(next(factor for factor in factors if math.isnan(factor)))
    with pytest.raises(InvalidValue) as raised:
        profile.plan(**choice)
    text = str(raised.value)
    assert text.startswith("no plan follows from NaN or infinite gradients")
    assert f"'0' (128 NaN of 128 elements at step {step})" in text
    assert f"the loss was NaN at step {step}" in text
    assert "profile again" in text
    assert "zero" not in text
    assert "keep" not in text, "it would leave no layer to treat"


class TwoWays(nn.Module):
    """Only the layer "bad" has a gradient that is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        broken = (self.bad(x) * 0).sqrt().mean(1, keepdim=True)  # the square root has an infinite slope at zero
        return self.head(self.good(x)) + broken


def test_keeping_the_broken_layers_helps():
    with pytest.warns(LogradWarning, match=r"in 1 of 3 layers: 'bad'"):
        profile = lograd.profile(TwoWays(), vector_batches(2), cross_entropy)
    with pytest.raises(InvalidValue, match=r"or leave these layers alone as well \(keep= or --keep: bad\)"):
        profile.plan(bits=6)
    plan = profile.plan(bits=6, keep=("last", "bad"))
    assert list(plan.layers) == ["good"]
    assert plan.kept["bad"] == "it matches 'bad'"


def test_a_broken_weight_gradient_counts():
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    model = Huge()
    with torch.no_grad():
        model.first.weight.zero_()
    batches = [(torch.full((16, 6), 3e38), torch.zeros(16, dtype=torch.long))]
    with pytest.warns(LogradWarning, match="'first' .*infinite of 18 elements of its weight's gradient at step 0"):
        profile = lograd.profile(model, batches, lambda y, t: cross_entropy(y, t) * 1e3)
    assert profile["first"].records[0].infinities == 0
    with pytest.raises(InvalidValue, match="weight's gradient"):
        profile.plan(bits=6)


def test_noise_is_not_measured_on_broken_gradients():
    profile, said = profiled([NAN], noise=1)
    assert said[1:] == ["noise was not measured, since not all gradients are finite."]
    assert profile.noise is None


def test_a_gradient_of_zeros_is_told_apart_and_gets_advice_that_changes_something():
    profile, said = profiled([0.0])
    assert said == []
    with pytest.raises(InvalidValue) as raised:
        profile.plan(bits=6, keep=())
    text = str(raised.value)
    assert "all 2 are kept (0: its gradient was zero in the profile" in text
    assert "profile with a loss that depends on them" in text
    assert "keep=" not in text
    with pytest.raises(InvalidValue, match="keep fewer"):
        profiled([1.0])[0].plan(bits=6, keep=("first", "last"))


def test_one_layer_of_zeros_keeps_its_message():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.head = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.used(x) + 0 * self.unused(x))

    plan = lograd.profile(Masked(), vector_batches(1), cross_entropy).plan(bits=6)
    assert plan.kept["unused"] == "its gradient was zero in the profile"


# -- the command line --


MODULE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    batches = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(2)]
    return model, batches, lambda y, t: nn.functional.cross_entropy(y, t) * float("nan")
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "broken_project.py").write_text(MODULE)
    return tmp_path


def test_the_commands_say_it_and_refuse(project):
    done = called("profile", "broken_project:make", "-o", "run", cwd=project)
    assert done.returncode == 0
    assert "lograd: NaN or infinite gradients in 2 of 2 layers: '0' (32 NaN of 32 elements at step 0)" in done.stderr
    assert "the loss was NaN at step 0 and at 1 more." in done.stderr
    refused = called("plan", "run", "--bits", "6", cwd=project)
    assert refused.returncode == 2
    assert refused.stderr.startswith("lograd: no plan follows from NaN or infinite gradients")
    assert refused.stderr.count("\n") == 1
    assert not (project / "run" / "plan.json").exists()
