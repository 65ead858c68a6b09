"""The opening of the demo: seconds and scores of a network, dense and with a plan; words and colours follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.demo import page, sooner
from experiments.demo.racing import DENSE, Run
from experiments.demo.sooner import FAST, Sooner
from experiments.demo.tables import sooner_rows
from experiments.demo.tasks import DigitsTask, WideDigitsTask
from lograd import acceleration
from lograd.report import Page

TASK = DigitsTask(4, scout=0, seeds=2, checkpoints=2)


def run(way: str, seed: int, milliseconds: float, scores: tuple[float, float]) -> Run:
    return Run(way, seed, [2.0, 1.5, 1.0, 0.5], [milliseconds] * 4, [1.0] * 4, dict(zip((2, 4), scores, strict=True)))


def planted(fast: float = 100.0, end: float = 91.0) -> Sooner:
    """Dense steps take 200 ms, and end at 90.0 % and 90.4 %."""
    dense = [run(DENSE, 0, 200.0, (60.0, 90.0)), run(DENSE, 1, 200.0, (62.0, 90.4))]
    return Sooner(TASK, "done.", "contiguous", [*dense, *(run(FAST, seed, fast, (61.0, end)) for seed in (0, 1))])


def test_seconds_are_those_of_training() -> None:
    found = planted()
    assert found.gained
    assert found.ratio == pytest.approx(2.0)
    assert found.seconds(DENSE) == pytest.approx(0.8)
    assert found.difference == pytest.approx((1.0 + 0.6) / 2)
    assert sooner.curve(found.of(FAST)[0]) == [pytest.approx((0.2, 61.0)), pytest.approx((0.4, 91.0))]
    assert [row[-1] for row in sooner_rows(found)] == ["–", "–", "2.00", "2.00"]


@pytest.mark.parametrize(
    ("fast", "end", "tones", "said"),
    [
        (100.0, 91.0, ("good", "good"), ("faster", "better")),
        (250.0, 89.0, ("bad", "bad"), ("slower", "worse")),
        (200.0, 90.2, ("", ""), ("as fast", "at the end")),
        (100.0, 90.3, ("good", ""), ("faster", "better")),  # a seed of dense differs as much
    ],
)
def test_gains_and_losses_are_told_by_word_and_colour(
    fast: float, end: float, tones: tuple[str, ...], said: tuple[str, str]
) -> None:
    tiles = page._sooner_tiles(planted(fast, end))
    assert tuple(tile.tone for tile in tiles) == tones
    assert all(word in tile.label for word, tile in zip(said, tiles, strict=False))


def test_a_network_with_a_plan_opens_with_its_tiles() -> None:
    made = Page("")
    page._sooner(made, planted())
    assert made.html().count('class="tile ') == 2


def test_a_network_that_is_left_alone_says_why() -> None:
    found = replace(planted(), runs=planted().of(DENSE), found="no method is faster.")
    made = Page("")
    page._sooner(made, found)
    text = made.html()
    assert "no method is faster." in text
    assert "left the CNN alone" in text
    assert 'class="tile ' not in text
    assert sooner_rows(found)[0][0] == DENSE


@pytest.mark.parametrize("faster", [True, False])
def test_the_steps_of_the_measurement_are_those_of_the_training(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    monkeypatch.setattr(acceleration, "LEAST_WORK", 0)
    for name in ("VNNI", "NARROW_LINEAR", "NARROW_CONVOLUTION"):
        monkeypatch.setattr(acceleration, name, ("int8-full",))

    def times(self: acceleration.Acceleration, watch: object) -> acceleration.Times:
        one = 0.5 if (self._handle is not None) == faster else 1.0
        return acceleration.Times(one, dict.fromkeys(self._candidates, one))

    monkeypatch.setattr(acceleration.Acceleration, "_times", times)
    task = DigitsTask(20, scout=0, seeds=2, checkpoints=2)
    found = sooner.compare(task)
    ways = [(DENSE, 0), (FAST, 0), (DENSE, 1), (FAST, 1)]
    assert [(one.way, one.seed) for one in found.runs] == ([one for one in ways if faster or one[0] == DENSE])
    assert found.gained == faster
    assert ("2.00 times faster" if faster else "stays as it is") in found.found
    assert all(list(one.scores) == [10, 20] and len(one.losses) == 20 for one in found.runs)
    if faster:
        dense, fast = found.runs[:2]
        assert dense.losses != fast.losses
        assert dense.losses == pytest.approx(fast.losses, rel=0.2)
        assert [len(chart.marks) for chart in (sooner.score_chart(found), sooner.loss_chart(found))] == [4, 4]
    assert set(found.to_json()) >= {"runs", "found", "dense_layout"}


def test_wide_digits_are_the_digits_larger() -> None:
    task = WideDigitsTask(2, scout=0, seeds=1)
    images, labels = next(task.batches(0))
    small, same = next(DigitsTask(2, scout=0, seeds=1).batches(0))
    assert images.shape == (64, 1, 16, 16)
    assert (labels == same).all()
    assert images.mean() == pytest.approx(float(small.mean()), rel=1e-3)
