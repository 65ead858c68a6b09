"""For tests of what comes from files: anything that JSON can say, and refusals in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from lograd import LogradError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


def nested(leaves: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )


JSON = nested(LEAVES)


def replaced(value: Any, data: st.DataObject) -> Any:
    """The value with something else in one place inside it."""
    if not isinstance(value, dict | list) or not value or data.draw(st.booleans()):
        return data.draw(JSON)
    key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    made = value.copy()
    made[key] = replaced(value[key], data)
    return made


REFUSED = object()


def attempt(use: Callable[[], Any]) -> Any:
    """What it returns, or REFUSED where that is said in one sentence; anything else that it raises goes on."""
    try:
        return use()
    except LogradError as error:
        if "\n" in str(error):
            raise AssertionError(f"more than one line: {error}") from error
        return REFUSED


def flips(size: int) -> st.SearchStrategy:
    """A place and a change of one byte."""
    return st.tuples(st.integers(0, size - 1), st.integers(1, 255))


def flipped(content: bytes, flip: tuple[int, int]) -> bytes:
    place, change = flip
    changed = bytearray(content)
    changed[place] ^= change
    return bytes(changed)


def same(one: Any, other: Any) -> bool:
    """Nested values, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
