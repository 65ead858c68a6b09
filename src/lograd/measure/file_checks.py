"""Checks of a profile's file: what is true of every observed profile must be true of the file, or it is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue, sentence
from ..files.archives import TooLarge
from ..files.checks import MANY, check_object, check_text, check_whole
from ..laws.empirical import bin_of
from .records import LayerProfile

LAYER, SIDE, STEP, FIRST, BINS, ZEROS, NAN, INFINITIES = range(8)
"""The columns of `records`."""
COLUMNS = 8
ROW_BYTES = 1024
"""Approximate memory of a record without its counts."""
LOWEST_BIN, HIGHEST_BIN = bin_of(np.array([5e-324, np.finfo(np.float32).max])).tolist()
"""The bins of the smallest float64 and of the largest float32.  Gradients are counted as float32 at most; the square of
a larger magnitude could leave the range of float64."""
MOST_DIMENSIONS = 16


def check_header(header: dict[str, Any]) -> None:
    """Check the fields of the header and those of each layer in it."""
    what = "the header"
    check_object(what, header, ("lograd_profile", "steps", "every", "missed", "layers"), None)
    check_whole("steps", header["steps"])
    check_whole("every", header["every"], 1)
    missed, layers = header["missed"], header["layers"]
    if not isinstance(missed, dict) or not isinstance(layers, list):
        raise InvalidValue('"missed" must be an object with layer names, and "layers" a list.')
    for name, reason in missed.items():
        check_text(f"the reason why {name!r} was missed", reason)
    for entry in layers:
        _check_entry(entry)
    names = {entry["name"] for entry in layers}
    if len(names) < len(layers):
        raise InvalidValue("two of its layers have the same name.")
    noise = header.get("noise", [])
    if not isinstance(noise, list) or not all(isinstance(name, str) for name in noise):
        raise InvalidValue(sentence("noise", noise, "a list of layer names"))
    if len(set(noise)) < len(noise) or not names.issuperset(noise):
        raise InvalidValue("its noise must be that of layers which it has, each once.")


def _check_entry(entry: Any) -> None:
    check_object("a layer", entry, ("name", "kind", "weight_shape", "flops_input", "flops_weight", "sample"), None)
    name = check_text("the name of a layer", entry["name"])
    check_text(f"the kind of layer {name!r}", entry["kind"])
    check_whole(f"the sample of layer {name!r}", entry["sample"], 0, 2**31)
    for field in ("flops_input", "flops_weight", "flops_forward"):
        if entry.get(field) is not None:
            check_whole(f"{field} of layer {name!r}", entry[field], 0, 2**63 - 1)
    check_whole(f"groups of layer {name!r}", entry.get("groups", 1), 1, 2**31)
    if type(entry.get("transposed", False)) is not bool:
        raise InvalidValue(sentence(f"transposed of layer {name!r}", entry["transposed"], "true or false"))
    shape = entry["weight_shape"]
    if shape is not None:
        if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
            raise InvalidValue(sentence(f"weight_shape of layer {name!r}", shape, "a short list of sizes, or null"))
        for size in shape:
            check_whole(f"weight_shape of layer {name!r}", size)


def check_rows(
    rows: NDArray[Any], masked: NDArray[Any], counts: NDArray[Any], limit: int, *, layers: int, steps: int
) -> None:
    """Check that the records fit each other, their counts, and the numbers of layers and steps.

    Args:
        rows: the array `records`.
        masked: a share for each record.
        counts: the bins of all records.
        limit: bytes that the profile may take in memory.
        layers, steps: their numbers in the header.
    """
    if rows.shape[1] != COLUMNS or len(masked) != len(rows):
        raise InvalidValue(f"it has records of shape {rows.shape} and {len(masked)} masked shares.")
    if len(rows) * ROW_BYTES > limit:
        raise TooLarge(f"its {len(rows):,} records take more memory than the limit of {limit:,} bytes.")
    for name, column, low, high in (
        ("layer", LAYER, 0, layers - 1),
        ("side", SIDE, 0, 1),
        ("step", STEP, 0, steps - 1),
        ("number of bins", BINS, 0, HIGHEST_BIN - LOWEST_BIN + 1),
        ("first bin", FIRST, LOWEST_BIN, HIGHEST_BIN),
        ("zeros", ZEROS, 0, MANY),
        ("NaN", NAN, 0, MANY),
        ("infinities", INFINITIES, 0, MANY),
    ):
        _check_range(f"the {name} of a record", rows[:, column], low, high)
    _check_range("the last bin of a record", rows[:, FIRST] + rows[:, BINS], LOWEST_BIN, HIGHEST_BIN + 1)
    _check_range("a masked share", masked[~np.isnan(masked)], 0, 1)
    if rows[:, BINS].sum() != counts.size:
        raise InvalidValue(f"its records have {rows[:, BINS].sum()} bins, and there are {counts.size} counts.")
    _check_range("a count", counts, 0, MANY)
    if counts.size and counts.sum(dtype=np.float64) > MANY:
        raise InvalidValue("its counts add up to more than any gradient has.")
    occupied = np.concatenate([[0], np.cumsum(counts > 0)])
    ends = np.cumsum(rows[:, BINS])
    if np.any((rows[:, BINS] > 0) & (occupied[ends] == occupied[ends - rows[:, BINS]])):
        raise InvalidValue("one of its histograms is empty.")


def _check_range(what: str, values: NDArray[Any], low: int, high: int) -> None:
    outside = (values < low) | (values > high)
    if outside.any():
        raise InvalidValue(sentence(what, values[outside][0].item(), f"from {low} to {high}"))


def check_layer(layer: LayerProfile) -> None:
    """Check that the records are in the order of their steps, and that the sample may have come from them."""
    if not layer.records:
        raise InvalidValue(f"layer {layer.name!r} has no record.")
    for records in (layer.records, layer.weight_records):
        if any(after.step <= before.step for before, after in itertools.pairwise(records)):
            raise InvalidValue(f"the steps of layer {layer.name!r} are not in order.")
    for word, found, counted in (
        ("NaN", np.isnan(layer.sample), [record.nan for record in layer.records]),
        ("infinities", np.isinf(layer.sample), [record.infinities for record in layer.records]),
    ):
        if found.any() and not any(counted):
            raise InvalidValue(f"the sample of layer {layer.name!r} has {word}, and none was counted.")
