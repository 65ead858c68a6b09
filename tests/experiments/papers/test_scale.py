"""Pipelines past this machine: bytes by hand, limits of slow and fast links, and measured bits."""

import pytest

from experiments.papers import experiment_of
from experiments.papers.cells import CellFolder
from experiments.papers.experiment import carry_out
from experiments.papers.scale import BACKWARD, BOTH, NETWORKS, PLAIN, RATES, STAGES, Message, Scale
from lograd import InvalidValue

HALF = Message(8.0, 8.0)
WHOLE = Message(16.0, 16.0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = CellFolder(tmp_path_factory.mktemp("scale"))
    chosen = Scale(microbatches=4)
    carry_out(chosen, folder)
    return chosen, folder


def test_names_are_the_sizes_of_the_networks():
    for name, network in NETWORKS.items():
        assert network.weights == pytest.approx(1e9 * float(name.removesuffix("B")), rel=0.22)


def test_a_slow_link_is_all_that_counts_and_a_fast_one_does_not_count():
    chosen, network = Scale(copies=0.0, latency=0.0), NETWORKS["7B"]
    slow, fast = (
        chosen.seconds(network, 8, rate, WHOLE, False) / chosen.seconds(network, 8, rate, HALF, True)
        for rate in (1e6, 1e15)
    )
    assert slow == pytest.approx(2.0, rel=0.01)
    assert fast == pytest.approx(1.0, rel=1e-3)
    # 64 microbatches of 2048 x 4096 elements of 16 bits, in both directions at a time
    assert chosen.seconds(network, 2, 1e6, WHOLE, False) == pytest.approx(65 * 2048 * 4096 * 16 / 1e6, rel=0.01)


def test_coding_that_is_slower_than_the_link_loses():
    chosen = Scale(bandwidth=1.0)
    network = NETWORKS["1B"]
    assert chosen.seconds(network, 64, 4e11, HALF, True) > chosen.seconds(network, 64, 4e11, WHOLE, False)


def test_the_table(drawn):
    chosen, folder = drawn
    bits = folder.found("bits")
    assert 1.0 < bits["gradient"] < 2.0  # 90 % zeros; sixteen-bit values
    assert 8.0 <= bits["activation"] < 8.01
    (table,) = chosen.draw(folder)
    assert len(table.rows) == 2 * len(NETWORKS) * len(STAGES)
    assert [row[4] for row in table.rows[:2]] == [BACKWARD, BOTH]
    first = dict(zip(table.columns, table.rows[1], strict=True))
    assert first["MB an edge and step, bfloat16"] == f"{4 * 2048 * 2048 * 4 / 1e6:,.0f}"
    for row in table.rows:
        gains = [float(cell) for cell in row[-len(RATES) :]]
        assert gains == sorted(gains, reverse=True)  # the slower the link, the more
    assert "--set microbatches=4" in table.claim
    assert "times faster" in table.notes[0]
    assert "<svg" in table.charts[0].svg()
    assert PLAIN in table.charts[0].svg()


def test_options_are_checked():
    with pytest.raises(InvalidValue, match="gpipe or 1f1b; got 'zero'"):
        Scale(schedule="zero")
    assert experiment_of("scale") is Scale
    assert Scale().draw(CellFolder("/nonexistent/scale")) == []
