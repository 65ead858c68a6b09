"""The random numbers of torch, NumPy and Python together: what a user's model and batches may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from lograd import InvalidValue

PYTHON_VERSION = 3
"""Version of the state that Python's generator gives; it has been the same since Python 3.2."""
NUMPY_KIND = "MT19937"


class RandomState(NamedTuple):
    """The states of the three global generators, as each of them gives its own."""

    torch: torch.Tensor
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> RandomState:
        """The states as they are."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002

    def restore(self) -> None:
        """Set the three generators back to these states."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def to_plain(self) -> dict[str, Any]:
        """Tensors and numbers, for a checkpoint; torch's own state is saved for every run."""
        _, words, place, has_gauss, gauss = self.numpy
        _, python, python_gauss = self.python
        return {
            "numpy": torch.from_numpy(np.append(words.astype(np.int64), place)),
            "numpy_gauss": [int(has_gauss), float(gauss)],
            "python": torch.tensor(python, dtype=torch.int64),
            "python_gauss": python_gauss,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RandomState:
        """The inverse; the state of torch is the one in force."""
        try:
            *words, place = plain["numpy"].tolist()
            numpy = (NUMPY_KIND, np.array(words, dtype=np.uint32), place, *plain["numpy_gauss"])
            python = (PYTHON_VERSION, tuple(plain["python"].tolist()), plain["python_gauss"])
            np.random.RandomState().set_state(numpy)
            random.Random().setstate(python)
        except Exception as error:  # whatever the two generators raise
            raise InvalidValue(f"the random states must be those of NumPy and Python; {error}") from None
        return cls(torch.get_rng_state(), numpy, python)


def seed_all(seed: int) -> None:
    """Seed all three generators, as one would by hand."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  the global generator is what users draw from
    random.seed(seed)


def mixed(*entropy: int) -> int:
    """A seed that follows from a few whole numbers."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever is drawn inside, the three generators go on afterwards as if it had not been."""
    before = RandomState.now()
    try:
        yield
    finally:
        before.restore()
