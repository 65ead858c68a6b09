"""`lograd doctor`: what it says of planted times, and that its timing runs.  No test depends on anything's speed."""

from __future__ import annotations

import json

import pytest
import torch
from called import called
from torch import nn

import lograd
from lograd import doctor, environment, native
from lograd.doctor import (
    ATTACHED,
    BF16,
    CHANNELS_LAST,
    CONTIGUOUS,
    FP32,
    HOW,
    LayerTimes,
    TimedLayer,
    advice,
    missing_ways,
    speed_table,
    times_to_dict,
)
from lograd.environment import Amx

BROKEN = str(Amx(True, "SIGILL", deadly=True))


def planted(last: float = 8.0, **gains: float) -> list[LayerTimes]:
    """A linear layer of 10 ms and a convolution of 8 ms, with ways that are so many times faster."""
    ways = {"bf16": BF16, "int8": "int8-full", "int6": "int6-full", "int4": "int4-full", "sparse": "prune85 sparse"}
    return [
        LayerTimes("linear", {FP32: {CONTIGUOUS: 10.0}} | {ways[key]: {CONTIGUOUS: 10 / gains[key]} for key in gains}),
        LayerTimes(
            "convolution",
            {FP32: {CONTIGUOUS: 8.0, CHANNELS_LAST: last}}
            | {ways[key]: {CONTIGUOUS: 99.0, CHANNELS_LAST: min(8.0, last) / gains[key]} for key in gains},
        ),
    ]


def test_every_timed_way_can_be_switched_on():
    assert tuple(HOW) == (BF16, *ATTACHED)


@pytest.mark.skipif(not native.status().available, reason="needs the native module")
@pytest.mark.parametrize("way", [way for way, how in HOW.items() if how.startswith("lograd.")])
def test_what_is_advised_runs(way):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    eval(HOW[way], {"lograd": lograd, "model": model}).remove()


