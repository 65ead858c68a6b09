"""The micro-kernels of integer products against their twins in plain code, and against int64."""

from __future__ import annotations

import pytest
import torch
from bits import machine
from hypothesis import given
from hypothesis import strategies as st

from lograd import native

MOST_ROWS, MOST_COLUMNS = 8, 32
LIMIT = 32767
"""The largest sum of 16 bits."""


@pytest.mark.skipif(not native.status().available, reason="micro-kernels are native")
@pytest.mark.parametrize("isa", ["avx2", "avx2vnni", "avx512", "avx512vnni"])
@given(
    st.lists(st.tuples(st.integers(1, 19), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([(14, 7), (62, 31), (63, 127), (255, 64)]),
    st.sampled_from([4, 24, 48]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_tile_is_its_twin(
    isa: str, pieces: list[tuple[int, bool]], most: tuple[int, int], a_step: int, add: bool, seed: int
) -> None:
    """Segments of any length, in groups that end where the next one would be too much."""
    if not native.use_isa(isa):
        pytest.skip("not on this CPU")
    native.use_isa()
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(0, most[0] + 1, (MOST_ROWS, 8192), generator=generator, dtype=torch.uint8)
    b = torch.randint(-most[1], most[1] + 1, (256, MOST_COLUMNS, 4), generator=generator, dtype=torch.int8)
    held, segments = LIMIT // (2 * most[0] * most[1]), []
    left = held
    for units, ends in pieces:
        units = min(units, held)
        if units > left:
            segments[-1][3], left = 1, held
        places = torch.randint(0, 64, (2,), generator=generator).tolist()
        segments.append([4 * places[0], places[1], units, int(ends)])
        left = held if ends else left - units
    segments[-1][3] = 1
    with machine(isa, 1):
        found = torch.randint(-(2**20), 2**20, (2, MOST_ROWS * MOST_COLUMNS), generator=generator, dtype=torch.int32)
        found[1] = found[0]
        start = found[0].clone() if add else torch.zeros_like(found[0])
        tile = native.kernel("integer_byte_tiles")
        arguments = torch.tensor(segments)
        columns = 16 if isa.startswith("avx2") else 32
        panel = b[:, :columns].contiguous()
        arguments[:, 1] *= 4 * columns
        rows, width = tile(
            a.data_ptr(), a.stride(0), panel.data_ptr(), arguments.data_ptr(), len(segments), a_step, 4 * columns, add,
            found[0].data_ptr(), found[1].data_ptr(),
        )  # fmt: skip
    assert width == columns
    exact = torch.zeros(rows, columns, dtype=torch.int64)
    for at, unit, units, _ in segments:
        for step in range(units):
            place = at + a_step * step
            exact += a[:rows, place : place + 4].long() @ panel[unit + step].long().t()
    expected = start[: rows * columns].long() + exact.flatten()
    assert torch.equal(found[0, : rows * columns].long(), expected)
    assert torch.equal(found[1], found[0])
