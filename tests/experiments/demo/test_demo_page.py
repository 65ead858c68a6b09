"""The first numbers of the demo: how well and how fast, good and bad told apart in colour and in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from experiments.demo import drawing, page, words
from experiments.demo.findings import LOW_BITS, SPARSE, Finding, Result
from experiments.demo.racing import DENSE
from experiments.demo.story import Story, tasks, tell, wide_task
from experiments.demo.tasks import DigitsTask, PlayTask
from lograd.report import Line


@pytest.fixture(scope="module")
def story() -> Story:
    return tell(
        [DigitsTask(4, scout=2, seeds=2, checkpoints=2), PlayTask(4, scout=2, seeds=1, checkpoints=1)],
        wide_task(quick=True),
    )


@pytest.fixture(scope="module")
def findings(story: Story) -> list[Finding]:
    return story.findings


def _with(finding: Finding, way: str, **changed: object) -> Finding:
    """The same with another result of one way."""
    other = replace(finding)
    results: list[Result] = [replace(one, **changed) if one.way == way else one for one in finding.results]
    other.__dict__["results"] = results  # a cached property
    return other


def test_the_first_six_numbers_are_learning_and_speed_with_zeros(findings: list[Finding]) -> None:
    tiles = page._tiles(findings)
    for place, finding in enumerate(findings):
        score, step, backward = tiles[3 * place : 3 * place + 3]
        assert finding.task.score_name in score.label
        assert step.label.startswith("step ")
        assert backward.label.startswith("backward ")
        assert step.value == f"{words.faster(finding, SPARSE)[0]:.2f}×"
        assert backward.value == f"{words.faster(finding, SPARSE)[1]:.2f}×"
        assert all(
            SPARSE in tile.label and tile.hint.startswith(f"{finding.task.name}: ")
            for tile in tiles[3 * place : 3 * place + 3]
        )


@pytest.mark.parametrize("way", [LOW_BITS, SPARSE])
def test_more_accuracy_is_good_and_more_bits_per_character_are_bad(findings: list[Finding], way: str) -> None:
    digits, play = _with(findings[0], DENSE, scores=[90.0, 90.1]), findings[1]
    for finding, difference, tone, word in (
        (digits, 0.13, "good", "better"),
        (digits, -0.13, "bad", "worse"),
        (play, 0.07, "bad", "worse"),
        (play, -0.07, "good", "better"),
    ):
        tile = page._score_tile(_with(finding, way, differences=[difference]), way)
        assert tile.tone == tone
        assert word in tile.label
        assert tile.value.startswith("+" if difference > 0 else "−")
    level = page._score_tile(_with(digits, way, differences=[1e-9]), way)
    assert (level.value, level.tone) == ("level", "")


@pytest.mark.parametrize("difference", [0.13, -0.13])
def test_a_difference_that_another_seed_could_make_is_neither_good_nor_bad(
    findings: list[Finding], difference: float
) -> None:
    finding = _with(findings[0], DENSE, scores=[90.0, 90.2])
    tile = page._score_tile(_with(finding, SPARSE, differences=[difference]), SPARSE)
    assert tile.tone == ""
    assert ("better" if difference > 0 else "worse") in tile.label
    assert "dense seeds differ by 0.2" in tile.hint


@pytest.mark.parametrize(("ratio", "tone", "word"), [(1.5, "good", "faster than"), (0.8, "bad", "slower than")])
def test_a_slower_step_is_said_to_be_slower(findings: list[Finding], ratio: float, tone: str, word: str) -> None:
    dense = findings[0].result(DENSE)
    changed = _with(findings[0], SPARSE, milliseconds=dense.milliseconds / ratio, backward=dense.backward / ratio)
    for part, name in (("step", "milliseconds"), ("backward", "backward")):
        tile = page._speed_tile(changed, part, ratio, name)
        assert tile.tone == tone
        assert f"{part} {word} dense" in tile.label
    said = words.speeds([changed])
    assert f"{max(ratio, 1 / ratio):.2f} times {word.split()[0]}" in said


def test_equal_speed_is_neither_good_nor_bad(findings: list[Finding]) -> None:
    tile = page._speed_tile(findings[0], "step", 1.001, "milliseconds")
    assert (tile.tone, tile.value) == ("", "1.00×")
    assert "as fast as dense" in tile.label


def test_short_runs_have_lines_and_not_points(story: Story, findings: list[Finding]) -> None:
    for finding in findings:
        lines = [mark for mark in drawing.loss_chart(finding).marks if isinstance(mark, Line)]
        assert len(lines) == 3
        assert all(len(list(line.x)) > 1 for line in lines)  # type: ignore[arg-type]
    for task in tasks(quick=True):
        assert task.steps // 4 > 1  # so that the quick demo is smoothed over a part of its steps
    alone = replace(story.sooner, runs=story.sooner.of(DENSE))  # whether a plan is faster depends on the machine
    html = page.build(alone, findings, 1.0).html()
    assert "no data" not in html
    assert len(re.findall(r'class="tile ', html)) == len(page._tiles(findings)) == 11
