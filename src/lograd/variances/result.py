"""`Variance`, all that was measured: values without tensors, from which table, page and file are made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..errors import InvalidValue, LogradError, nearest_name, plural
from ..files.atomic import check_folder, read_file, replace_file
from ..files.strict_json import LARGEST
from ..report import TextTable
from . import file, page, table
from .values import Contributions, SiteVariance, TensorVariance


@final
@dataclass(frozen=True, repr=False)
class Variance:
    """The variance that a plan adds to the gradients of a model, beside the variance that they have anyway.

    `lograd.variance` makes one.

    Attributes:
        plan: the plan in words.
        tensors: each weight tensor that learns; the last entry is all parameters with one dimension together.
        total: the whole gradient.
        sites: the treated gradient of each layer and product, the noise of its quantizer alone, predictions and bounds.
        contributions: the noise that each layer's treatment alone brings to each weight tensor; None if not measured.
        batches: minibatches from which V was estimated.
        treated: those of them that were also run with the plan.
        repeats: draws of random numbers for each of these.
        seed: of the random numbers.
    """

    plan: str
    tensors: tuple[TensorVariance, ...]
    total: TensorVariance
    sites: tuple[SiteVariance, ...]
    contributions: Contributions | None
    batches: int
    treated: int
    repeats: int
    seed: int

    def __getitem__(self, name: str) -> TensorVariance:
        for one in self.tensors:
            if one.name == name:
                return one
        names = [one.name for one in self.tensors]
        raise InvalidValue(f"no weight tensor {name!r} was measured.{nearest_name(name, names)}")

    @property
    def biased(self) -> tuple[str, ...]:
        """The names of tensors whose bias is outside the band of chance."""
        return tuple(one.name for one in self.tensors if not one.inside_band)

    def table(self) -> TextTable:
        """Return a table for the terminal with one row for each weight tensor."""
        return table.tensor_table(self)

    def layers_table(self) -> TextTable:
        """Return a table of the layers that add noise: their quantizers, bounds, predictions, and where it arrives."""
        return table.site_table(self)

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in (self.table(), self.layers_table()))

    def __repr__(self) -> str:
        rho = self.total.rho
        known = "" if rho is None else f", rho {rho.mean:.3g}"
        bias = f"bias in {plural(len(self.biased), 'tensor')}" if self.biased else "no bias seen"
        return f"Variance({plural(len(self.tensors), 'tensor')}, {self.batches:,} batches{known}, {bias})"

    def to_html(self, path: str | os.PathLike[str], title: str = "Variance of the gradients") -> Path:
        """Write a self-contained HTML page: rho of each tensor, where noise comes from, bounds and predictions."""
        check_folder(path)  # fails before the page is computed
        return page.build(self, title).save(path)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as they stand in the file."""
        return file.to_json(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON with a checksum, of which `load` is the exact inverse; return its path."""
        return replace_file(path, file.dump(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Variance:
        """Return the measurement in a file; what is wrong with the file is said in one sentence."""
        content = read_file(path, LARGEST)
        try:
            return cls(**file.parse(content))
        except LogradError as error:
            raise InvalidValue(f"Cannot read the variance {path}: {error}") from None
