"""The file of a profile: one .npz of plain arrays with a JSON header and a checksum (`seals`), no pickle.

- header: JSON with version, steps, every, missed, a description of each layer, the work of a step or the reason why it
  was not counted, the first loss that was not finite, if there was one, and the menus of layers, if they were timed
- records: int64, a row for each record: layer, side (0 neural gradient, 1 weight gradient), step, first bin, number of
  bins, zeros, NaN, infinities
- masked: float64, a number for each record; NaN where there is no BatchNorm
- counts: int64, the bins of all records one after another
- samples: float32, the samples of all layers one after another
- noise: float64, only where it was measured: the rows own, passed and those of transfer, a column for each layer that
  "noise" in the header names

The header also has, where they were measured, "energies" of noise (`own` and `passed`, a number for each layer of
"noise") and "minibatch" (`minibatch_file`), and for each layer the "range" of its gradient and "noisy", the gradient
with noise in it (`noisy`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from ..files.archives import TooLarge, read_arrays
from ..files.checks import check_number, check_object, check_text
from ..files.seals import check_seal, sealed
from ..files.strict_json import parse
from ..laws import Empirical
from ..plan import StepWork
from ..theory import Propagation
from . import file_checks
from .contributions import Contributions
from .file_checks import BINS, COLUMNS
from .menus import Menus
from .minibatch import Minibatch
from .minibatch_file import packed_minibatch, unpacked_minibatch
from .noisy import packed_noisy, unpacked_noisy, unpacked_range
from .nonfinite import NonFiniteLoss
from .records import LayerProfile, Record

VERSION = 1
LIMIT = 2**30
"""Default limit for the bytes of a profile in memory.  A layer takes about 4000 for each observed step."""
CHANGED = "it was changed after lograd saved it"
_ARRAYS = {
    "header": ("uint8", 1),
    "records": ("int64", 2),
    "masked": ("float64", 1),
    "counts": ("int64", 1),
    "samples": ("float32", 1),
}
"""The type and the number of dimensions of each array."""
_SIDES = ("records", "weight_records")
"""The lists of `LayerProfile` that the column "side" stands for."""

Contents = tuple[
    dict[str, LayerProfile],
    dict[str, str],
    int,
    int,
    Contributions | None,
    StepWork | None,
    NonFiniteLoss | None,
    str,
    Minibatch | None,
    Menus | None,
]


def pack(
    layers: Mapping[str, LayerProfile],
    missed: Mapping[str, str],
    steps: int,
    every: int,
    noise: Contributions | None,
    work: StepWork | None,
    loss: NonFiniteLoss | None,
    uncounted: str,
    minibatch: Minibatch | None,
    menus: Menus | None = None,
) -> bytes:
    """Return the bytes of the file; the arguments are the attributes of `Profile`."""
    rows, masked, counts = [], [], [np.zeros(0, dtype=np.int64)]
    for index, layer in enumerate(layers.values()):
        for side, name in enumerate(_SIDES):
            for record in getattr(layer, name):
                bins = np.zeros(0, dtype=np.int64) if record.law is None else np.asarray(record.law.counts)
                first = 0 if record.law is None else record.law.first
                rows.append([index, side, record.step, first, bins.size, record.zeros, record.nan, record.infinities])
                masked.append(np.nan if record.masked is None else record.masked)
                counts.append(bins)
    header = {
        "lograd_profile": VERSION,
        "steps": steps,
        "every": every,
        "missed": dict(missed),
        "layers": [_describe(layer) for layer in layers.values()],
    }
    if work is not None:
        header["work"] = work.to_dict()
    if uncounted:
        header["uncounted"] = uncounted
    if loss is not None:
        header["loss"] = loss.to_json()
    if menus is not None:
        header["menus"] = menus.to_json()
    measured: dict[str, Any] = {}
    if noise is not None:
        header["noise"] = list(noise.layers)
        measured["noise"] = np.vstack([noise.factors.own, noise.factors.passed, noise.factors.transfer])
        if noise.energies is not None:
            header["energies"] = {"own": noise.energies.own.tolist(), "passed": noise.energies.passed.tolist()}
    if minibatch is not None:
        header["minibatch"] = packed_minibatch(minibatch)
    file = io.BytesIO()
    np.savez_compressed(
        file,
        header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        records=np.array(rows, dtype=np.int64).reshape(-1, COLUMNS),
        masked=np.array(masked, dtype=np.float64),
        counts=np.concatenate(counts),
        samples=np.concatenate([np.zeros(0, dtype=np.float32), *(layer.sample for layer in layers.values())]),
        **measured,
    )
    return sealed(file.getbuffer())


def unpack(content: bytes, limit: int) -> Contents:
    """Return the arguments of `pack` from the bytes that it made; every value is checked before it is used.

    Args:
        content: all bytes of a file.
        limit: bytes that the profile may take in memory.
    """
    if content[:2] != b"PK":
        raise InvalidValue("it is not a profile that lograd saved.")
    try:
        check_seal(content)
        arrays = read_arrays(io.BytesIO(content), [*_ARRAYS, "noise"], limit)
    except TooLarge:
        raise
    except InvalidValue as error:
        raise InvalidValue(f"it is not a profile as lograd saved it: {error}") from None
    for name, (kind, dimensions) in _ARRAYS.items():
        if name not in arrays:
            raise InvalidValue(f"it is not a profile that lograd saved: it has no array {name!r}.")
        if arrays[name].dtype != kind or arrays[name].ndim != dimensions:
            raise InvalidValue(f"{CHANGED} ({name} holds {arrays[name].dtype} of shape {arrays[name].shape}).")
    header = parse(arrays["header"].tobytes(), "its header")
    version = header.get("lograd_profile") if isinstance(header, dict) else None
    if type(version) is not int or version != VERSION:
        raise InvalidValue(
            f"it has version {str(version)[:60]}, and this lograd reads version {VERSION}; make the profile again, or "
            "use the lograd that wrote it."
        )
    try:
        return _build(header, arrays, limit)
    except TooLarge:
        raise
    except InvalidValue as error:
        raise InvalidValue(f"{CHANGED}: {error}") from None


def _describe(layer: LayerProfile) -> dict[str, Any]:
    noise: dict[str, Any] = {} if layer.range is None else {"range": list(layer.range)}
    if layer.noisy:
        noise["noisy"] = packed_noisy(layer.noisy)
    return {
        "name": layer.name,
        "kind": layer.kind,
        "weight_shape": layer.weight_shape,
        "flops_input": layer.flops_input,
        "flops_weight": layer.flops_weight,
        "flops_forward": layer.flops_forward,
        "sample": int(layer.sample.size),
        "groups": layer.groups,
        "transposed": layer.transposed,
        **noise,
    }


def _build(header: dict[str, Any], arrays: dict[str, NDArray[Any]], limit: int) -> Contents:
    file_checks.check_header(header)
    rows, masked, counts, samples = (arrays[name] for name in ("records", "masked", "counts", "samples"))
    sizes = [entry["sample"] for entry in header["layers"]]
    file_checks.check_rows(rows, masked, counts, limit, layers=len(sizes), steps=header["steps"])
    if sum(sizes) != samples.size:
        raise InvalidValue(f"the layers have {sum(sizes)} samples in all, and the file has {samples.size}.")
    layers = []
    for entry, own in zip(header["layers"], np.split(samples, np.cumsum(sizes)[:-1]), strict=True) if sizes else ():
        shape = None if entry["weight_shape"] is None else tuple(entry["weight_shape"])
        # Older profiles have neither field; the name of the class tells at least transposed convolutions.
        groups, transposed = entry.get("groups", 1), entry.get("transposed", "Transpose" in entry["kind"])
        layers.append(
            LayerProfile(
                entry["name"], entry["kind"], shape, entry["flops_input"], entry["flops_weight"], sample=own,
                flops_forward=entry.get("flops_forward"), groups=groups, transposed=transposed,
                range=unpacked_range(entry["range"]) if "range" in entry else None,
                noisy=unpacked_noisy(entry.get("noisy", [])),
            )
        )  # fmt: skip
    ends = np.cumsum(rows[:, BINS])
    for row, end, share in zip(rows.tolist(), ends.tolist(), masked.tolist(), strict=True):
        layer, side, step, first, bins, zeros, nan, infinities = row
        law = Empirical(counts[end - bins : end], first, zeros=zeros) if bins else None
        record = Record(step, law, zeros, nan, infinities, None if np.isnan(share) else share)
        getattr(layers[layer], _SIDES[side]).append(record)
    for layer in layers:
        file_checks.check_layer(layer)
    noise = None
    if "noise" in header:
        noise = _noise(header["noise"], arrays.get("noise"), header.get("energies"))
    work = StepWork.from_dict(header["work"]) if "work" in header else None
    uncounted = check_text("why the step was not counted", header.get("uncounted", ""))
    loss = NonFiniteLoss.from_json(header["loss"]) if "loss" in header else None
    named = {layer.name: layer for layer in layers}
    minibatch = unpacked_minibatch(header["minibatch"]) if "minibatch" in header else None
    menus = Menus.from_json(header["menus"], named) if "menus" in header else None
    found = (named, dict(header["missed"]), header["steps"], header["every"], noise, work, loss, uncounted)
    return (*found, minibatch, menus)


def _noise(names: list[str], factors: NDArray[Any] | None, energies: Any) -> Contributions:
    if factors is None or factors.dtype != np.float64 or factors.shape != (2 + len(names), len(names)):
        raise InvalidValue("the factors of its noise do not fit the layers that they are said to be of.")
    own, passed, *transfer = factors
    measured = Propagation(own, passed, np.array(transfer))
    if energies is None:  # a profile of before
        return Contributions(tuple(names), measured)
    check_object("the energies of its noise", energies, ("own", "passed"))
    for column in energies.values():
        if not isinstance(column, list) or len(column) != len(names):
            raise InvalidValue("the energies of its noise do not fit the layers that they are said to be of.")
    absolute = {
        side: [check_number("an energy of its noise", one, 0) for one in column] for side, column in energies.items()
    }
    arrived = Propagation(np.array(absolute["own"]), np.array(absolute["passed"]), measured.transfer)
    return Contributions(tuple(names), measured, arrived)
