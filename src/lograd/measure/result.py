"""`Variance`, all that was measured, with the table, page and file that are made from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ..errors import InvalidValue, LogradError, plural
from ..files.atomic import check_folder, read_file, replace_file
from ..files.strict_json import LARGEST
from ..report import TextTable
from . import variance_file as file
from . import variance_page as page
from . import variance_table as table
from .values import Findings


@final
@dataclass(frozen=True, repr=False)
class Variance(Findings):
    """The variance that a plan adds to the gradients of a model; `lograd.variance` makes one.

    See `Findings` for its numbers.
    """

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
