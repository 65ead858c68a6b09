"""The file of a profile: one .npz of plain arrays with a JSON header, no pickle.

- header: JSON; version, steps, every, missed, what is known of each layer, the work of a step where it was counted
  or why it was not, and the first loss that was not finite, if any was not
- records: int64, a row for each; layer, side (0 neural, 1 weight), step, first bin, bins, zeros, NaN, infinities
- masked: float64, one for each row; NaN where there is no BatchNorm
- counts: int64, the bins of all rows one after another
- samples: float32, the samples of all layers one after another
- noise: float64, only where it was measured; rows own, passed and those of transfer, columns as "noise" in the header
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from ..laws import Empirical
from ..plan import StepWork
from ..theory import Propagation
from .broken import BrokenLoss
from .noise import Contributions
from .records import LayerProfile, Record

VERSION = 1
_ARRAYS = {"header": "uint8", "records": "int64", "masked": "float64", "counts": "int64", "samples": "float32"}
_SIDES = ("records", "weight_records")
_COLUMNS = 8

Contents = tuple[
    dict[str, LayerProfile], dict[str, str], int, int, Contributions | None, StepWork | None, BrokenLoss | None, str
]


def pack(
    layers: Mapping[str, LayerProfile],
    missed: Mapping[str, str],
    steps: int,
    every: int,
    noise: Contributions | None,
    work: StepWork | None,
    loss: BrokenLoss | None,
    uncounted: str,
) -> bytes:
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
        header["work"] = work.to_json()
    if uncounted:
        header["uncounted"] = uncounted
    if loss is not None:
        header["loss"] = loss.to_json()
    measured: dict[str, Any] = {}
    if noise is not None:
        header["noise"] = list(noise.layers)
        measured["noise"] = np.vstack([noise.factors.own, noise.factors.passed, noise.factors.transfer])
    file = io.BytesIO()
    np.savez_compressed(
        file,
        header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        records=np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS),
        masked=np.array(masked, dtype=np.float64),
        counts=np.concatenate(counts),
        samples=np.concatenate([np.zeros(0, dtype=np.float32), *(layer.sample for layer in layers.values())]),
        **measured,
    )
    return file.getvalue()


def unpack(content: bytes) -> Contents:
    """The exact inverse of `pack`."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in [*_ARRAYS, *({"noise"} & set(file))]}
        header = json.loads(arrays["header"].tobytes())
        version = header["lograd_profile"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, NotImplementedError):
        raise InvalidValue("it is not a profile that lograd saved, or only a part of one.") from None
    if version != VERSION:
        raise InvalidValue(
            f"it has version {version!r}, and this lograd reads version {VERSION}; make the profile again, or use the "
            "lograd that wrote it."
        )
    try:
        return _build(header, arrays)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidValue(f"it was changed after lograd saved it ({error}).") from None


def _describe(layer: LayerProfile) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "weight_shape": layer.weight_shape,
        "flops_input": layer.flops_input,
        "flops_weight": layer.flops_weight,
        "flops_forward": layer.flops_forward,
        "sample": int(layer.sample.size),
    }


def _build(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Contents:
    for name, kind in _ARRAYS.items():
        if arrays[name].dtype != kind:
            raise ValueError(f"{name} holds {arrays[name].dtype}")
    layers, samples = [], arrays["samples"]
    for entry in header["layers"]:
        own, samples = samples[: entry["sample"]], samples[entry["sample"] :]
        shape = None if entry["weight_shape"] is None else tuple(entry["weight_shape"])
        flops = (entry["flops_input"], entry["flops_weight"])
        forward = entry.get("flops_forward")  # not in older files
        layers.append(LayerProfile(entry["name"], entry["kind"], shape, *flops, sample=own, flops_forward=forward))
    rows, masked, counts = arrays["records"], arrays["masked"], arrays["counts"]
    if samples.size or rows.shape[1:] != (_COLUMNS,) or len(masked) != len(rows) or rows[:, 4].sum() != counts.size:
        raise ValueError("its parts do not fit together")
    ends = np.cumsum(rows[:, 4])
    for row, end, share in zip(rows.tolist(), ends.tolist(), masked.tolist(), strict=True):
        layer, side, step, first, bins, zeros, nan, infinities = row
        law = Empirical(counts[end - bins : end], first, zeros=zeros) if bins else None
        record = Record(step, law, zeros, nan, infinities, None if np.isnan(share) else share)
        getattr(layers[layer], _SIDES[side]).append(record)
    named = {layer.name: layer for layer in layers}
    noise = None
    if "noise" in header:
        own, passed, *transfer = np.asarray(arrays["noise"], dtype=np.float64)
        noise = Contributions(tuple(header["noise"]), Propagation(own, passed, np.array(transfer)))
    work = StepWork.from_json(header["work"]) if "work" in header else None
    uncounted = str(header.get("uncounted", ""))
    loss = BrokenLoss.from_json(header["loss"]) if "loss" in header else None
    return named, dict(header["missed"]), int(header["steps"]), int(header["every"]), noise, work, loss, uncounted