SENTENCES: dict[str, tuple[list[LayerTimes], dict[str, str], str]] = {
    "integers win": (
        planted(bf16=1.2, int8=1.9, int6=1.93, int4=1.95, sparse=1.4),
        {},
        "Fastest here: int8-full, 1.90 times FP32 by geometric mean; switch it on with lograd.accelerate(model).",
    ),
    "zeros win": (
        planted(bf16=0.4, int8=0.8, int6=0.9, int4=1.1, sparse=1.4),
        {},
        "Fastest here: prune85 sparse, 1.40 times FP32 by geometric mean; switch it on with "
        "lograd.attach(model, lograd.Plan.uniform('prune85')).",
    ),
    "bf16 wins with channels-last": (
        planted(last=4.0, bf16=4.0, int8=2.0),
        {},
        "Fastest here: bf16 autocast, 4.00 times FP32 by geometric mean; switch it on with "
        "torch.autocast('cpu', torch.bfloat16); FP32 convolutions are 2.00 times faster after "
        "model.to(memory_format=torch.channels_last).",
    ),
    "nothing wins": (
        planted(bf16=0.5, int8=1.04, int6=1.0, int4=1.0, sparse=0.9),
        {},
        "Nothing is clearly faster than FP32 here; int8-full comes nearest, 1.04 times FP32 by geometric mean.",
    ),
    "channels-last alone wins": (
        planted(last=4.0, bf16=0.5, int8=0.9),
        {},
        "Nothing is clearly faster than FP32 here; int8-full comes nearest, 0.90 times FP32 by geometric mean; FP32 "
        "convolutions are 2.00 times faster after model.to(memory_format=torch.channels_last).",
    ),
    "AMX is broken": (
        planted(int8=1.9, int6=1.9, int4=1.9, sparse=1.4),
        missing_ways("", BROKEN),
        "Fastest here: int8-full, 1.90 times FP32 by geometric mean; switch it on with "
        "lograd.accelerate(model); bf16 autocast was not timed, since AMX is announced but kills the "
        "process (SIGILL): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16.",
    ),
    "nothing can be timed": (
        planted(),
        missing_ways("no C++ compiler", BROKEN),
        "Nothing is clearly faster than FP32 here; bf16 autocast was not timed, since AMX is announced but kills the "
        "process (SIGILL): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16; int8-full, int6-full, int4-full, prune85 sparse "
        "were not timed, since the native module is not in use: no C++ compiler.",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_planted_times_give_the_sentence(case):
    rows, missing, expected = SENTENCES[case]
    assert advice(rows, missing) == expected


def test_the_table_counts_the_better_layout_and_has_a_dash_for_what_is_missing():
    text = speed_table(planted(last=4.0, int8=2.0, bf16=3.0), {BF16: BROKEN}, 2)
    cells = {line.split("  ")[1]: line.split()[-7:] for line in text.splitlines() if line.startswith("  ")}
    assert cells["linear"] == ["10.0", "–", "–", "2.00", "–", "–", "–"]
    assert cells["convolution"] == ["4.0", "2.00", "–", "2.00", "–", "–", "–"]
    assert cells["geometric mean"][1:] == ["2.00", "–", "2.00", "–", "–", "–"]
    assert "on 2 threads, medians of up to 9 turns" in text


def test_the_values_for_json_are_plain_and_complete():
    missing = missing_ways("", BROKEN)
    values = times_to_dict(planted(int8=2.0), missing, 1)
    assert json.loads(json.dumps(values)) == values
    assert values["layers"][0]["milliseconds"] == {FP32: {CONTIGUOUS: 10.0}, "int8-full": {CONTIGUOUS: 5.0}}
    assert values["geometric means"] == {CHANNELS_LAST: 1.0, "int8-full": pytest.approx(2.0)}
    assert values["not timed"] == {BF16: BROKEN}


@pytest.fixture
def tiny(monkeypatch):
    """Layers that take no time, on a machine whose AMX need not be tried."""
    monkeypatch.setattr(environment, "probe_amx", Amx)
    layers = (
        TimedLayer("line", lambda: nn.Linear(64, 24), (8, 64)),  # integer products pay from sums over 64 on
        TimedLayer("image", lambda: nn.Conv2d(8, 8, 3, padding=1), (2, 8, 6, 6)),
    )
    monkeypatch.setattr(doctor, "LAYERS", layers)


def test_the_timing_runs_and_leaves_threads_and_random_numbers_alone(tiny):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    line, image = doctor.time_layers(1, () if native.status().available else tuple(ATTACHED))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert line.failed == image.failed == {}
    ways = (FP32, *HOW) if native.status().available else (FP32, BF16)
    assert tuple(line.milliseconds) == tuple(image.milliseconds) == ways
    assert all(list(taken) == [CONTIGUOUS] for taken in line.milliseconds.values())
    assert all(list(taken) == [CONTIGUOUS, CHANNELS_LAST] for taken in image.milliseconds.values())


@pytest.mark.skipif(not native.status().available, reason="needs the native module")
def test_the_products_that_are_timed_are_integer_and_sparse_ones(tiny, monkeypatch):
    handles, attach = [], doctor.attach
    monkeypatch.setattr(doctor, "attach", lambda *a, **k: handles.append(attach(*a, **k)) or handles[-1])
    doctor.time_layers(1)
    words = [str(handle.explain()) for handle in handles]
    assert len(words) == 3 * len(ATTACHED)  # one layout of the line, two of the image
    assert sum("Y: integer products" in text for text in words) == 3 * (len(ATTACHED) - 1)
    assert sum("), sparse products" in text for text in words) == 3
    assert not any(handle.counters().total.treated == 0 for handle in handles)


def test_a_machine_without_time_gets_one_turn(tiny, monkeypatch):
    timed = []
    monkeypatch.setattr(doctor, "BUDGET", 0.0)
    monkeypatch.setattr(doctor, "_seconds", lambda call: timed.append(call) or 1.0)
    doctor.time_layers(1, tuple(ATTACHED))
    assert len(timed) == 2 * 3  # two ways, of which each has one layout of the line and two of the image


def test_a_way_that_fails_is_named_and_the_others_are_timed(tiny, monkeypatch):
    def refuse(*arguments, **options):
        raise RuntimeError("no such kernel\nand a trace")

    monkeypatch.setattr(doctor, "attach", refuse)
    row = doctor.time_layers(1, (BF16,))[0]
    assert tuple(row.milliseconds) == (FP32,)
    assert row.failed == dict.fromkeys(ATTACHED, "RuntimeError: no such kernel")


def test_the_command_prints_the_table_and_the_sentence(tiny):
    done = called("doctor", "--threads", "1")
    assert done.returncode == 0
    for words in ("instruction sets", "geometric mean", "on 1 thread", "FP32 by geometric mean"):
        assert words in done.stdout


def test_json_has_everything_and_deadly_amx_is_not_tried_in_this_process(tiny, monkeypatch):
    monkeypatch.setattr(environment, "probe_amx", lambda: Amx(True, "SIGILL", deadly=True))
    found = json.loads(called("doctor", "--threads", "1", "--json").stdout)
    assert list(found) == ["versions", "machine", "native module", "instruction sets", "times", "sentence"]
    assert found["times"]["threads"] == 1
    assert [row["layer"] for row in found["times"]["layers"]] == ["line", "image"]
    assert all(BF16 not in row["milliseconds"] for row in found["times"]["layers"])
    assert found["times"]["not timed"][BF16] == BROKEN
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in found["sentence"]


def test_without_the_native_module_its_columns_say_why(tiny, monkeypatch):
    monkeypatch.setattr(native, "_extension", None)
    monkeypatch.setattr(native, "_reason", "no C++ compiler")
    text = called("doctor", "--threads", "1").stdout
    assert "prune85 sparse were not timed, since the native module is not in use: no C++ compiler" in text
