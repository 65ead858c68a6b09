"""What `explain` says of speed: the backend of each product and the times of backends, and no gain of a step."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import lograd
from lograd import Plan
from lograd.engine.backends.choice import Times

GAIN = re.compile(r"times (as fast|faster|slower)|\bspeed|would take|if all were dense|saves? \d", re.IGNORECASE)
PLAIN = {"acceleration.py", "commands/doctor.py", "plan/evidence.py"}
"""Modules that say by how many times a step is faster: they compare it with one that was timed without lograd."""


def wide():
    """Two layers large enough to be timed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


def train(model, handle, steps):
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        model(x).square().mean().backward()
        model.zero_grad()
        handle.step()


@pytest.mark.parametrize("backend", ["auto", "dense", None])
@pytest.mark.parametrize("recipe", ["prune90", "int8-full", "luq4", "fp6"])
def test_no_gain_is_claimed_as_plain_pytorch_is_not_timed(recipe, backend):
    model = wide()
    if backend is None:
        backend = "sparse" if recipe == "prune90" else "integer" if recipe != "fp6" else "auto"
    with lograd.attach(model, Plan.uniform(recipe), backend=backend) as handle:
        assert not GAIN.search(str(handle.explain()))
        train(model, handle, 6)
        text = str(handle.explain())
        assert not GAIN.search(text), text
        assert not GAIN.search(f"{handle!r} {handle.counters()}")


@pytest.mark.parametrize("recipe", ["prune90", "int8-full"])
def test_timed_products_say_what_dense_ones_were_computed_from(recipe):
    model = wide()
    with lograd.attach(model, Plan.uniform(recipe), backend="auto") as handle:
        train(model, handle, 6)
        lines = handle.explain().layers
        timed = [name for name, one in handle.layers.items() if any(each.times for each in one.choices.values())]
    assert timed
    words = r"(sparse|integer) [\d.]+ ms.*, dense products of the same treated operands [\d.]+ ms"
    assert all(re.search(words, lines[name]) for name in timed)


def test_times_have_words_for_each_backend_that_serves():
    assert Times(dense=2.0, sparse=0.5, integer=1.0, zeros=0.9).words() == (
        "integer 1.00 ms, sparse 0.50 ms at 90% zeros, dense products of the same treated operands 2.00 ms"
    )


def test_only_modules_that_time_plain_pytorch_say_how_many_times_faster_a_step_is():
    source = Path(lograd.__file__).parent
    claim = re.compile(r"\} times (as fast|faster|slower|\{)")
    found = {
        path.relative_to(source).as_posix() for path in source.rglob("*.py") if claim.search(path.read_text("utf-8"))
    }
    assert found == PLAIN
