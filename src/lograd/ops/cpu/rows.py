"""Passes over the rows of a matrix by csrc's native kernels, with all threads of PyTorch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ... import native
from ..contracts import COUNTS, FLOAT_TYPES
from ..reference.row_passes import Groups, Passes
from ..reference.rows import WRITERS, largest_and_scale
from ..registry import add_kernel
from ..writers import add_writer


class Native(Passes):
    """`Passes` of the CPU; the protocol says what each of them does."""

    def ranges(self, x: Tensor) -> Tensor:
        out = x.new_empty((3, x.shape[0]), dtype=torch.float32)
        native.kernel("row_ranges")(*_matrix(x), _address("out", out, 3 * x.shape[0]), torch.get_num_threads())
        return out

    def quantize_samples(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._with(
            x.new_empty((3, x.shape[0]), dtype=torch.float32), "quantize_samples", x, out, (bins,), stochastic, key
        )

    def quantize_tensor(
        self, x: Tensor, out: Tensor, bins: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._with(x.new_empty((3, 1), dtype=torch.float32), "quantize_tensor", x, out, (bins,), stochastic, key)

    def quantize_interval(
        self, x: Tensor, out: Tensor, gamma: Tensor, levels: int, stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        statistics = x.new_empty(2, dtype=torch.float64)
        where = native.address("gamma", gamma, torch.float64, 1)
        return self._with(statistics, "quantize_interval", x, out, (where, levels), stochastic, key)

    def largest_and_scale(self, x: Tensor, top: float) -> Tensor:
        out = x.new_empty(2, dtype=torch.float32)
        native.kernel("largest_and_scale")(*_matrix(x), top, _address("out", out, 2), torch.get_num_threads())
        return out

    @staticmethod
    def _with(
        found: Tensor, name: str, x: Tensor, out: Tensor, what: tuple[int, ...], stochastic: bool, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A quantizer that fills `found` (ranges or statistics) and the parameters as it goes."""
        parameters = x.new_empty((5, x.shape[0]), dtype=torch.float32)
        counts = x.new_zeros(COUNTS, dtype=torch.int64)
        packed = out.dtype == torch.uint8
        native.kernel(name)(
            *_matrix(x), native.address("out", out, torch.uint8 if packed else x.dtype, x.numel()),
            native.address("found", found, found.dtype, found.numel()), _address("parameters", parameters, 5 * len(x)),
            *what, stochastic, packed, native.address("key", key, torch.int64, 2), torch.get_num_threads(),
            native.address("counts", counts, torch.int64, COUNTS),
        )  # fmt: skip
        return found, parameters, counts

    def dequantize(self, codes: Tensor, out: Tensor, parameters: Tensor, bins: int) -> None:
        native.kernel("dequantize_rows")(
            FLOAT_TYPES[out.dtype], native.address("codes", codes, torch.uint8, codes.numel()), *codes.shape,
            native.address("out", out, out.dtype, codes.numel()), _address("parameters", parameters, 3 * len(codes)),
            bins, torch.get_num_threads(),
        )  # fmt: skip

    def reflect(self, x: Tensor, out: Tensor, groups: Groups, bounds: Tensor) -> Tensor:
        return self._reflect(False, x.dtype, x, out, groups, _address("bounds", bounds, 2 * len(x)))

    def reflect_back(self, x: Tensor, out: Tensor, groups: Groups) -> Tensor:
        return self._reflect(True, out.dtype, x, out, groups, 0)

    @staticmethod
    def _reflect(inverse: bool, dtype: torch.dtype, x: Tensor, out: Tensor, groups: Groups, bounds: int) -> Tensor:
        counts = x.new_zeros(COUNTS, dtype=torch.int64)
        address, rows, n = native.address, len(x), x.numel()
        native.kernel("reflect_rows")(
            inverse, FLOAT_TYPES[dtype], address("x", x, torch.float32 if inverse else dtype, n),
            address("out", out, dtype if inverse else torch.float32, n), *x.shape,
            address("order", groups.order, torch.int64, rows), address("first", groups.first, torch.int64, rows),
            _address("stretch", groups.stretch, rows), address("share", groups.share, torch.float64, rows),
            bounds, torch.get_num_threads(), address("counts", counts, torch.int64, COUNTS),
        )  # fmt: skip
        return counts


def _address(what: str, x: Tensor, count: int) -> int:
    return native.address(what, x, torch.float32, count)


def _matrix(x: Tensor) -> tuple[int, ...]:
    return FLOAT_TYPES[x.dtype], native.address("x", x, x.dtype, x.numel()), *x.shape


for _name, _write in WRITERS.items():
    add_writer(_name, "cpu", partial(_write, Native()))
add_kernel("largest_and_scale", "cpu", partial(largest_and_scale, Native()))
