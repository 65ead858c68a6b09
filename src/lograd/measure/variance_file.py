"""The file of a measurement: JSON with a checksum, read back to the same values, and checked before it is believed."""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import InvalidValue, sentence
from ..files import strict_json
from ..files.checks import check_number, check_object, check_text, check_whole
from ..files.seals import checksum_of_json
from .estimates import LEAST_REPEATS
from .measured import Measured
from .values import Contributions, Findings, ForwardChange, SiteVariance, TensorVariance

VERSION = 1
CHECKSUM = "checksum"
_FIELDS = ("plan", "tensors", "total", "sites", "contributions", "batches", "treated", "repeats", "seed")
_TENSOR = ("name", "elements", "energy", "signal", "minibatch", "noise", "bias", "band", "forward")
_SITE = ("layer", "product", "words", "energy", "noise", "predicted", "bound")
_MATRIX = (
    "layers", "tensors", "noise", "errors", "arrived", "predicted", "arrived_together", "predicted_together",
)  # fmt: skip
PRODUCTS = ("dX", "dW", "dX, dW")


def to_json(found: Findings) -> dict[str, Any]:
    """Return plain values, of which `parse` makes the fields of a Variance again."""
    return {
        "lograd_variance": VERSION,
        "plan": found.plan,
        "batches": found.batches,
        "treated": found.treated,
        "repeats": found.repeats,
        "seed": found.seed,
        "total": _tensor_to_json(found.total),
        "tensors": [_tensor_to_json(one) for one in found.tensors],
        "sites": [_plain({name: getattr(one, name) for name in _SITE}) for one in found.sites],
        "contributions": None if found.contributions is None else _matrix_to_json(found.contributions),
    }


def dump(found: Findings) -> bytes:
    """Return the content of the file."""
    data = to_json(found)
    return (json.dumps(data | {CHECKSUM: checksum_of_json(data)}, indent=1, allow_nan=False) + "\n").encode()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: [value.mean, value.error] if isinstance(value, Measured) else value for name, value in fields.items()}


def _tensor_to_json(one: TensorVariance) -> dict[str, Any]:
    forward = None if one.forward is None else [one.forward.cosine, one.forward.norm]
    return _plain({name: getattr(one, name) for name in _TENSOR}) | {"forward": forward}


def _matrix_to_json(one: Contributions) -> dict[str, Any]:
    return {
        "layers": list(one.layers),
        "tensors": list(one.tensors),
        "noise": one.noise.tolist(),
        "errors": one.errors.tolist(),
        "arrived": one.arrived.tolist(),
        "predicted": [_or_none(value) for value in one.predicted.tolist()],
        "arrived_together": one.arrived_together,
        "predicted_together": _or_none(one.predicted_together),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


# -- reading --


def parse(content: bytes) -> dict[str, Any]:
    """Return the fields of a Variance; InvalidValue says what is wrong with the file."""
    data = strict_json.parse(content)
    if not isinstance(data, dict) or "lograd_variance" not in data:
        raise InvalidValue('it is no variance: that is a JSON object with "lograd_variance" and its version.')
    if type(data["lograd_variance"]) is not int or data["lograd_variance"] != VERSION:
        raise InvalidValue(
            f"it has version {str(data['lograd_variance'])[:60]}, and this lograd reads version {VERSION}; measure "
            "again, or use the lograd that wrote it."
        )
    check_object("a variance", data, ("lograd_variance", *_FIELDS, CHECKSUM))
    rest = {name: value for name, value in data.items() if name != CHECKSUM}
    if check_text("its checksum", data[CHECKSUM]) != checksum_of_json(rest):
        raise InvalidValue("its checksum does not match: it was changed or damaged after lograd saved it.")
    matrix = data["contributions"]
    return {
        "plan": check_text("plan", data["plan"]),
        "tensors": tuple(_tensor(one) for one in _list("tensors", data["tensors"])),
        "total": _tensor(data["total"]),
        "sites": tuple(_site(one) for one in _list("sites", data["sites"])),
        "contributions": None if matrix is None else _matrix(matrix),
        "batches": check_whole("batches", data["batches"], 1),
        "treated": check_whole("treated", data["treated"], 1, data["batches"]),
        "repeats": check_whole("repeats", data["repeats"], LEAST_REPEATS),
        "seed": check_whole("seed", data["seed"], -(2**63), 2**63 - 1),
    }


def _list(what: str, value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise InvalidValue(sentence(what, value, "a list" + ("" if length is None else f" of {length}")))
    return value


def _tensor(data: Any) -> TensorVariance:
    check_object("a tensor", data, _TENSOR)
    name = check_text("the name of a tensor", data["name"])
    forward = data["forward"]
    if forward is not None:
        cosine, norm = _list(f"forward of {name!r}", forward, 2)
        forward = ForwardChange(
            check_number(f"cosine of {name!r}", cosine, -1, 1), check_number(f"norm of {name!r}", norm, 0)
        )
    return TensorVariance(
        name,
        check_whole(f"elements of {name!r}", data["elements"], 1),
        check_number(f"energy of {name!r}", data["energy"], 0),
        check_number(f"signal of {name!r}", data["signal"]),
        _measured(f"minibatch of {name!r}", data["minibatch"], 0),
        _measured(f"noise of {name!r}", data["noise"], 0),
        _measured(f"bias of {name!r}", data["bias"]),
        check_number(f"band of {name!r}", data["band"], 0),
        forward,
    )


def _site(data: Any) -> SiteVariance:
    check_object("a site", data, _SITE)
    layer = check_text("the layer of a site", data["layer"])
    if data["product"] not in PRODUCTS:
        raise InvalidValue(sentence(f"the product of a site of {layer!r}", data["product"], "dX, dW, or both"))
    return SiteVariance(
        layer,
        data["product"],
        check_text(f"the words of a site of {layer!r}", data["words"]),
        check_number(f"the energy of a site of {layer!r}", data["energy"], 0),
        _measured(f"the noise of a site of {layer!r}", data["noise"], 0),
        *(
            None if data[name] is None else check_number(f"{name} of a site of {layer!r}", data[name], 0)
            for name in ("predicted", "bound")
        ),
    )


def _matrix(data: Any) -> Contributions:
    check_object("contributions", data, _MATRIX)
    layers, tensors = (
        tuple(check_text(f"a name in {name}", one) for one in _list(name, data[name])) for name in ("layers", "tensors")
    )
    noise, errors = (
        [_numbers(name, row, len(tensors)) for row in _list(name, data[name], len(layers))]
        for name in ("noise", "errors")
    )
    predicted = [math.nan if one is None else one for one in _list("predicted", data["predicted"], len(layers))]
    together = data["predicted_together"]
    return Contributions(
        layers,
        tensors,
        noise,  # type: ignore[arg-type]  # made an array by the class
        errors,  # type: ignore[arg-type]
        _numbers("arrived", data["arrived"], len(layers)),  # type: ignore[arg-type]
        [one if one != one else check_number("predicted", one, 0) for one in predicted],  # type: ignore[arg-type]
        check_number("arrived_together", data["arrived_together"], 0),
        math.nan if together is None else check_number("predicted_together", together, 0),
    )


def _numbers(what: str, values: Any, length: int) -> list[float]:
    return [check_number(what, one, 0) for one in _list(what, values, length)]


def _measured(what: str, value: Any, low: float = -math.inf) -> Measured:
    mean, error = _list(what, value, 2)
    return Measured(check_number(what, mean, low), check_number(f"the error of {what}", error, 0))
